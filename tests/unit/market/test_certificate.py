"""Upper bounds on regret: they hold at reports that nobody searched, and they are near what can be gained."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import LEVELS
from privmarket.market._certificate import certified_regret
from privmarket.market._distributions import scenario
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


torch = pytest.importorskip("torch")


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
    assert pm.audit("mean-field-menu", clients=6, budget=3.0, profiles=1, attack="quick").certified is None
