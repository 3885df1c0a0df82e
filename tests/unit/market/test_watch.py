"""Promises about outcomes are held against every auction that an audit runs, and `unilateral` against `run`."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import OutcomeError
from privmarket.market._attacks import GridAttack, Level
from privmarket.market._audit import audit
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer

UNIFORM = scenario("uniform")
FEW = Level(
    GridAttack(valuations=5, shares=2, neighbours=2),
    GridAttack(valuations=5, shares=1, neighbours=2),
    GridAttack(shares=3, over_valuation=False),
)
ALL = (IndividuallyRational(), BudgetFeasible(), WithinOffer(), Truthful("valuation"), Truthful("epsilon"))


class Posted(pm.Mechanism):
    """A posted price, with the money split evenly: keeps every promise."""

    name = "posted"
    guarantees = ALL

    def clear(self, bids, budget):
        sold = np.where(bids.valuation <= 0.5, np.minimum(bids.epsilon, budget / bids.clients / 0.5), 0.0)
        return pm.Outcome(sold, self.pay(bids, 0.5 * sold))

    def pay(self, bids, pay):
        return pay


class TripleWhenAllAreCheap(Posted):
    def pay(self, bids, pay):
        return pay * np.where((bids.valuation < 0.2).all(axis=-1, keepdims=True), 3.0, 1.0)


class TripleWhenAllAreAlike(Posted):
    def pay(self, bids, pay):
        return pay * np.where((bids.valuation == bids.valuation[..., :1]).all(axis=-1, keepdims=True), 3.0, 1.0)


class TripleWhenOneIsDear(Posted):
    """Somebody above 1.5, which no client of this scenario is, but one may say so."""

    def pay(self, bids, pay):
        return pay * np.where((bids.valuation > 1.5).any(axis=-1, keepdims=True), 5.0, 1.0)


class NothingWhenOneIsDear(Posted):
    def pay(self, bids, pay):
        return np.where((bids.valuation > 1.5).any(axis=-1, keepdims=True), 0.0, pay)


@pytest.mark.parametrize(
    ("cls", "promise"),
    [
        (TripleWhenAllAreCheap, "within budget"),
        (TripleWhenAllAreAlike, "within budget"),
        (TripleWhenOneIsDear, "within budget"),
        (NothingWhenOneIsDear, "individually rational"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_markets_that_chance_seldom_makes_convict(cls, promise, capsys):
    report = audit(cls(), UNIFORM, 5, 2.5, profiles=1, attack=FEW)
    assert promise in report.broken
    witness = report.witnesses[promise]
    assert witness.gain > 0.1
    assert witness.market == ()
    exec(report.replay(promise).replace(f"...  # put the audited rule here: {cls.name}", "made()"), {"made": cls})
    assert float(capsys.readouterr().out) == pytest.approx(witness.gain)
    assert any("designed markets" in words for words in report.attacks)


def test_a_rule_that_keeps_its_promises_everywhere_breaks_none():
    assert audit(Posted(), UNIFORM, 5, 2.5, profiles=2, attack=FEW).broken == ()


def test_pay_below_a_reported_cost_is_seen_in_the_answers_of_unilateral():
    """All that is seen of a rule with its own answers is what the deviator gets, and that is enough."""

    class Fast(Posted):
        def clear(self, bids, budget):
            outcome = super().clear(bids, budget)
            dear = (bids.valuation > 1.5) & (bids.valuation < 2.0)
            little = np.minimum(bids.epsilon, 0.05)
            return pm.Outcome(np.where(dear, little, outcome.epsilon), np.where(dear, little, outcome.payment))

        def unilateral(self, bids, reports, budget):
            return self.run(reports, budget)  # nobody meets the others in this rule

    report = audit(Fast(), UNIFORM, 5, 2.5, profiles=1, attack=FEW)
    assert "individually rational" in report.broken
    assert report.witnesses["individually rational"].valuation > 1.5


def test_a_rule_whose_answers_are_not_what_it_runs_is_named():
    class PaysLess(Posted):
        name = "pays less"

        def pay(self, bids, pay):
            return np.minimum(pay, 0.5 * pay + 0.5 * bids.valuation * pay)

        def unilateral(self, bids, reports, budget):
            return self.run(bids, budget)

    with pytest.raises(OutcomeError, match=r"pays less: to client .* unilateral answers .*mend unilateral"):
        audit(PaysLess(), UNIFORM, 5, 2.5, profiles=1, attack=FEW)


@pytest.mark.parametrize(
    "price",
    [lambda bids, budget: bids.valuation.max(), lambda bids, budget: float(budget.flat[0]) / 5],
    ids=["clients of other markets", "budget of another market"],
)
def test_a_rule_that_mixes_its_markets_is_named(price):
    class Mixes(Posted):
        name = "mixes"

        def clear(self, bids, budget):
            sold = np.minimum(bids.epsilon, 0.01)
            return pm.Outcome(sold, sold * price(bids, budget))

    with pytest.raises(OutcomeError, match=r"mixes: in a market by itself client .* axis=-1"):
        audit(Mixes(), UNIFORM, 5, 2.5, profiles=1, attack=FEW)


def test_a_lie_of_unilateral_that_gains_is_run():
    class Boasts(Posted):
        """Right nearly everywhere, and wrong where the largest gain is found."""

        def unilateral(self, bids, reports, budget):
            outcome = super().unilateral(bids, reports, budget)
            return pm.Outcome(outcome.epsilon, outcome.payment + (reports.valuation == 0.0))

    with pytest.raises(OutcomeError, match="unilateral answers"):
        audit(Boasts(), UNIFORM, 5, 2.5, profiles=1, attack=FEW)


def test_a_rule_that_cannot_clear_a_designed_market_is_still_audited():
    class Divides(Posted):
        def pay(self, bids, pay):
            if (bids.valuation.sum(axis=-1) == 0).any():
                raise ZeroDivisionError("nobody has a cost")
            return pay * np.where((bids.valuation == bids.valuation[..., :1]).all(axis=-1, keepdims=True), 3.0, 1.0)

    report = audit(Divides(), UNIFORM, 5, 2.5, profiles=1, attack=FEW)
    assert report.broken == ("within budget",)
    assert "in 3 of these the rule raised an error" in report.attacks[-1]


def test_dust_of_a_sale_in_a_sampled_market_owes_nobody_anything():
    class Dust(pm.Mechanism):
        name = "dust"
        guarantees = (IndividuallyRational(),)

        def clear(self, bids, budget):
            return pm.Outcome(1e-17 * bids.epsilon, np.zeros(bids.shape))

    report = pm.audit(Dust, clients=4, budget=2.0, profiles=1, attack="quick")
    assert report.broken == ()
    assert report.rationality_violations == 0.0
