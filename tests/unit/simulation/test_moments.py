"""Bought statistics: moments of the inputs, and inputs that are whitened by them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.privacy._accountant import RdpAccountants
from privmarket.reports._verdict import strength_sentence, worst_promise
from privmarket.simulation import _federation as simulation, _moments
from privmarket.simulation._checkpoint import save_checkpoint, to_checkpoint
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federate import settings_of
from privmarket.simulation._federation import Federation, run
from privmarket.simulation._moments import Moments, MomentsSale, Whitening
from privmarket.simulation._result import client_table, summarise
from privmarket.training import ClientRecords, PrivateModel, clipped_sums

CLIENTS, EACH, INPUTS = 6, 40, 3
NORM = 6.0
# Two nearly equal inputs and one small one: far from alike in all directions.
MIX = np.array([[2.0, 1.9, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.05]])


@pytest.fixture(scope="module")
def task() -> pm.Task:
    rng = np.random.default_rng(7)
    rows = (rng.normal(size=(CLIENTS * EACH, INPUTS)) @ MIX + [1.0, 0.0, 0.0]).astype(np.float32)
    labels = (rows[:, 0] - rows[:, 1] + rng.normal(0, 0.2, len(rows)) > 1.0).astype(np.int64)
    clients = np.repeat([f"c{i}" for i in range(CLIENTS)], EACH)
    return pm.Task.from_arrays(
        rows, labels, clients=clients, classes=["no", "yes"], test=(rows[:100], labels[:100]), name="skewed"
    )


def settings(task: pm.Task, **changes: object) -> FederationConfig:
    given: dict[str, object] = {
        "mechanism": "graded-ration",
        "trust": "aggregate",
        "wallet": 5.0,
        "rounds": 4,
        "budget": 20.0,
        "statistics": "moments",
        "statistics_norm": NORM,
    }
    return FederationConfig(**settings_of(task), **given | changes)


def moments_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rows.mean(axis=0), np.cov(rows.T, bias=True)


def test_the_sale_is_the_second_moment_of_inputs_and_one(task):
    sale = MomentsSale.of(settings(task), task)
    rows = sale.rows(task.private.tensors()[0])
    start = torch.zeros(1, sale.parameters)
    found = clipped_sums(sale.model, start, ClientRecords(rows, rows, [len(rows)]), 1e6).values[0].double().numpy()
    wide = rows.double().numpy()
    np.testing.assert_allclose(found.reshape(4, 4), wide.T @ wide, rtol=1e-5)
    mean, covariance = moments_of(wide[:, :-1])
    bought = sale.bought(found, float(len(rows)), 0.0)
    np.testing.assert_allclose(bought.mean, mean, atol=1e-5)
    np.testing.assert_allclose(bought.covariance, covariance, atol=1e-4)


def test_a_record_counts_up_to_its_norm_and_no_further(task):
    sale = MomentsSale.of(settings(task), task)
    huge = sale.rows(torch.full((1, INPUTS), 1e6))
    start = torch.zeros(1, sale.parameters)
    for rows, clip in ((huge, sale.clip_norm), (torch.nan * huge, 0.0)):
        total = clipped_sums(sale.model, start, ClientRecords(rows, rows, [1]), sale.clip_norm).values[0]
        assert float(total.double().norm()) <= clip
    # A norm that belongs to x instead of xxᵀ would let a record of norm 6 count in full where it must not.
    broken = clipped_sums(sale.model, start, ClientRecords(huge, huge, [1]), sale.clip_norm**2).values[0]
    assert float(broken.double().norm()) > sale.clip_norm


def test_whitened_inputs_vary_alike_and_weights_fold_back(task):
    rows = task.private.tensors()[0]
    mean, covariance = moments_of(rows.double().numpy())
    whitening = Whitening(Moments(mean, covariance))
    z = whitening.of(rows).double().numpy()
    spread = np.linalg.eigvalsh(np.cov(z.T, bias=True))
    raw = np.linalg.eigvalsh(covariance)
    assert spread.max() / spread.min() < 0.1 * raw.max() / raw.min()
    assert whitening.usual_norm == pytest.approx(np.sqrt((z**2).sum(axis=1).mean() + 1.0), rel=1e-4)
    model = PrivateModel(torch.nn.Linear(INPUTS, 2))
    weights = torch.randn(model.parameters, generator=torch.Generator().manual_seed(1))
    of_z = model.outputs(weights, whitening.of(rows))
    np.testing.assert_allclose(model.outputs(whitening.folded(model, weights), rows), of_z, atol=1e-4)
    again = whitening.unfolded(model, whitening.folded(model, weights))
    np.testing.assert_allclose(again, weights, atol=1e-4)


def test_noise_lifts_the_floor_and_gives_way_to_what_is_known():
    known = Moments(np.zeros(2), np.eye(2))
    noisy = Moments(np.ones(2), np.diag([4.0, -3.0]), deviation=1e6)
    mixed = noisy.mixed(known, 1.0)
    np.testing.assert_allclose(mixed.covariance, known.covariance, atol=1e-4)
    quiet = Whitening(Moments(np.zeros(2), np.diag([4.0, 0.0])))
    loud = Whitening(Moments(np.zeros(2), np.diag([4.0, 0.0]), deviation=1.0))
    assert np.abs(loud.matrix).max() < np.abs(quiet.matrix).max()
    assert np.isfinite(quiet.matrix).all()


def test_the_sale_is_charged_to_wallets_like_any_round(task):
    plain = run(settings(task, statistics="none", statistics_norm=None), task=task)
    bought = run(settings(task), task=task)
    # Equal ε and equal money, round by round: bids and wallets do not know what is sold.
    for one, other in zip(plain.records, bought.records, strict=True):
        assert one.sold_epsilon == other.sold_epsilon
        assert one.paid_micro == other.paid_micro
    assert bought.records[0].sellers > 0
    assert len(bought.wallets.history) == 4
    accountants = RdpAccountants(CLIENTS)
    free_first = RdpAccountants(CLIENTS)  # broken on purpose: the sale of moments left out
    for number, entry in enumerate(bought.wallets.history):
        accountants.compose(entry)
        if number > 0:
            free_first.compose(entry)
    stated = [row["epsilon_spent"] for row in client_table(bought)]
    np.testing.assert_allclose(accountants.get_epsilon(bought.config.delta), stated)
    assert (free_first.get_epsilon(bought.config.delta) < stated).all()


def test_the_moments_are_those_of_the_records_with_the_stated_noise(task):
    config = settings(task, wallet=None, budget=500.0)
    with Federation(config, task=task) as federation:
        state = federation.step(federation.start())
    assert state.whitening is not None
    moments = state.whitening.moments
    mean, covariance = moments_of(task.private.inputs.astype(np.float64))
    assert moments.deviation > 0
    # All noise of this run follows from its seed; ten deviations of 9 + 3 entries.
    assert np.abs(moments.covariance - covariance).max() < 10 * moments.deviation * (1 + np.abs(mean).max())
    quiet = run(settings(task, mode="no-noise"), task=task)
    assert quiet.whitening is not None
    # Sellers count by what they sold, so that the mean over records differs a little from the plain one.
    np.testing.assert_allclose(quiet.whitening.moments.covariance, covariance, rtol=0.1, atol=0.01)


def test_private_records_decide_nothing_before_the_noise(task):
    inputs = task.private.inputs.copy()
    inputs[5] = 1e9
    sale = MomentsSale.of(settings(task), task)
    changed = MomentsSale.of(settings(task), replace(task, private=replace(task.private, inputs=inputs)))
    assert sale.norm == changed.norm
    np.testing.assert_array_equal(sale.free.covariance, changed.free.covariance)


def test_workers_checkpoints_and_statements(task, tmp_path):
    config = settings(task)
    whole = run(config, task=task)
    with Federation(config, task=task) as federation:
        state = federation.step(federation.step(federation.start()))
        save_checkpoint(tmp_path / "run.ckpt", to_checkpoint(config, state))
    resumed = run(config, task=task, checkpoint=tmp_path / "run.ckpt")
    np.testing.assert_array_equal(whole.weights, resumed.weights)
    apart = run(config, task=task, workers=2)
    np.testing.assert_array_equal(whole.weights, apart.weights)
    said = str(whole.statement("c0"))
    assert said.count("means and second moments") == 1
    summary = json.loads(json.dumps(summarise(whole)))
    assert summary["statistics"]["kind"] == "moments"
    assert summary["statistics"]["spent"] == pytest.approx(whole.records[0].spent_micro / 1e6)
    assert [row.get("sold") for row in summary["rounds"]] == ["moments", None, None, None]
    card = json.loads(whole.save_model(tmp_path / "m.safetensors").with_suffix(".json").read_text("utf-8"))
    assert "second moments" in card["privacy"]["statistics"]
    assert card["privacy"]["certificate"]["epsilon"] == pytest.approx(card["privacy"]["largest_epsilon"])


def test_moments_help_where_inputs_are_skewed_and_nothing_is_known(task):
    scores = {}
    for statistics in ("none", "moments"):
        norm = NORM if statistics == "moments" else None
        config = settings(task, statistics=statistics, statistics_norm=norm, wallet=None, budget=500.0, rounds=6)
        scores[statistics] = run(config, task=task).score
    assert scores["moments"] > scores["none"]


def test_public_records_whiten_for_nothing(task):
    public = task.private[np.arange(0, 60)]
    own = replace(task, public=public)
    result = run(settings(own, statistics="free", statistics_norm=None), task=own)
    assert result.whitening is not None
    assert result.rounds_of_moments == 0
    mean, _ = moments_of(public.inputs.astype(np.float64))
    np.testing.assert_allclose(result.whitening.moments.mean, mean, atol=1e-6)
    assert summarise(result)["statistics"]["spent"] == 0.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trust": "local"}, "under local trust"),
        ({"rounds": 1}, "one round"),
        ({"statistics_norm": None}, "public norm"),
        ({"mode": "no-dp"}, "mode"),
    ],
)
def test_what_cannot_be_is_refused_before_anyone_bids(task, changes, words):
    with pytest.raises(ConfigurationError, match=words):
        Federation(settings(task, **changes), task=task)


def test_other_models_and_wide_inputs_are_refused(task, monkeypatch):
    deep = task.replace(model="mlp")
    with pytest.raises(ConfigurationError, match="not linear"):
        Federation(settings(deep), task=deep)
    monkeypatch.setattr(_moments, "MOST_INPUTS", 2)
    with pytest.raises(ConfigurationError, match="at most 2"):
        Federation(settings(task), task=task)


def test_a_schema_bounds_the_norm():
    strikes = pm.task("bird-strikes", public=0)
    sale = MomentsSale.of(settings(strikes, statistics_norm=None), strikes)
    rows = sale.rows(strikes.private.tensors()[0])
    assert float(rows.norm(dim=1).max()) <= sale.norm * (1 + 1e-6)


def test_all_rows_of_a_person_count_as_one(task):
    """At unit "person" what a client adds moves by at most two clip norms if all rows of a person change."""
    people = np.arange(CLIENTS * EACH) // 8
    inputs = task.private.inputs.copy()
    inputs[:8] = -inputs[:8] + 3.0
    zeroed = task.private.inputs.copy()
    zeroed[:8] = np.nan  # counts as nothing
    sums = {}
    for unit in ("person", "record"):
        for name, rows in (("as it is", task.private.inputs), ("changed", inputs), ("zeroed", zeroed)):
            private = replace(task.private, inputs=rows, persons=people if unit == "person" else None)
            own = replace(task, private=private, unit=unit)
            with Federation(settings(own, mode="no-noise", statistics_norm=1.0), task=own) as federation:
                sums[unit, name] = federation.run_clients(federation.start(), {"c0": None})[0].astype(np.float64)

    def moved(unit, name):
        return np.linalg.norm(sums[unit, name] - sums[unit, "as it is"])

    assert 0 < moved("person", "zeroed") <= 1.0 + 1e-6
    assert 0 < moved("person", "changed") <= 2.0 + 1e-6
    assert moved("record", "zeroed") > 2.0, "the subject that clips rows, not people, is caught"


def test_the_size_of_the_sale_is_checked_before_anyone_bids(task, monkeypatch):
    """The sum of moments may be longer than the model's: bits are counted for the longer one."""
    asked = []

    def bits(clients, records, multiplier, parameters, honest_share):
        asked.append(parameters)
        return 1

    monkeypatch.setattr(simulation, "bits_at_most", bits)
    for statistics in ("moments", "free"):
        Federation(settings(task, statistics=statistics), task=task)
    assert asked == [(INPUTS + 1) ** 2, 2 * (INPUTS + 1)]


def test_how_many_rows_a_person_has_is_not_public(task):
    """One person's rows are given six times more often: nothing before the noise may tell."""
    people = np.arange(CLIENTS * EACH) // 8
    rows = np.concatenate([np.repeat(np.arange(8), 6), np.arange(8, CLIENTS * EACH)])
    seen = []
    for chosen in (np.arange(CLIENTS * EACH), rows):
        private = replace(task.private[chosen], persons=people[chosen])
        sizes = task.sizes + np.array([len(chosen) - CLIENTS * EACH] + [0] * (CLIENTS - 1))
        own = replace(task, private=private, sizes=sizes, unit="person")
        assert own.declared_sizes.tolist() == [5] * CLIENTS
        result = run(settings(own, wallet=None, budget=500.0), task=own)
        with Federation(settings(own), task=own) as federation:
            assert federation.declared.tolist() == [5.0] * CLIENTS
        seen.append((result.records[0].sold_epsilon, result.records[0].paid_micro, result.whitening))
    assert seen[0][:2] == seen[1][:2]


def test_moments_of_persons_are_those_of_their_rows(task):
    """Persons have eight rows each, which nobody is told: the sum is divided by its own count of rows."""
    sale = MomentsSale.of(settings(task), task)
    wide = sale.rows(task.private.tensors()[0]).double().numpy()
    total = (wide.T @ wide).ravel()
    mean, covariance = moments_of(wide[:, :-1])
    bought = sale.bought(total, len(wide) / 8, 0.0, "person")
    np.testing.assert_allclose(bought.mean, mean, atol=1e-6)
    np.testing.assert_allclose(bought.covariance, covariance, atol=1e-5)
    broken = sale.bought(total, len(wide) / 8, 0.0)
    np.testing.assert_allclose(broken.mean, 8 * mean, atol=1e-5)
    # Noise that leaves nothing of the count does not turn the moments around.
    total[-1] = -1e9
    assert np.isfinite(sale.bought(total, len(wide) / 8, 1.0, "person").covariance).all()


def test_certificate_and_words_name_the_person(task, tmp_path):
    private = replace(task.private, persons=np.arange(CLIENTS * EACH) // 8)
    own = replace(task, private=private, unit="person")
    result = run(settings(own), task=own)
    card = json.loads(result.save_model(tmp_path / "m.safetensors").with_suffix(".json").read_text("utf-8"))
    assert card["privacy"]["unit"] == card["privacy"]["certificate"]["unit"] == "person"
    assert card["privacy"]["certificate"]["releases"] == 4  # that of moments is among them
    promised = worst_promise(result)
    assert promised is not None
    assert promised.unit == "person"
    assert "the records of one particular person at that client were used" in strength_sentence(promised)
    by_record = worst_promise(run(settings(task), task=task))
    assert "one particular record of that client was used" in strength_sentence(by_record)
    assert "for one person" in str(result.statement("c0"))
