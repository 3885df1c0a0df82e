"""Upper bounds on regret: they hold at reports that nobody searched, and they are near what can be gained."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import LEVELS
from privmarket.market._certificate import certified_regret
from privmarket.market._distributions import scenario
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from tests.laws.broken import OwnRation

UNIFORM = scenario("uniform")
MENUS = ["mean-field-menu", "ration", "two-step", "graded-ration", "precision-menu"]


@pytest.mark.parametrize("name", MENUS)
def test_menus_leave_nothing_to_gain(name):
    bids = UNIFORM.sample(np.random.default_rng(2), 8)
    found = certified_regret(pm.mechanism(name), bids, 4.0)
    assert found.upper.max() <= 1e-6
    assert "any offer" in found.reports


class _ClaimsPieces(OwnRation):
    """Looks like a menu, but the ration grows with the client's own report."""

    def own_pieces(self, bids, budget):
        return np.full((bids.clients, 1), 0.9), np.empty((bids.clients, 0))


def test_a_menu_that_moves_with_the_own_bid_is_caught():
    bids = UNIFORM.sample(np.random.default_rng(3), 6)
    assert certified_regret(_ClaimsPieces(), bids, 1.0).lower.max() > 1e-3


def test_rules_without_a_certificate_and_batches_are_refused():
    bids = UNIFORM.sample(np.random.default_rng(0), 4)
    with pytest.raises(ConfigurationError, match="no upper bound"):
        certified_regret(pm.mechanism("pac"), bids, 1.0)
    with pytest.raises(ConfigurationError, match="one market"):
        certified_regret(pm.mechanism("ration"), UNIFORM.sample(np.random.default_rng(0), 4, (2,)), 1.0)


class _Bonus(MeanFieldMenu):
    """Pays a whole unit more to who reports about 0.5, which no menu's pieces show."""

    name = "bonus"

    def clear(self, bids, budget):
        outcome = super().clear(bids, budget)
        hit = (np.abs(bids.valuation - 0.5) < 1e-4) & (outcome.epsilon > 0)
        return pm.Outcome(outcome.epsilon, outcome.payment + hit)


class _OtherPieces(_Bonus):
    def own_pieces(self, bids, budget):
        return np.full((bids.clients, 2), [0.49995, 0.50005]), np.empty((bids.clients, 0))


def test_a_rule_that_clears_in_another_way_inherits_no_certificate():
    bids = pm.Bids([0.1, 0.2, 0.3, 0.9], [1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ConfigurationError, match="no upper bound"):
        certified_regret(_Bonus(), bids, 10.0)
    assert certified_regret(_OtherPieces(), bids, 10.0).lower[0] > 0.9


torch = pytest.importorskip("torch")


@pytest.mark.parametrize("aim", ["total-epsilon", "aggregation-error", "aggregate-error"])
def test_the_pieces_of_a_learned_menu_are_those_of_its_curve(aim):
    rule = pm.mechanism("mfg-menunet", objective=aim)
    bids = UNIFORM.sample(np.random.default_rng(2), 8)
    curve = rule.curve_for(8, 0.5)
    prices, _ = rule.own_pieces(bids, 4.0)
    assert prices.shape[1] >= curve.price.size
    # Every step of what a client sells lies at one of the prices.
    asked = np.linspace(0.0, 1.5, 3_000)
    valuation = np.tile(bids.valuation, (asked.size, 1))
    valuation[:, 0] = asked
    outcome = rule.run(pm.Bids(valuation, np.tile(bids.epsilon, (asked.size, 1))), 4.0)
    jumps = np.flatnonzero(np.abs(np.diff(outcome.epsilon[:, 0])) > 1e-9)
    assert jumps.size > 0
    for jump in jumps:
        assert ((prices[0] >= asked[jump] - 1e-9) & (prices[0] <= asked[jump + 1] + 1e-9)).any()
    assert certified_regret(rule, bids, 4.0).upper.max() <= 1e-6


def test_a_learned_menu_with_floors_has_no_certificate():
    rule = pm.mechanism("mfg-menunet", service_share=0.3, service_valuation=0.5)
    with pytest.raises(ConfigurationError, match="with floors"):
        certified_regret(rule, UNIFORM.sample(np.random.default_rng(2), 8), 4.0)


def test_a_network_that_clears_in_another_way_inherits_no_certificate():
    rule = pm.mechanism("regretnet")
    kind = type(
        "Changed", (type(rule),), {"clear": lambda self, bids, budget: super(kind, self).clear(bids, budget)}
    )
    with pytest.raises(ConfigurationError, match="no upper bound"):
        certified_regret(kind(), UNIFORM.sample(np.random.default_rng(2), 8), 4.0)


@pytest.mark.parametrize("name", ["regretnet", "mfg-regretnet", "dm-regretnet"])
@pytest.mark.parametrize("clients", [10, 13])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_report_of_thousands_beats_the_bound_of_a_network(name, clients):
    rule = pm.mechanism(name)
    rng = np.random.default_rng(clients)
    bids = UNIFORM.sample(rng, clients)
    budget = 0.5 * clients
    found = certified_regret(rule, bids, budget)
    truth = rule.run(bids, budget).utility(bids)
    best = np.zeros(clients)
    for report in np.concatenate([np.linspace(0.0, 1.2, 400), rng.uniform(0, 3, 50), [10.0, 90.0]]):
        lies = bids.replace(valuation=np.full(clients, report))
        outcome = rule.unilateral(bids, lies, budget)
        best = np.maximum(best, outcome.utility(bids) - truth)
    assert (best <= found.upper).all()
    # The lower bound is a real gain, and not below what a grid of 400 reports finds.
    assert 0.99 * best.max() <= found.lower.max() <= found.upper.max()
    attacked = LEVELS["quick"].valuation(rule, bids, budget, rng).gain
    assert (attacked <= found.upper).all()
    assert found.ratio <= 2.0


def test_the_audit_shows_the_bound_beside_what_was_found():
    report = pm.audit("mean-field-menu", clients=6, budget=3.0, profiles=2, attack="quick", certify=True)
    assert report.certified.maximum <= 1e-6
    assert report.to_dict()["certified"]["found"] == 0.0
    assert report.certified.not_closed == 0
    assert pm.audit("mean-field-menu", clients=6, budget=3.0, profiles=1, attack="quick").certified is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_boxes_in_which_figures_overflow_are_not_left_out():
    """A box of this width makes scores that are no numbers; the client gains most within it."""
    rule = pm.mechanism("dm-regretnet")
    bids = pm.Bids([0.679181533021365], [4.363433661404766])
    budget = 2.050250048989229
    centre = torch.linspace(0.2, 60.0, 120, dtype=torch.float64)
    dense = np.linspace(-1.0, 1.0, 21)
    for radius in (0.01, 0.05, 0.2, 1.0):
        _, bound = rule.own_utility(bids, budget, 0, centre, torch.full_like(centre, radius))
        reports = np.maximum(centre.numpy()[:, None] + radius * dense, 0.0)
        outcome = rule.run(pm.Bids(reports.reshape(-1, 1), np.full((reports.size, 1), bids.epsilon[0])), budget)
        utility = (outcome.payment - bids.valuation * outcome.epsilon).reshape(reports.shape)
        assert (utility.max(axis=1) <= bound + 1e-9 * budget).all()
    assert certified_regret(rule, bids, budget).upper[0] > 1.5


@pytest.mark.parametrize("name", ["regretnet", "mfg-regretnet", "dm-regretnet"])
@pytest.mark.parametrize("clients", [1, 2, 3, 4, 5])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_report_beats_the_bound_in_markets_smaller_than_any_trained_on(name, clients):
    rule = pm.mechanism(name)
    bids = UNIFORM.sample(np.random.default_rng(clients), clients)
    budget = 0.5 * clients
    found = certified_regret(rule, bids, budget)
    truth = rule.run(bids, budget).utility(bids)
    top = float(bids.valuation.max())
    reports = np.concatenate([np.linspace(0.0, 2 * top, 2_000), np.geomspace(2 * top, 100 * top, 500)])
    for client in range(clients):
        valuation = np.tile(bids.valuation, (reports.size, 1))
        valuation[:, client] = reports
        outcome = rule.run(pm.Bids(valuation, np.tile(bids.epsilon, (reports.size, 1))), budget)
        utility = outcome.payment[:, client] - bids.valuation[client] * outcome.epsilon[:, client]
        assert utility.max() - truth[client] <= found.upper[client]
    # Nobody is paid more than the budget, and where nothing better is known the bound says so.
    assert (found.upper <= budget - truth + 1e-8 * budget).all()
    assert (found.closed | (found.upper >= budget - truth)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_bound_that_does_not_close_is_marked():
    bids = pm.Bids([0.679181533021365], [4.363433661404766])
    found = certified_regret(pm.mechanism("regretnet"), bids, 2.050250048989229)
    assert not found.closed.any()
    assert found.upper[0] < 2.05
