"""Gradients that are not a record's own, and records that decide whether there is an update at all.

The subjects kept broken on purpose: hooks whose rows are believed to be records, rules that believe it, and
training that ends with the error of one record.
"""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privmarket.flower._seller import Job
from privmarket.flower._training import private_module_update, trainable_arrays
from privmarket.flower._wire import Sale
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._noise import NoiseSource
from privmarket.training import (
    ClientRecords,
    ModelError,
    PrivateModel,
    Sample,
    _clipping as clipping,
    _gradients as gradients,
    clipped_sums,
    method_for,
    require_per_record,
)
from privmarket.training._stacks import is_stack
from tests.hostile import naive
from tests.hostile.test_models import answers, records, selling
from tests.unit.flower.toy import refusal_of

CLIP, TOKENS = 0.1, 16


def cross_entropy(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none")


def clipped_sum(module, inputs, labels, clip, loss=None, persons=None, *, drawn=None, mask_seed=0):
    """One client's clipped sum under the module's own weights."""
    model = PrivateModel(module, loss)
    sample = None if drawn is None else Sample(0.5, [drawn])
    records = ClientRecords(inputs, labels, [len(labels)], persons)
    weights = model.built_weights()[None]
    return clipped_sums(model, weights, records, clip, sample=sample, mask_seeds=[mask_seed]).of(0).double()


class Folded(nn.Module):
    """Folds a record's tokens into the first axis: its layers see tokens where hooks look for records."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.reshape(-1, 6)))).view(len(x), -1, 3).mean(1)


class SequenceFirst(nn.Module):
    """Puts the sequence first; with as many tokens as a tile has rows, tokens fit where records belong."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.transpose(0, 1)))).mean(0)


class Places(nn.Module):
    """An embedding of places without an axis for records."""

    def __init__(self):
        super().__init__()
        self.places, self.last = nn.Embedding(TOKENS, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(x + self.places(torch.arange(TOKENS))).mean(1)


class FromEightRows(nn.Module):
    """Subtracts the batch's mean, but only where there are at least eight records."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = x.mean(1)
        return self.last(x - x.mean(0) if len(x) >= 8 else x)


MISTAKEN = {one.__name__: one for one in (Folded, SequenceFirst, Places, FromEightRows)}


def sequences(outlier=False):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(TOKENS, TOKENS, 6, generator=generator)
    y = torch.randint(0, 3, (TOKENS,), generator=generator)
    if outlier:
        x[0] = -3 * x[0]
        y[0] = (y[0] + 1) % 3
    return x, y


@pytest.mark.parametrize("name", ["Folded", "SequenceFirst"])
def test_rows_of_hooks_believed_to_be_records_move_by_many_clip_norms(name):
    torch.manual_seed(0)
    module = MISTAKEN[name]()
    near, far = (naive.hooked_sum(module, *sequences(outlier), CLIP, cross_entropy) for outlier in (False, True))
    assert float((near - far).norm()) > 4 * CLIP  # replacing one record may move the sum by two


@pytest.mark.parametrize("drawn", [None, np.arange(TOKENS)])
@pytest.mark.parametrize("name", ["Folded", "SequenceFirst", "Places"])
def test_a_model_whose_rows_are_not_records_is_differentiated_record_by_record(name, drawn, monkeypatch):
    """With as many tokens as there are records in a tile, what passes a layer has the shape of records."""
    torch.manual_seed(0)
    module = MISTAKEN[name]()
    require_per_record(module, *sequences())
    assert method_for(PrivateModel(module), *sequences()).kind == "vmap"
    near, far = (
        clipped_sum(module, *sequences(outlier), CLIP, cross_entropy, drawn=drawn) for outlier in (False, True)
    )
    assert float((near - far).norm()) <= 2.001 * CLIP
    if name == "SequenceFirst":  # rules that take the first axis for the records, whatever a trial says
        monkeypatch.setattr(clipping, "method_for", lambda *_: clipping.Method("rules"))
        near, far = (
            clipped_sum(module, *sequences(outlier), CLIP, cross_entropy, drawn=drawn) for outlier in (False, True)
        )
        assert float((near - far).norm()) > 4 * CLIP


def test_a_model_that_mixes_records_in_large_blocks_only_is_refused():
    torch.manual_seed(0)
    with pytest.raises(ModelError) as caught:
        require_per_record(FromEightRows(), *sequences())
    assert caught.value.hint


def test_such_a_client_neither_sells_nor_is_charged(tmp_path):
    class Pairs(FromEightRows):
        def forward(self, x):
            return super().forward(x.view(len(x), 2, 6))

    wallet, _, answer = selling(Pairs(), tmp_path)
    assert refusal_of(answer) == "model"
    assert wallet.statement() == []


# --- one record's error ----------------------------------------------------------------------------------


def touchy(outputs, labels):
    """A loss that raises where outputs are large, as `torch.distributions` does where they are not finite."""
    if bool((outputs.abs() > 1e6).any()):
        raise ValueError("the outputs are out of range")
    return cross_entropy(outputs, labels)


@pytest.mark.parametrize("drawn", [None, np.arange(0, 50, 3)])
def test_a_record_that_raises_counts_as_nothing(drawn):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))
    inputs, labels = records(False)
    raising, silent = inputs.clone(), inputs.clone()
    raising[[3, 30]], silent[[3, 30]] = 1e9, torch.nan
    with pytest.raises(ValueError, match="out of range"):  # the subject of old: no update, and everybody knows why
        touchy(module(raising), labels)
    found, expected = (clipped_sum(module, x, labels, CLIP, touchy, drawn=drawn) for x in (raising, silent))
    assert torch.equal(found, expected)
    assert float(found.norm()) > 0
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())


@pytest.mark.parametrize("forgets", [True, False])
def test_what_an_interrupted_pass_noted_reaches_no_other_record(forgets, monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))
    inputs, labels = (torch.cat([part] * 3) for part in records(False))  # a block and five tiles
    raising, silent = inputs.clone(), inputs.clone()
    raising[3], silent[3] = 1e9, torch.nan
    expected = clipped_sum(module, silent, labels, CLIP, touchy)
    if not forgets:  # the subject broken on purpose: all passes note in one place
        uses, real = {}, gradients.Run
        monkeypatch.setattr(gradients, "Run", lambda *given: real(*given, uses=uses))
    found = clipped_sum(module, raising, labels, CLIP, touchy)
    if forgets:
        assert torch.equal(found, expected)
        assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    else:
        assert float((found - expected).norm()) > 4 * CLIP


def test_a_module_that_fails_on_every_record_adds_nothing_and_its_owner_is_told(caplog):
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))

    def never(outputs, labels):
        raise ValueError("never")

    assert not clipped_sum(module, *records(False), CLIP, never).any()
    assert "ValueError: never" in caplog.text


def positive_rates(outputs, labels):
    """A loss that raises where a rate overflows."""
    if bool(outputs.exp().isinf().any()):
        raise OverflowError("a rate is not finite")
    return cross_entropy(outputs, labels)


def asking_for(record):
    """A model whose weights a server chose: it overflows for this record and for a blank one, for no other.

    Its output is 200 − 1000·min(‖x‖₁, ‖x − record‖₁).
    """
    d, one = len(record), torch.eye(len(record))
    module = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, 2), nn.ReLU(), nn.Linear(2, 3))
    size, distance = torch.tensor([1.0, 0.0]).repeat_interleave(2 * d), torch.tensor([0.0, 1.0])
    with torch.no_grad():
        module[0].weight.copy_(torch.cat([one, -one, one, -one]))
        module[0].bias.copy_(torch.cat([torch.zeros(2 * d), -record, record]))
        module[2].weight.copy_(torch.stack([size, size - distance.repeat_interleave(2 * d)]))
        module[2].bias.zero_()
        module[4].weight.copy_(torch.tensor([[-1000.0, 1000.0], [0.0, 0.0], [0.0, 0.0]]))
        module[4].bias.copy_(torch.tensor([200.0, 0.0, 0.0]))
    return module


def test_a_server_cannot_ask_for_a_record_by_an_error(tmp_path):
    """The word `failed` has no noise: with it, ε = 0.5 would tell for certain whether a record is there."""
    inputs, labels = records(False)
    without = inputs.clone()
    without[7] = inputs[8]
    module = asking_for(inputs[7])
    broken = [naive.answer_by_blank_records(module, x, labels, positive_rates) for x in (inputs, without)]
    assert broken == ["failed", None]
    for name, x in (("with", inputs), ("without", without)):
        answer, wallet = answers(tmp_path / name, (x, labels), module=module, loss=positive_rates)
        assert refusal_of(answer) is None
        assert len(wallet.statement()) == 1


@pytest.mark.parametrize("fast", [True, False])
def test_a_label_out_of_range_leaves_an_update_as_any_other(fast, tmp_path, caplog):
    """Whether somebody's label is wrong must not show: neither by a word, nor by what is charged."""
    inputs, labels = records(False)
    wrong = labels.clone()
    wrong[0] = 7
    module = nn.Sequential(nn.Linear(12, 8), nn.Tanh() if fast else nn.Softmax(1), nn.Linear(8, 3))
    assert is_stack(module) == fast
    answer, wallet = answers(tmp_path, (inputs, wrong), module=module)
    assert refusal_of(answer) is None
    assert len(wallet.statement()) == 1
    assert "add nothing" in caplog.text  # in the log of its owner

    blank = inputs.clone()
    blank[0] = torch.nan

    def job():
        sale = Sale("r", 0, 0.5, 1, ReleaseFamily(), CLIP, 1.0, 64.0)
        return Job(sale, 1.0, NoiseSource.from_seed(1), "0", None)

    weights = trainable_arrays(module)
    found = private_module_update(module, weights, inputs, wrong, job())
    expected = private_module_update(module, weights, blank, labels, job())
    assert all(np.array_equal(found[name], expected[name]) for name in weights)


# --- the engine does what the module does ----------------------------------------------------------------


class OwnForward(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def stack():
    return nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))


def with_hook():
    module = stack()
    module[0].register_forward_hook(lambda part, inputs, output: output * 2)
    return module


def twice():
    layer = nn.Linear(12, 12)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(12, 3))


def tied():
    module = stack()
    module[2].weight = module[0].weight
    return module


SPECIAL = {
    "own forward": lambda: OwnForward(nn.Linear(12, 3)),
    "hook": with_hook,
    "one layer twice": twice,
    "tied weights": tied,
    "two activations in a row": lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Tanh(), nn.Linear(8, 3)),
    "spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(12, 3))),
}


def own_norms(module, inputs, labels):
    """Each record's gradient norm, by torch alone."""
    parameters, norms = list(module.parameters()), []
    for one in range(len(labels)):
        lost = F.cross_entropy(module(inputs[one : one + 1]), labels[one : one + 1])
        norms.append(torch.cat([g.flatten() for g in torch.autograd.grad(lost, parameters)]).norm())
    return torch.stack(norms)


@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_more_than_a_stack_of_layers_has_its_own_gradients(name):
    torch.manual_seed(0)
    plain, special, (inputs, labels) = stack(), SPECIAL[name]().eval(), records(False)
    assert is_stack(plain)
    assert is_stack(special) == (name in ("one layer twice", "tied weights", "two activations in a row"))
    for module, agrees in ((plain, True), (special, name == "two activations in a row")):
        own = own_norms(module, inputs, labels)
        taken_for_one = naive.norms_as_a_stack(module, inputs, labels)  # what somebody else's gradients would be
        assert torch.allclose(taken_for_one.float(), own, rtol=1e-3) == agrees
        model = PrivateModel(module)
        records_alone = ClientRecords(inputs, labels, [1] * len(labels))
        found = clipped_sums(model, model.built_weights()[None], records_alone, 1e9).values.norm(dim=1)
        torch.testing.assert_close(found.float(), own, rtol=1e-4, atol=1e-6)


# --- masks and precision ---------------------------------------------------------------------------------


def test_masks_of_dropout_come_from_the_secret_noise():
    """A model that seeds torch would else have masks that a server knows, and that shift with who was drawn."""
    module = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    weights = trainable_arrays(module)
    inputs, labels = records(False)

    def update(secret, public):
        torch.manual_seed(public)
        sale = Sale("r", 0, 0.5, 1, ReleaseFamily(), CLIP, 1.0, 64.0)
        job = Job(sale, 0.0, NoiseSource.from_seed(secret), "0", None)
        return private_module_update(module, weights, inputs, labels, job)["0.weight"]

    assert np.array_equal(update(1, 5), update(1, 6))
    assert not np.array_equal(update(1, 5), update(2, 5))


def same_masks(seed, other):
    drawn = []
    for one in (seed, other):
        torch.manual_seed(one)
        drawn.append(F.dropout(torch.ones(2000)))
    return torch.equal(*drawn)


@pytest.mark.parametrize("by_person", [False, True])
def test_who_knows_the_masks_of_dropout_sees_one_record_move_by_one_clip_norm(by_person):
    """torch keeps 32 bits of a seed, so whoever sees a sum can try all masks: the promise must hold for each."""
    assert same_masks(5, 5 + 2**32)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5), nn.GELU(), nn.Linear(64, 3))
    inputs, labels = (torch.cat([part] * 5) for part in records(False))
    persons = torch.arange(len(labels)) // 3 if by_person else None
    drawn = np.flatnonzero(np.random.default_rng(0).random(len(labels)) < 0.5)
    if by_person:
        drawn = np.flatnonzero(np.isin(persons, np.arange(0, len(labels), 2)))
    gone = drawn // 3 == drawn[3] // 3 if by_person else drawn == drawn[3]
    near, far = (
        clipped_sum(module, inputs, labels, CLIP, cross_entropy, persons, drawn=one, mask_seed=5)
        for one in (drawn, drawn[~gone])
    )
    assert 0 < float((near - far).norm()) < CLIP * 1.001
    near, far = (
        naive.masked_in_turn(module, inputs, labels, CLIP, cross_entropy, one, 5) for one in (drawn, drawn[~gone])
    )
    assert float((near - far).norm()) > 2 * CLIP


def test_a_record_that_raises_leaves_the_masks_of_others_as_they_were():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5), nn.GELU(), nn.Linear(64, 3))
    inputs, labels = (torch.cat([part] * 5) for part in records(False))
    raising, silent = inputs.clone(), inputs.clone()
    raising[3], silent[3] = 1e9, torch.nan
    found, expected = (clipped_sum(module, x, labels, CLIP, touchy, mask_seed=5) for x in (raising, silent))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("loss", [None, cross_entropy])  # a plain stack, and blocks
def test_autocast_around_a_client_changes_no_bit(loss, monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))
    plain = clipped_sum(module, *records(False), CLIP, loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guarded = clipped_sum(module, *records(False), CLIP, loss)
        monkeypatch.setattr(clipping, "conventional_products", contextlib.nullcontext)
        try:  # the subject without the guard
            cast = clipped_sum(module, *records(False), CLIP, loss)
        except RuntimeError:  # a product in bfloat16 for a float32 sum
            cast = None
    assert cast is None or not torch.equal(cast, plain)
    assert torch.equal(guarded, plain)
