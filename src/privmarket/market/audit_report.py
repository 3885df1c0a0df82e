"""The audit: attack a mechanism on sampled markets and say what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from privmarket.counted import counted
from privmarket.errors import ConfigurationError
from privmarket.market import attacks
from privmarket.market.bids import Array, Bids
from privmarket.market.bounds import first_best_bound, fluid_bound
from privmarket.market.collusion import CoalitionAttack
from privmarket.market.evaluation import beyond_rounding, judge
from privmarket.market.guarantees import ApproximatelyTruthful, OutcomeGuarantee, Truthful
from privmarket.market.mechanism import Guarantee, Mechanism
from privmarket.market.objectives import TOTAL_EPSILON, Objective
from privmarket.market.outcome import Outcome
from privmarket.market.scenarios import Law

_VALUE_MARKETS = 200
_VALUE_CELLS = 2_000_000


@dataclass(frozen=True)
class RegretSummary:
    """What misreports gain per client and round: in money, and as a share of the mean payment."""

    mean: float
    percentile_99: float
    maximum: float
    mean_share: float
    percentile_99_share: float
    maximum_share: float


@dataclass(frozen=True)
class CoalitionSummary:
    """What coalitions of `size` clients gain by joint misreports, in money and as a share of their truthful pay."""

    size: int
    mean: float
    maximum: float
    mean_share: float


@dataclass(frozen=True)
class QuintileRow:
    """One fifth of the clients by valuation, cheapest first: who sells, how much, for what."""

    highest_valuation: float
    participation: float
    mean_epsilon: float
    mean_payment: float


@dataclass(frozen=True)
class AuditReport:
    """Everything `privmarket audit` says. Means are per market unless named otherwise.

    Attributes:
        profiles: markets that were attacked; markets: markets that the other figures are averaged over.
        regret: gains from misreports of valuation and ε together.
        regret_in_valuation: gains from misreports of the valuation alone.
        regret_in_epsilon: gains from misreports of ε alone.
        rationality_violations: share of (client, market) pairs paid less than their cost.
        budget_violations: share of markets that spend more than the budget.
        offer_violations: share of (client, market) pairs that sell more than they offered.
        collusion: gains from joint misreports of coalitions; None where none were attacked.
        fluid_ratio: objective over the fluid bound (for an error: bound over objective); see `bounds`.
        declared: what the mechanism promises; broken: which of these the audit saw broken.
    """

    mechanism: str
    scenario: str
    clients: int
    budget: float
    profiles: int
    markets: int
    seed: int
    objective: str
    regret: RegretSummary
    regret_in_valuation: RegretSummary
    regret_in_epsilon: RegretSummary
    collusion: CoalitionSummary | None
    rationality_violations: float
    budget_violations: float
    worst_overspend: float
    offer_violations: float
    epsilon_bought: float
    spend: float
    spend_over_budget: float
    welfare: float
    welfare_over_budget: float
    epsilon_per_unit_spent: float
    objective_value: float
    fluid_bound: float
    fluid_ratio: float
    first_best_bound: float
    first_best_ratio: float
    participation: float
    quintiles: tuple[QuintileRow, ...]
    declared: tuple[str, ...]
    broken: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The report as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        gains = beyond_rounding(self.regret.maximum, self.budget)
        gain = f"{self.regret.maximum_share:.2%} of the mean payment" if gains else "nothing"
        return "\n".join(
            (
                f"{self.mechanism} on {self.scenario}: {counted(self.clients, 'client')}, budget {self.budget:g}",
                f"  buys {self.epsilon_bought:.4g} ε for {self.spend:.4g}: {self.fluid_ratio:.1%} of the bound",
                f"  best misreport found gains {gain} ({counted(self.profiles, 'market')} attacked)",
                f"  underpaid {self.rationality_violations:.2%} of clients, over budget "
                f"{self.budget_violations:.2%} of markets, beyond the offer {self.offer_violations:.2%} of clients",
                f"  promises: {', '.join(self.declared) or 'none'}",
                f"  promises seen broken: {', '.join(self.broken) or 'none'}",
            )
        )


def audit(
    mechanism: Mechanism,
    law: Law,
    clients: int,
    budget: float,
    *,
    profiles: int = 10,
    seed: int = 0,
    attack: attacks.Attack | attacks.Level = attacks.LEVELS["strong"],
    objective: Objective = TOTAL_EPSILON,
    coalition: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> AuditReport:
    """Samples `profiles` markets from `law`, attacks each, and compares the outcome with the bounds.

    Args:
        attack: a level of `attacks.LEVELS`, or one attack on (v, ε) beside which the strong attacks on v alone
            and on ε alone run.
        coalition: also search joint misreports of coalitions of so many clients.
    """
    strong = attacks.LEVELS["strong"]
    level = attack if isinstance(attack, attacks.Level) else attacks.Level(attack, strong.valuation, strong.epsilon)
    if clients < 1 or profiles < 1:
        raise ConfigurationError(f"{clients} clients, {profiles} profiles", "give at least 1 of each")
    rng = np.random.default_rng(seed)
    # Attacks are dear and auctions cheap: value is averaged over more markets than are attacked.
    markets = max(profiles, min(_VALUE_MARKETS, _VALUE_CELLS // clients))
    types = law.sample(rng, clients, (markets,))
    outcome = mechanism.run(types, budget)
    gains: dict[str, list[Array]] = {"joint": [], "valuation": [], "epsilon": []}
    for index in range(profiles):
        market = types[index]
        in_valuation = level.valuation(mechanism, market, budget, rng)
        in_epsilon = level.epsilon(mechanism, market, budget, rng)
        joint = level.joint(mechanism, market, budget, rng).worst_of(in_valuation).worst_of(in_epsilon)
        for key, regret in (("joint", joint), ("valuation", in_valuation), ("epsilon", in_epsilon)):
            gains[key].append(regret.gain)
        progress(index + 1)
    paid = float(outcome.payment.mean())
    summaries = {key: _summary(np.stack(found), paid) for key, found in gains.items()}
    return AuditReport(
        mechanism=mechanism.name,
        scenario=law.name,
        clients=clients,
        budget=budget,
        profiles=profiles,
        markets=markets,
        seed=seed,
        objective=objective.name,
        regret=summaries["joint"],
        regret_in_valuation=summaries["valuation"],
        regret_in_epsilon=summaries["epsilon"],
        collusion=None if coalition is None else _collusion(mechanism, types[:profiles], budget, coalition, rng),
        **_outcome_figures(types, outcome, budget),
        **_bound_figures(types, outcome, law, budget, objective),
        quintiles=_quintiles(types, outcome),
        declared=tuple(promise.label for promise in mechanism.guarantees),
        broken=_broken(mechanism, types, outcome, budget, summaries, rng),
    )


def _summary(gain: Array, paid: float) -> RegretSummary:
    figures = float(gain.mean()), float(np.percentile(gain, 99)), float(gain.max())
    return RegretSummary(*figures, *(figure / paid if paid > 0 else 0.0 for figure in figures))


def _collusion(
    mechanism: Mechanism, types: Bids, budget: float, size: int, rng: np.random.Generator
) -> CoalitionSummary:
    found = CoalitionAttack(size)(mechanism, types, budget, rng)
    return CoalitionSummary(size, float(found.gain.mean()), float(found.gain.max()), found.share)


def _outcome_figures(types: Bids, outcome: Outcome, budget: float) -> dict[str, float]:
    merit = judge(types, outcome, budget)
    return {
        "rationality_violations": merit.underpaid,
        "budget_violations": merit.over_budget,
        "worst_overspend": merit.worst_overspend,
        "offer_violations": merit.over_offer,
        "epsilon_bought": merit.epsilon,
        "spend": merit.spend,
        "spend_over_budget": merit.spend / budget,
        "welfare": merit.welfare,
        "welfare_over_budget": merit.welfare / budget,
        "epsilon_per_unit_spent": merit.epsilon_per_money,
        "participation": merit.participation,
    }


def _bound_figures(
    types: Bids, outcome: Outcome, law: Law, budget: float, objective: Objective
) -> dict[str, float]:
    value = float(objective.value(outcome, types).mean())
    fluid = fluid_bound(law, types.clients, budget, objective)
    best = first_best_bound(law, types.clients, budget, objective)

    def ratio(bound: float) -> float:
        return value / bound if objective.larger_is_better else bound / value

    return {
        "objective_value": value,
        "fluid_bound": fluid,
        "fluid_ratio": ratio(fluid),
        "first_best_bound": best,
        "first_best_ratio": ratio(best),
    }


def _quintiles(types: Bids, outcome: Outcome) -> tuple[QuintileRow, ...]:
    order = np.argsort(types.valuation, axis=None, kind="stable")
    rows = []
    for part in np.array_split(order, min(5, order.size)):
        sold, paid = outcome.epsilon.ravel()[part], outcome.payment.ravel()[part]
        rows.append(
            QuintileRow(
                highest_valuation=float(types.valuation.ravel()[part].max()),
                participation=float((sold > 0).mean()),
                mean_epsilon=float(sold.mean()),
                mean_payment=float(paid.mean()),
            )
        )
    return tuple(rows)


def _broken(
    mechanism: Mechanism,
    types: Bids,
    outcome: Outcome,
    budget: float,
    found: dict[str, RegretSummary],
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """Labels of the declared promises that the outcome or the attacks contradict."""

    def held(promise: Guarantee) -> bool:
        if isinstance(promise, OutcomeGuarantee):
            return promise.holds(types, outcome, budget).held
        if isinstance(promise, Truthful):
            summary = found["valuation" if promise.in_ == "valuation" else "joint"]
            return not beyond_rounding(summary.maximum, budget)
        if isinstance(promise, ApproximatelyTruthful):
            return found["joint"].mean_share <= promise.max_regret
        return promise.check(mechanism, types[:1], budget, rng).held

    return tuple(promise.label for promise in mechanism.guarantees if not held(promise))
