"""Every registered mechanism is attacked on what it promises; broken ones must be caught."""

from __future__ import annotations

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import promises_of
from tests.conftest import awkward_budgets, awkward_markets
from tests.laws.broken import (
    BROKEN,
    ClaimsCollusionProof,
    ClaimsEpsilonTruth,
    FirstPrice,
    LooksAtOwnReport,
    OffByOneThreshold,
    PaysHalfTheCost,
)

CLASSICAL = [name for name in pm.mechanism_names() if name not in pm.mechanisms.learned_names()]
PROMISES = [(name, promise) for name in CLASSICAL for promise in promises_of(pm.mechanism(name))]


@pytest.mark.parametrize(("name", "promise"), PROMISES, ids=[f"{n}-{p.label}" for n, p in PROMISES])
@pytest.mark.parametrize("clients", [1, 2, 6])
def test_promise_holds_on_awkward_markets(name, promise, clients, rng):
    types = awkward_markets(rng, 30, clients)
    finding = promise.check(pm.mechanism(name), types, awkward_budgets(rng, 30), rng)
    assert finding.held, f"{finding.promise}: {finding.worst} {finding.detail}"


@pytest.mark.parametrize(("name", "promise"), PROMISES, ids=[f"{n}-{p.label}" for n, p in PROMISES])
def test_promise_holds_on_the_scenarios(name, promise, rng):
    # Two markets of each distribution, attacked together: an attack takes as long on many markets as on one.
    samples = [scenario(distribution).sample(rng, 10, (2,)) for distribution in ("uniform", "bimodal", "lognormal")]
    types = pm.Bids(*(np.concatenate([getattr(one, part) for one in samples]) for part in ("valuation", "epsilon")))
    finding = promise.check(pm.mechanism(name), types, 6.0, rng)
    assert finding.held, f"{finding.promise}: {finding.worst} {finding.detail}"


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.name)
def test_broken_rules_are_caught(cls, rng):
    rule = cls()
    types = scenario("uniform").sample(rng, 8, (20,))
    broken = getattr(rule, "breaks", tuple(promise.label for promise in rule.guarantees))
    found = [promise.check(rule, types, 4.0, rng) for promise in rule.guarantees]
    assert tuple(finding.promise for finding in found if not finding.held) == broken


# The others round to cents, or post prices of their own.
IN_ANY_CURRENCY = [
    FirstPrice,
    OffByOneThreshold,
    PaysHalfTheCost,
    ClaimsEpsilonTruth,
    LooksAtOwnReport,
    ClaimsCollusionProof,
]


@pytest.mark.parametrize("cls", IN_ANY_CURRENCY, ids=lambda cls: cls.name)
@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_broken_rules_are_caught_in_any_currency(cls, unit, rng):
    rule = cls()
    types = scenario("uniform").sample(rng, 8, (20,))
    types = types.replace(valuation=types.valuation * unit)
    assert not any(promise.check(rule, types, 4.0 * unit, rng).held for promise in rule.guarantees)


def test_every_rule_that_is_not_literal_promises_something():
    assert all(pm.mechanism(name).guarantees for name in CLASSICAL)


@pytest.mark.parametrize("name", CLASSICAL)
def test_unilateral_agrees_with_auctions_run_one_by_one(name, rng):
    rule = pm.mechanism(name)
    types = scenario("uniform").sample(rng, 7, (2,))
    lies = types.replace(valuation=rng.random((2, 7)), epsilon=types.epsilon * rng.uniform(0.3, 1, (2, 7)))
    answered = rule.unilateral(types, lies, 3.0)
    for market in range(2):
        for client in range(7):
            v, e = types.valuation[market].copy(), types.epsilon[market].copy()
            v[client], e[client] = lies.valuation[market, client], lies.epsilon[market, client]
            alone = rule.run(pm.Bids(v, e), 3.0)
            assert answered.epsilon[market, client] == pytest.approx(alone.epsilon[client], abs=1e-9)
            assert answered.payment[market, client] == pytest.approx(alone.payment[client], abs=1e-9)
