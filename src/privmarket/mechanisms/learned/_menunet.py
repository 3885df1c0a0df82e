"""MFG-MenuNet: an exact menu with a learned curve.

For total ε and the aggregation error the curve sells shares of each offer (the mean-field menu); for the error of a
sum under aggregate trust it sells rations, the same amounts to everybody (the ration menu).

What is learned is only *which* menu is posted. Truthfulness, individual rationality and the budget come from
those menus and hold for every curve, on every distribution of clients, also on distributions that training never
saw. A curve is chosen by public configuration alone: the objective, the buyer's belief about the distribution,
the number of clients, the budget. A curve chosen by looking at bids would give a client a say in the menu that it
faces.

Runs on NumPy: torch is needed to learn a curve, not to use one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._settings import DELTA, EPSILON_MAX, HETEROGENEITY, HONEST_SHARE, KAPPA
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._distributions import SCENARIOS
from privmarket.market._mechanism import budget_column
from privmarket.market._menus import POSTED_PRICE, MenuCurve, RationCurve
from privmarket.market._objectives import AggregateError, AggregationError, Objective, objective as objective_called
from privmarket.market._outcome import Outcome
from privmarket.market._ration_design import bias_to_noise as ration_bias_to_noise, two_step_curve
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from privmarket.mechanisms._ration_menu import face, face_all
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, shipped

AGGREGATE_WEIGHTS = "mfg-menunet-aggregate"
"""The file of the curves for the error under aggregate trust, beside that of the others."""


@dataclass(frozen=True, eq=False)
class LearnedCurve:
    """A curve and the market it was learned for.

    Attributes:
        curve: the menu.
        objective: name of the objective.
        scenario: the distribution.
        budget_per_client: money per client.
        bias_to_noise: r = H²·N/κ for the aggregation error, H²·N²·(h/n)/κ for the aggregate error, 0 for total
            ε. Markets with equal r, distribution and budget per client have the same best curve.
    """

    curve: MenuCurve | RationCurve
    objective: str
    scenario: str
    budget_per_client: float
    bias_to_noise: float


class MfgMenuNet(MeanFieldMenu):
    """Mean-field menu whose curve was learned for the buyer's objective.

    Args:
        objective: what the buyer wants, an objective or its name.
        kappa, heterogeneity: of the aggregation error or the aggregate error, when it is given by its name.
        honest_share, delta: of the aggregate error.
        scenario: the buyer's public belief about the distribution of clients; a wrong one costs value, never
            truthfulness.
        epsilon_max: public limit on offers.
        service_share, service_valuation: a floor: everyone with v ≤ `service_valuation` sells at least this share
            of its ε, whenever the budget can pay for that together with one client's reserve; not for the aggregate
            error.
        unit_compensation: a floor: every unit of ε sold is paid at least this; not for the aggregate error.
        service_amount: floor for the aggregate error: ε that everybody below the highest price can sell before
            anybody sells more, whenever the budget covers N times that amount at that price.
        weights: a file written by `privmarket train mfg-menunet`, or weights in memory; the shipped curves by
            default.
        untrained: where learning starts: a posted price, or the two-step menu of the fluid limit for the aggregate
            error. The rule is then called `mfg-menunet:untrained`; it is as truthful as the trained one.
    """

    name: ClassVar[str] = "mfg-menunet"
    market_facts: ClassVar[tuple[str, ...]] = ("scenario", "epsilon_max")
    _last_facing: tuple[Bids, Array, list[_Facing]] | None = None

    def __init__(
        self,
        objective: str | Objective = "total-epsilon",
        kappa: float = KAPPA,
        heterogeneity: float = HETEROGENEITY,
        scenario: str = "uniform",
        epsilon_max: float = EPSILON_MAX,
        service_share: float = 0.0,
        service_valuation: float = 0.0,
        unit_compensation: float = 0.0,
        weights: str | Path | Weights | None = None,
        honest_share: float = HONEST_SHARE,
        delta: float = DELTA,
        service_amount: float = 0.0,
        untrained: bool = False,
    ) -> None:
        super().__init__(POSTED_PRICE, epsilon_max)
        self.objective = _objective(objective, kappa, heterogeneity, honest_share, delta)
        self.scenario = scenario
        self.floors = Floors(service_share, service_valuation, unit_compensation)
        self.service_amount = float(service_amount)
        rations = isinstance(self.objective, AggregateError)
        if (rations and self.floors) or (self.service_amount and not rations):
            raise ConfigurationError(
                f"{self.name}: floors in other units than the menu for {self.objective.name!r}",
                "rations (aggregate-error) have service_amount, other menus service_share and unit_compensation",
            )
        if not isinstance(weights, Weights):
            weights = load(weights or shipped(AGGREGATE_WEIGHTS if rations else self.name), self.name)
        self.curves = read_curves(weights)
        self.untrained = untrained
        if untrained:
            self.name = f"{self.name}:untrained"  # type: ignore[misc]

    def curve_for(self, clients: int, budget_per_client: float) -> MenuCurve | RationCurve:
        """The curve for a market of this public description: the nearest one that was learned."""
        if self.untrained:
            if isinstance(self.objective, AggregateError) and self.scenario in SCENARIOS:
                money = budget_per_client * clients
                return two_step_curve(SCENARIOS[self.scenario], clients, money, self.objective)
            return POSTED_PRICE
        same = [c for c in self.curves if c.objective == self.objective.name]
        known = [c for c in same if c.scenario == self.scenario]
        # A ration's prices are in the money of the clients it was learned for; other menus find their level.
        same = known if isinstance(self.objective, AggregateError) else known or same
        if not same:
            return POSTED_PRICE
        ratio = bias_to_noise(self.objective, clients)
        if ratio < 0.5 * min(c.bias_to_noise for c in same):
            return POSTED_PRICE  # noise alone counts: much from few is right

        def distance(learned: LearnedCurve) -> float:
            money = abs(np.log(budget_per_client / learned.budget_per_client))
            bias = abs(np.log(ratio / learned.bias_to_noise)) if ratio > 0 else 0.0
            return float(money + bias)

        nearest = min(same, key=distance).curve
        if isinstance(nearest, RationCurve) and self.service_amount:
            ceiling = max(nearest.ceiling, self.service_amount)
            return RationCurve(nearest.price, nearest.multiple, self.service_amount, ceiling)
        return nearest

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Each client meets the learned curve at the price level that the others' bids allow."""
        return self._answer(self._facing(bids, budget), bids)

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """All N deviations at once in O(N): no report moves the level that its own client faces."""
        reports.refuse_above(self.epsilon_max)
        column = budget_column(budget, bids.shape)
        # An attack asks thousands of times about the same bids, which cannot change.
        if (
            self._last_facing is None
            or self._last_facing[0] is not bids
            or not np.array_equal(self._last_facing[1], column)
        ):
            self._last_facing = bids, column, self._facing(bids, column)
        return self._answer(self._last_facing[2], reports)

    def own_pieces(self, bids: Bids, budget: float) -> tuple[Array, Array]:
        """What a client faces in one market: (clients, prices), and (clients, kinks) amounts on offer to it."""
        curve = self.curve_for(bids.clients, budget / bids.clients)
        if isinstance(curve, RationCurve):
            return face(curve, bids, budget, self.epsilon_max).pieces()
        if self.floors:
            raise ConfigurationError(
                f"{self.name}: no upper bound on its regret with floors is known", "leave out the certificate"
            )
        return MeanFieldMenu(curve, self.epsilon_max).own_pieces(bids, budget)

    def _facing(self, bids: Bids, budget: Array) -> list[_Facing]:
        """What the clients of each market face, whatever they report themselves; markets of one curve together."""
        bids.refuse_above(self.epsilon_max)
        money = budget.reshape(-1)
        curves = [self.curve_for(bids.clients, amount / bids.clients) for amount in money.tolist()]
        rows_of: dict[int, list[int]] = {}
        for row, curve in enumerate(curves):
            rows_of.setdefault(id(curve), []).append(row)
        valuation, epsilon = (a.reshape(-1, bids.clients) for a in (bids.valuation, bids.epsilon))
        return [
            _Facing(rows, self._menu(curves[rows[0]], Bids(valuation[rows], epsilon[rows]), money[rows]))
            for rows in rows_of.values()
        ]

    def _menu(self, curve: MenuCurve | RationCurve, bids: Bids, budget: Array) -> Trade:
        """What a report gives in markets (markets, clients) of one curve. budget: (markets,)."""
        if isinstance(curve, RationCurve):
            return face_all([curve] * len(bids), bids, budget[:, None], self.epsilon_max).trade
        if not self.floors:
            menu = MeanFieldMenu(curve, self.epsilon_max)
            level = menu.price_levels(bids, budget)
            return lambda valuation, epsilon: menu._at(valuation, epsilon, level)
        ladder = Ladder(curve, self.floors)
        found = [
            ladder_levels(ladder, valuation, epsilon, money, self.epsilon_max)
            for valuation, epsilon, money in zip(bids.valuation, bids.epsilon, budget.tolist(), strict=True)
        ]
        fraction, at = (np.array(part) for part in zip(*found, strict=True))
        return lambda valuation, epsilon: ladder.trade(valuation, epsilon, fraction, at)

    def _answer(self, facing: list[_Facing], reports: Bids) -> Outcome:
        flat = (-1, reports.clients)
        valuation = reports.valuation.reshape(flat)
        offered = reports.epsilon.reshape(flat)
        epsilon = np.empty(valuation.shape)
        payment = np.empty(valuation.shape)
        for group in facing:
            epsilon[group.rows], payment[group.rows] = group.trade(valuation[group.rows], offered[group.rows])
        return Outcome(epsilon.reshape(reports.shape), payment.reshape(reports.shape))


Trade = Callable[[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class _Facing:
    """Markets that have one curve.

    Attributes:
        rows: which markets.
        trade: reports (markets, clients), valuation and ε → what is sold and paid.
    """

    rows: list[int]
    trade: Trade


def _objective(
    given: str | Objective, kappa: float, heterogeneity: float, honest_share: float, delta: float
) -> Objective:
    if isinstance(given, Objective):
        return given
    if given == AggregateError.name:
        return AggregateError(kappa, heterogeneity, honest_share, delta)
    if given == AggregationError.name:
        return AggregationError(kappa, heterogeneity)
    return objective_called(given)


def bias_to_noise(objective: Objective, clients: int) -> float:
    """r = H²·N/κ of the aggregation error, H²·N²·(h/n)/κ of the aggregate error; 0 for other objectives."""
    if isinstance(objective, AggregateError):
        return ration_bias_to_noise(objective, clients)
    if not isinstance(objective, AggregationError):
        return 0.0
    return objective.heterogeneity**2 * clients / objective.kappa


class CurveKind(TypedDict, total=False):
    """What a weights file says of a curve's form; nothing for a menu."""

    kind: str
    ceiling: float | None


class PublicFacts(TypedDict):
    """The market that a curve is for: what it may depend on."""

    objective: str
    scenario: str
    clients: int
    budget_per_client: float
    bias_to_noise: float


class CurveFacts(PublicFacts, CurveKind):
    """What a weights file says of a curve: its market, its form, and values on validation markets."""

    value: float
    posted_price_value: float
    two_step_value: NotRequired[float]


def read_curves(weights: Weights) -> tuple[LearnedCurve, ...]:
    """Reads the learned curves out of a weights file."""
    curves = []
    try:
        for index, fact in enumerate(weights.facts["curves"]):
            curve = _read_curve(weights, index, fact)
            curves.append(
                LearnedCurve(
                    curve, fact["objective"], fact["scenario"], fact["budget_per_client"], fact["bias_to_noise"]
                )
            )
    except KeyError as error:
        raise WeightsError(f"the weights file lacks {error}", "copy or train it again") from error
    return tuple(curves)


def _read_curve(weights: Weights, index: int, fact: CurveKind) -> MenuCurve | RationCurve:
    price = weights.arrays[f"price/{index}"]
    if fact.get("kind") == "ration":
        ceiling = fact["ceiling"]
        multiple = weights.arrays[f"multiple/{index}"]
        return RationCurve(price, multiple, ceiling=np.inf if ceiling is None else ceiling)
    return MenuCurve(price, weights.arrays[f"weight/{index}"])


def curve_arrays(curve: MenuCurve | RationCurve, index: int) -> tuple[dict[str, Array], CurveKind]:
    """A curve as arrays and facts of a weights file, the inverse of reading it."""
    if isinstance(curve, RationCurve):
        ceiling = None if np.isinf(curve.ceiling) else curve.ceiling
        arrays = {f"price/{index}": curve.price, f"multiple/{index}": curve.multiple}
        return arrays, {"kind": "ration", "ceiling": ceiling}
    return {f"price/{index}": curve.price, f"weight/{index}": curve.weight}, {}


# ---- floors: the mean-field menu with a service floor and a compensation floor, still exact ----

_BISECTIONS = 64


@dataclass(frozen=True)
class Floors:
    """What every client is promised. The zeros promise nothing.

    Attributes:
        service_share: everyone with v ≤ `service_valuation` sells at least this share of its ε, whenever the
            budget can pay for that together with one client's reserve.
        service_valuation: in money per unit of ε.
        unit_compensation: every unit of ε sold is paid at least this.
    """

    service_share: float = 0.0
    service_valuation: float = 0.0
    unit_compensation: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.service_share < 1 and 0 <= self.service_valuation < np.inf):
            raise ConfigurationError(
                f"service floor: share {self.service_share} up to valuation {self.service_valuation}",
                "give a share in [0, 1) and a finite valuation",
            )
        if not 0 <= self.unit_compensation < np.inf:
            raise ConfigurationError(
                f"compensation floor is {self.unit_compensation}", "give money per unit of ε, at least 0"
            )

    def __bool__(self) -> bool:
        return self.service_share > 0 or self.unit_compensation > 0

    @property
    def service_price(self) -> float:
        """p_f: just above the stated valuation, because a client at a price does not sell."""
        return max(float(np.nextafter(self.service_valuation, np.inf)), self.unit_compensation)


@dataclass(frozen=True)
class Ladder:
    """The menus that a curve and its floors give, one for every level u of spending.

    Notation: level u ≥ 0 of a market. For u ≤ 1 only the service floor is bought, for the fraction u of it;
    beyond 1 it is bought whole and the curve G is scaled by the price level τ = (u − 1)·τ₀. w_f, p_f = share and
    price of the service floor; c = least money per unit of ε.

     At each level a client faces a mixture of posted prices: the floor at p_f, and step m at max(τ s_m, c) for
    the share w_m·min(1, τ s_m/c). So it sells less when the budget is short, but never for less than c per unit.
    What a client is paid is non-decreasing in u, and is at most ε_max·(w_f p_f·min(u, 1) + (1 − w_f)·τ·∫G). These
    are the two facts that the proof of the mean-field menu uses; u_{−i} takes the place of τ_{−i}.
    """

    curve: MenuCurve
    floors: Floors

    @property
    def rest(self) -> float:
        """The share of ε that the service floor leaves to the curve."""
        return 1.0 - self.floors.service_share

    def trade(self, valuation: Array, epsilon: Array, fraction: Array, level: Array) -> tuple[Array, Array]:
        """ε sold and pay of clients that face `fraction` of the floor and price level τ; one shape."""
        takes_floor = valuation < self.floors.service_price
        share = np.where(takes_floor, self.floors.service_share * fraction, 0.0)
        unit_pay = share * self.floors.service_price
        least = self.floors.unit_compensation
        for price, weight in zip(self.curve.price, self.curve.weight, strict=True):
            scaled = level * price
            posted = np.maximum(scaled, least)
            sells = valuation < posted
            ration = np.minimum(1.0, scaled / least) if least > 0 else 1.0
            bought = np.where(sells, self.rest * weight * ration, 0.0)
            share = share + bought
            unit_pay = unit_pay + bought * posted
        return epsilon * share, epsilon * unit_pay

    def most(self, epsilon_max: float, fraction: Array, level: Array) -> Array:
        """The most that one client can be paid at this fraction of the floor and this price level."""
        floor = self.floors.service_share * self.floors.service_price * fraction
        return epsilon_max * (floor + self.rest * level * self.curve.area)


@dataclass(frozen=True)
class _Supply:
    """Total pay of a market at any level, from prefix sums over sorted valuations."""

    ladder: Ladder
    ranked: Array
    prefix: Array

    @staticmethod
    def of(ladder: Ladder, valuation: Array, epsilon: Array) -> _Supply:
        order = np.argsort(valuation, kind="stable")
        return _Supply(ladder, valuation[order], np.append(0.0, np.cumsum(epsilon[order])))

    def below(self, price: Array) -> Array:
        """Σ ε of the clients whose valuation is below each price, same shape as `price`."""
        return self.prefix[np.searchsorted(self.ranked, price, side="left")]

    def pay(self, fraction: Array, level: Array) -> Array:
        """What all clients together are paid at each (fraction, level)."""
        ladder = self.ladder
        floors = self.ladder.floors
        price = np.asarray(floors.service_price)
        total = floors.service_share * floors.service_price * fraction * self.below(price)
        for step, weight in zip(ladder.curve.price, ladder.curve.weight, strict=True):
            scaled = level * step
            # share·price = w·min(1, x/c)·max(x, c) = w·x, whatever c is.
            total = total + ladder.rest * weight * scaled * self.below(np.maximum(scaled, floors.unit_compensation))
        return np.asarray(total)


def ladder_levels(
    ladder: Ladder, valuation: Array, epsilon: Array, budget: float, epsilon_max: float
) -> tuple[Array, Array]:
    """(clients,) the fraction of the floor and the price level that each client faces, whatever it reports.

    For each client the largest feasible level, by bisection from the feasible side: what is returned is
    within the budget to the last digit of the comparison.
    """
    supply = _Supply.of(ladder, valuation, epsilon)

    def within(fraction: Array, level: Array) -> NDArray[np.bool_]:
        own = ladder.trade(valuation, epsilon, fraction, level)[1]
        cost = supply.pay(fraction, level) - own + ladder.most(epsilon_max, fraction, level)
        return np.asarray(cost <= budget)

    zeros = np.zeros(valuation.shape)
    ones = np.ones(valuation.shape)
    whole = within(ones, zeros)
    fraction = np.where(whole, 1.0, _bisect(lambda u: within(u, zeros), zeros, ones))
    # Nobody can be paid more than the whole budget, so no level beyond this is feasible.
    top = np.full(valuation.shape, 2.0 * budget / (epsilon_max * ladder.rest * ladder.curve.area))
    level = np.where(whole, _bisect(lambda u: within(ones, u), zeros, top), 0.0)
    return fraction, level


def _bisect(feasible: Callable[[Array], NDArray[np.bool_]], low: Array, high: Array) -> Array:
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        ok = feasible(middle)
        low = np.where(ok, middle, low)
        high = np.where(ok, high, middle)
    return low
