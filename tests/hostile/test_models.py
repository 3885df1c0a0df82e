"""Models that mix records: one record moves the clipped sum by many clip norms, unless the model is refused first.

The subject kept broken on purpose is the clipped sum without the check in front of it.
"""

import math

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import nn
from torch.nn import functional as F

import privmarket as pm
from privmarket.flower import _wire as wire
from privmarket.flower._training import trainable_arrays
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._policy import SellerPolicy
from privmarket.rounds import Terms
from privmarket.training import (
    ClientRecords,
    ModelError,
    PrivateModel,
    _clipping as clipping,
    clipped_sums,
    plausible_inputs,
    row_findings,
)
from tests.unit.flower.toy import Wire, refusal_of

ROWS, CLIP = 64, 0.1


class Centred(nn.Module):
    """Subtracts the batch's mean: no layer to be found, only a line of code."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last((self.first(x) - self.first(x).mean(0)) * 30)


def normalised(layer):
    return nn.Sequential(nn.Linear(12, 8), layer, nn.Linear(8, 3))


MIXING = {
    "x - x.mean(0)": Centred,
    "BatchNorm without affine weights": lambda: normalised(nn.BatchNorm1d(8, affine=False)),
    "frozen BatchNorm": lambda: normalised(nn.BatchNorm1d(8).requires_grad_(False).eval()),
}


def records(outlier):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(ROWS, 12, generator=generator), torch.randint(0, 3, (ROWS,), generator=generator)
    if outlier:
        x[-1] *= 1e4
    return x, y


def clipped_sum(module, inputs, labels, clip, monkeypatch):
    """A client's clipped sum by the rules, whatever a trial on random records would have said of them."""
    monkeypatch.setattr(clipping, "method_for", lambda *_: clipping.Method("rules"))
    model = PrivateModel(module)
    records = ClientRecords(inputs, labels, [len(labels)])
    return clipped_sums(model, model.built_weights()[None], records, clip).of(0).double()


@pytest.mark.parametrize("name", MIXING)
def test_without_the_check_one_record_moves_the_sum_by_many_clip_norms(name, monkeypatch):
    torch.manual_seed(0)
    module = MIXING[name]().train()
    near, far = (clipped_sum(module, *records(outlier), CLIP, monkeypatch) for outlier in (False, True))
    assert float((near - far).norm()) > 4 * CLIP  # replacing one record may move it by 2


def selling(module, tmp_path, **options):
    """A client with this model and a wallet; returns its answer to a bid and to an order."""
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 8.0)
    app = pm.flower.client_app(
        model=lambda: module, data=lambda context: records(False), valuation=0.1, wallet=wallet, **options
    )
    grid = Wire(app, 1)
    node = next(iter(grid.contexts))
    terms = Terms(0, 10**6, ReleaseFamily(), 5.0, run="r")
    bid = grid.answer(Message(wire.put(RecordDict(), terms), node, wire.BID))
    sale = wire.Sale("r", 0, 0.5, 1, ReleaseFamily(), CLIP, 1.0, float(ROWS))
    content = wire.put(RecordDict({wire.WEIGHTS: wire.write_arrays(trainable_arrays(module))}), sale)
    return wallet, bid, grid.answer(Message(content, node, wire.TRAIN))


@pytest.mark.parametrize("name", MIXING)
def test_a_client_refuses_before_it_reserves(name, tmp_path):
    torch.manual_seed(0)
    wallet, _, answer = selling(MIXING[name](), tmp_path)
    assert refusal_of(answer) == "model"
    assert wallet.statement() == []


REFUSED = {
    "a tuple": lambda: nn.LSTM(12, 3, batch_first=True),
    "time first": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, dropout=0.0), 1),
    "nothing to train": lambda: nn.Sequential(nn.Flatten(), nn.ReLU()),
    "frozen whole": lambda: nn.Linear(12, 3).requires_grad_(False),
    "a loss over the batch": lambda: nn.Linear(12, 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_that_cannot_be_trained_are_refused_too(name, tmp_path):
    options = {"loss": F.cross_entropy} if name == "a loss over the batch" else {}
    wallet, _, answer = selling(REFUSED[name](), tmp_path, **options)
    assert refusal_of(answer) in ("model", "weights")
    assert wallet.statement() == []


def test_a_model_that_treats_records_alone_is_trained_and_charged(tmp_path):
    wallet, _, answer = selling(nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3)), tmp_path)
    assert refusal_of(answer) is None
    assert len(wallet.statement()) == 1
    assert all(np.isfinite(a).all() for a in wire.read_arrays(answer.content, wire.UPDATE).values())


class Gated(nn.Module):
    """Mixes records behind two gates: with both closed neither an output nor a gradient shows it."""

    def __init__(self):
        super().__init__()
        self.first, self.gate = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.last = nn.Linear(12, 3)

    def forward(self, x):
        return self.last(x + self.gate(self.first(x) - self.first(x).mean(0)))


def test_weights_that_hide_for_one_step_that_records_mix_are_seen_through(monkeypatch):
    torch.manual_seed(0)
    module = Gated()
    for gate in (module.first, module.gate):  # as a server sends them, for an order of two steps
        nn.init.zeros_(gate.weight)
    weights = trainable_arrays(module)
    assert row_findings(module, *records(False), weights=weights, random_weights=False) == []  # looks at these only
    sale = wire.Sale("r", 0, 0.5, 1, ReleaseFamily(steps=2), CLIP, 1.0, float(ROWS))
    job = ConfigRecord({"noise-multiplier": 1.0, "unit": "record"})
    Wire(None, 1)  # messages are made in a run
    order = Message(wire.put(RecordDict({wire.JOB: job}), sale), 1, wire.TRAIN)
    with pytest.raises(ModelError, match="changes the output of other records"):
        pm.flower.train_privately(order, None, module, *records(False))

    for parameter in module.parameters():  # the second step, of a client that looked no further
        parameter.data.add_(torch.randn(parameter.shape))
    near, far = (clipped_sum(module, *records(outlier), CLIP, monkeypatch) for outlier in (False, True))
    assert float((near - far).norm()) > 4 * CLIP


@pytest.mark.parametrize("name", [*MIXING, "nothing to train"])
def test_a_server_stops_before_the_first_bid(name, tmp_path):
    made = {**MIXING, **REFUSED}[name]
    app = pm.flower.server_app(model=made, rounds=1)
    client = pm.flower.client_app(
        model=made, data=lambda context: records(False), valuation=0.1, wallet="unlimited"
    )
    grid = Wire(client, 2)
    with pytest.raises(ModelError) as caught:
        pm.flower.run_in_process(app, client, 2, grid=grid)
    assert caught.value.hint
    assert grid.sent == []  # nobody was even asked


def test_a_server_guesses_inputs_for_common_first_layers():
    image = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 32 * 32, 10))
    assert plausible_inputs(image).shape == (2, 3, 32, 32)
    assert plausible_inputs(nn.Sequential(nn.Flatten(), nn.Linear(784, 10))).shape[0] == 2
    assert plausible_inputs(nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(64, 2))).dtype == torch.int64
    assert plausible_inputs(nn.Bilinear(3, 3, 2)) is None


def answers(tmp_path, data, module=None, **options):
    """A client's answer to an order for its records, and its wallet."""
    module = module or nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3))
    unit = options["policy"].unit if "policy" in options else "record"
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 8.0, unit=unit)
    app = pm.flower.client_app(
        model=lambda: module, data=lambda context: data, valuation=0.1, wallet=wallet, **options
    )
    grid = Wire(app, 1)
    node = next(iter(grid.contexts))
    grid.answer(Message(wire.put(RecordDict(), Terms(0, 10**6, ReleaseFamily(), 5.0, run="r")), node, wire.BID))
    sale = wire.Sale("r", 0, 0.5, 1, ReleaseFamily(), CLIP, 1.0, float(ROWS))
    content = wire.put(RecordDict({wire.WEIGHTS: wire.write_arrays(trainable_arrays(module))}), sale)
    return grid.answer(Message(content, node, wire.TRAIN)), wallet


PERSONS = SellerPolicy(epsilon_per_sale=math.inf, epsilon_lifetime=math.inf, unit="person")


@pytest.mark.parametrize(
    "persons",
    [None, torch.full((ROWS,), math.nan), torch.arange(ROWS) - 1, torch.arange(ROWS - 3), torch.rand(ROWS)],
    ids=["none", "NaN", "negative", "too few", "fractions"],
)
def test_a_person_column_with_gaps_sells_nothing(persons, tmp_path):
    data = records(False) if persons is None else (*records(False), persons)
    answer, wallet = answers(tmp_path, data, policy=PERSONS)
    assert refusal_of(answer) == "records"
    assert wallet.statement() == []


def test_persons_are_sold_together(tmp_path):
    answer, wallet = answers(tmp_path, (*records(False), torch.arange(ROWS) // 5), policy=PERSONS)
    assert refusal_of(answer) is None
    assert len(wallet.statement()) == 1


def test_noise_beyond_the_exact_is_refused_before_it_is_charged(tmp_path, monkeypatch):
    monkeypatch.setattr("privmarket.privacy._release.MAX_LEVELS", 0)  # as for a model too large for its noise
    answer, wallet = answers(tmp_path, records(False))
    assert refusal_of(answer) == "noise"
    assert wallet.statement() == []


def test_unequal_lengths_sell_nothing(tmp_path):
    x, y = records(False)
    answer, wallet = answers(tmp_path, (x, y[:-1]))
    assert refusal_of(answer) == "records"
    assert wallet.statement() == []
