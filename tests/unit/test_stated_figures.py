"""Figures that pages state in a sentence are computed again; a page that says something else fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq

import privmarket as pm
from privmarket.market._bids import Bids
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import scenario
from privmarket.market._objectives import AggregateError
from privmarket.mechanisms.learned._weights import load, shipped
from privmarket.privacy._accountant import certify
from privmarket.privacy._calibration import ReleaseFamily, noise_multiplier
from privmarket.privacy._gaussian import literal_noise_multiplier
from privmarket.privacy._noise import noise_deviation
from privmarket.privacy._release import ReleaseGrid, release_distance, rounded_sensitivity, sum_inflation
from privmarket.secagg import DEFAULT_COHORT, colluders_allowed, survivors_needed

ROOT = Path(__file__).parents[2]
DELTA = 1e-5
SUMS, BITS = "docs/theory/secure-sums.md", "docs/theory/finite-arithmetic.md"
MENU = "docs/theory/mean-field-menu.md"
TWO_DIGITS = noise_deviation(2)
# The market of the example on the page about the mean-field menu.
FOUR = Bids(np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4))


def sold(epsilon: float, count: int = 200) -> float:
    """What `privmarket account --sale EPSILONxCOUNT` says."""
    return certify([ReleaseFamily().event(epsilon)] * count, DELTA).epsilon


def first_underestimate() -> float:
    """The ε from which on the paper's formula adds too little noise."""
    return float(brentq(lambda e: literal_noise_multiplier(e, DELTA) - noise_multiplier(e), 1.0, 20.0))


def _uniform() -> Bids:
    return scenario("uniform").sample(np.random.default_rng(0), 1_000_000)


def extra_noise(records: int, parameters: int, sigma: float) -> float:
    """By which share a release has more noise than σ·C."""
    return ReleaseGrid.for_release(sigma, 1.0, parameters, sum_inflation(records)).deviation / sigma - 1


STATED: list[tuple[str, str, Callable[[], float]]] = [
    ("README.md", "200 sales of ε = 1 cost ε = {:.1f}, not 200", lambda: sold(1.0)),
    ("docs/fidelity.md", "it under-noises from ε = {:.1f} on", first_underestimate),
    (
        "docs/fidelity.md",
        "Σ v·ε, about {:.1f} for ten clients of Uniform",
        lambda: 10 * float((bids := _uniform()).valuation @ bids.epsilon) / bids.clients,
    ),
    (
        "docs/theory/federated.md",
        "lowers the noise that ε = 2.5 needs by a factor of {:.2f}",
        lambda: noise_multiplier(2.5) / noise_multiplier(2.5, sampling_rate=0.25),
    ),
    (SUMS, "`DEFAULT_COHORT` = {:.0f} sellers", lambda: DEFAULT_COHORT),
    (SUMS, "of 100 sellers h = 67, c = {:.0f}, T = 84", lambda: colluders_allowed(100, 2 / 3)),
    (SUMS, "c = 17, T = {:.0f}; of 7", lambda: survivors_needed(100, 2 / 3)),
    (BITS, "add e = {:.2%} to the sensitivity", lambda: sum_inflation(600)),
    (BITS, "the dithered grid {:.2%}.", lambda: rounded_sensitivity(TWO_DIGITS, 10**5) / TWO_DIGITS - 1),
    (BITS, "So the noise is {:.2%} more than σ·C", lambda: extra_noise(600, 10**5, 1.0)),
    (BITS, "(above {:.1f} at δ = 1e-5, one step)", lambda: ReleaseFamily().epsilon_ceiling),
    (BITS, "to its δ: {:.0e} at a cap of 10", lambda: (1 + math.exp(10)) * 1e4 * release_distance(2**28)),
    (BITS, "but {:.0e} at a cap of 34", lambda: (1 + math.exp(34)) * 1e4 * release_distance(2**28)),
]


def says(page: str, sentence: str, value: float) -> bool:
    text = " ".join(page.split()).replace("%", " %").replace("  %", " %")
    return sentence.format(value).replace("%", " %").replace("  %", " %") in text


@pytest.mark.parametrize(
    ("page", "sentence", "compute"), STATED, ids=lambda x: x[:40] if isinstance(x, str) else ""
)
def test_the_page_says_what_the_code_gives(page, sentence, compute):
    assert says((ROOT / page).read_text(encoding="utf-8"), sentence, compute())


def test_another_figure_would_be_found():
    page, sentence, compute = STATED[0]
    assert not says((ROOT / page).read_text(encoding="utf-8"), sentence, compute() + 0.1)


def literal_row(clients: int) -> str:
    """A row of fidelity's table about `mfg-regretnet:literal`: 20 markets, and what its weights' file says."""
    name, law = "mfg-regretnet:literal", scenario("uniform")
    types = law.sample(np.random.default_rng(clients), clients, (20,))
    outcome = pm.mechanism(name).run(types, clients / 2)
    shares = (outcome.epsilon / types.epsilon).sum(axis=-1).mean()
    underpaid = (outcome.payment < types.valuation * types.epsilon).mean()
    below_sold = (outcome.payment < types.valuation * outcome.epsilon * (1 - 1e-9)).mean()
    bought, bound = outcome.epsilon.sum(axis=-1).mean(), fluid_bound(law, clients, clients / 2)
    spent = outcome.payment.sum(axis=-1).mean() / (clients / 2)
    cases = load(shipped(name), name).facts["measured"]["cases"]
    regret = next((f"{case['regret_share']:.0%}" for case in cases if case["clients"] == clients), "not attacked")
    paid = f"{underpaid:.1%} | {below_sold:.1%}"
    return f"| {clients:,} | {shares:.3f} | {paid} | {bought:.2f} ({bound:.1f}) | {spent:.2f} | {regret} |"


@pytest.mark.parametrize("clients", [10, 30, 100, 1000])
def test_the_table_of_the_papers_letter(clients):
    assert literal_row(clients) in (ROOT / "docs/fidelity.md").read_text(encoding="utf-8")


def test_no_release_of_a_million_records_has_a_third_of_a_per_cent_more_noise():
    """docs/theory/finite-arithmetic.md: below 0.33 %, for models of all sizes."""
    extra = [
        extra_noise(records, 10**power, sigma)
        for records in (1, 600, 1_000_000)
        for power in range(8)
        for sigma in (0.1, 0.5, 1.0, 3.0, 10.0, 30.0)
    ]
    assert 0.003 < max(extra) < 0.0033
    assert "below 0.33 % more for up to 1,000,000 records" in (ROOT / BITS).read_text(encoding="utf-8")


def test_the_example_of_the_mean_field_menu():
    rule, page = pm.mechanism("mean-field-menu", epsilon_max=1.0), (ROOT / MENU).read_text(encoding="utf-8")
    levels, outcome = rule.price_levels(FOUR, 6.0), rule.run(FOUR, 6.0)
    assert f"the levels are {', '.join(f'{level:.0f}' for level in levels)}:" in page
    assert (outcome.epsilon.tolist(), outcome.payment.tolist()) == ([1, 1, 0, 0], [3, 3, 0, 0])
    claimed = Bids(np.array([1.0, 2.0, 1.5, 4.0]), np.ones(4))
    assert rule.price_levels(claimed, 6.0)[2] == levels[2] == 2
    assert rule.run(claimed, 6.0).payment[2] == 2


# (rule, sold, paid, errors at H = 0.1 and at H = 0.3): what each buys from the four clients with a budget of 6.
RATIONS = {
    "threshold price": (pm.mechanism("mean-field-menu", epsilon_max=1.0), [1, 1, 0, 0], 6.0, (0.062, 0.142)),
    "ration": (pm.mechanism("ration", unit_price=5.0), [0.3] * 4, 6.0, (0.118, 0.118)),
    "two-step": (
        pm.mechanism("two-step", unit_price=5.0, bulk_price=2.5, bulk_multiple=2.0, epsilon_max=1.0),
        [0.48, 0.48, 0.22, 0.22],
        5.78,
        (0.092, 0.101),
    ),
}


@pytest.mark.parametrize("name", RATIONS)
def test_equal_amounts_are_better_where_clients_differ(name):
    """docs/theory/aggregate-trust.md says so, and that two steps are better still."""
    rule, sold, paid, errors = RATIONS[name]
    outcome = rule.run(FOUR, 6.0)
    assert outcome.epsilon == pytest.approx(sold, abs=0.005)
    assert outcome.payment.sum() == pytest.approx(paid, abs=0.005)
    found = [float(AggregateError(kappa=0.01, heterogeneity=h).value(outcome, FOUR)) for h in (0.1, 0.3)]
    assert found == pytest.approx(errors, abs=0.0005)
