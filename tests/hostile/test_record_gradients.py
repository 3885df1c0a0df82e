"""Gradients that are not a record's own, and records that decide whether there is an update at all.

The subjects kept broken on purpose: hooks whose rows are believed to be records, and training that ends with the
error of one record.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privmarket.federated.gradients import conventional_products
from privmarket.federated.model_check import ModelError, require_per_record
from privmarket.federated.record_gradients import clipped_sum
from privmarket.flower import wire
from privmarket.flower.known_layers import fast_model
from privmarket.flower.node_seller import Job
from privmarket.flower.training import private_module_update, trainable_arrays
from privmarket.flower.wire import Sale
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.noise import NoiseSource
from tests.hostile import naive
from tests.hostile.test_models import answers, records, selling

CLIP, TOKENS = 0.1, 16


def cross_entropy(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none")


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


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_model_whose_rows_are_not_records_is_refused(name):
    torch.manual_seed(0)
    with pytest.raises(ModelError) as caught:
        require_per_record(MISTAKEN[name](), *sequences())
    assert caught.value.hint


def test_such_a_client_neither_sells_nor_is_charged(tmp_path):
    class FoldedPairs(Folded):
        def forward(self, x):
            return super().forward(x.view(len(x), 2, 6))

    wallet, _, answer = selling(FoldedPairs(), tmp_path)
    assert wire.read_refusal(answer.content) == "model"
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
    assert not hasattr(next(module.parameters()), "grad_sample")


def test_a_module_that_fails_on_everything_still_fails():
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))

    def never(outputs, labels):
        raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        clipped_sum(module, *records(False), CLIP, never)


@pytest.mark.parametrize("fast", [True, False])
def test_a_label_out_of_range_leaves_an_update_as_any_other(fast, tmp_path, caplog):
    """Whether somebody's label is wrong must not show: neither by a word, nor by what is charged."""
    inputs, labels = records(False)
    wrong = labels.clone()
    wrong[0] = 7
    module = nn.Sequential(nn.Linear(12, 8), nn.Tanh() if fast else nn.GELU(), nn.Linear(8, 3))
    assert (fast_model(module) is not None) == fast
    answer, wallet = answers(tmp_path, (inputs, wrong), module=module)
    assert wire.read_refusal(answer.content) is None
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


# --- the fast path does what the module does -------------------------------------------------------------


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
    "spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(12, 3))),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_more_than_a_stack_of_layers_is_not_taken_for_one(name):
    assert fast_model(stack()) is not None
    assert fast_model(SPECIAL[name]()) is None


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


def test_autocast_around_a_client_changes_no_bit():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))
    plain = clipped_sum(module, *records(False), CLIP, cross_entropy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = clipped_sum(module, *records(False), CLIP, cross_entropy)
        with conventional_products():
            guarded = clipped_sum(module, *records(False), CLIP, cross_entropy)
    assert not torch.equal(cast, plain)  # the subject without the guard
    assert torch.equal(guarded, plain)
