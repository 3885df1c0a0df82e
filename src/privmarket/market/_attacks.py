"""How misreports are searched: what is the most that a client can gain by one?

A client's type is (v, ε). It may report any valuation, and any ε up to its own; `UpwardAttack` also tries offers
above its own, which gain where a rule asks for so little of them that the client can deliver it. Every attack tries
reports for all clients at once through `Mechanism.unilateral` and keeps, client by client, the best one. What is
found is a lower bound on the true regret; `certified` has upper ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import CoalitionWitness, Mechanism

# Offers below this share of the cap are not searched: they sell next to nothing.
_LEAST_SHARE = 1e-3
# Offers of a round number are tried as they are: a rule may treat them in a way of their own.
_ROUND_OFFERS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
# Reports are tried together as long as their auctions hold no more bids than this.
_BIDS_AT_ONCE = 50_000


@dataclass(frozen=True, eq=False)
class Regret:
    """The best misreport found for each client. All arrays (..., clients).

    Attributes:
        gain: utility gained over truth, ≥ 0.
        valuation: the report that gains it.
        epsilon: the offer that gains it.
    """

    gain: Array
    valuation: Array
    epsilon: Array

    def worst_of(self, other: Regret) -> Regret:
        """For each client, whichever of the two misreports gains it more."""
        better = other.gain > self.gain
        return Regret(
            np.where(better, other.gain, self.gain),
            np.where(better, other.valuation, self.valuation),
            np.where(better, other.epsilon, self.epsilon),
        )


class Attack(Protocol):
    """The interface of an attack: a search for the misreports that gain each client most."""

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Searches misreports against `mechanism` for the clients of `types`, (..., clients), under `budget`."""
        ...


def can_deliver(sold: Array, has: Array) -> NDArray[np.bool_]:
    """Whether clients have the ε that they sold, same shapes.

    Stricter than `TOLERANCE`: were that much more ε let pass, selling it could gain as much as counts as a gain.
    """
    return sold <= has * (1 + 1e-12)


def utility_of(mechanism: Mechanism, types: Bids, reports: Bids, budget: ArrayLike) -> Array:
    """(..., clients) each client's true utility if it alone sends its entry of `reports`.

    Being asked for more ε than the client has counts as −∞: it cannot deliver.
    """
    outcome = mechanism.unilateral(types, reports, budget)
    return np.where(can_deliver(outcome.epsilon, types.epsilon), outcome.utility(types), -np.inf)


def _at_once(mechanism: Mechanism, types: Bids) -> int:
    """How many reports per client are worth one call, so that small markets do not cost a call each.

    One where the rule has its own fast answer about deviations, or may answer a larger batch differently.
    """
    if type(mechanism).unilateral is not Mechanism.unilateral or not mechanism.exact_in_batches:
        return 1
    return max(1, _BIDS_AT_ONCE // (types.valuation.size * types.clients))


def _stacked(bids: Sequence[Bids]) -> Bids:
    """Stacks bids of one shape along a new first axis: (len(bids), ..., clients)."""

    def stack(name: str) -> Array | None:
        found = [getattr(one, name) for one in bids]
        return None if found[0] is None else np.stack(found)

    return bids[0].replace(**{name: stack(name) for name in ("valuation", "epsilon", "data_size", "accuracy")})


def truthful_utility(mechanism: Mechanism, types: Bids, budget: ArrayLike) -> Array:
    """(..., clients) what honesty yields, whether or not the rule respects caps."""
    return mechanism.run(types, budget).utility(types)


@dataclass(frozen=True)
class GridAttack:
    """Every pair of a grid of valuations and a grid of ε shares, and values next to the others' bids.

    Attributes:
        valuations: points on [0, 2·max v], with one far above everybody.
        shares: points on (0, 1] times the own cap; 1 leaves ε truthful.
        neighbours: how many of the other bids are tried from just below and just above, where rules jump.
        over_valuation: whether valuations are searched at all, or stay truthful.
        round_offers: whether 0.1, 0.5, 1, 2, 5 and 10 are offered, too, by those who have that much.
    """

    valuations: int = 41
    shares: int = 20
    neighbours: int = 16
    over_valuation: bool = True
    round_offers: bool = False

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Tries the grid for every client of `types`, (..., clients), and returns each client's best misreport."""
        offers = [*self.reported_offers(types)]
        reports = (
            types.replace(valuation=valuation, epsilon=epsilon)
            for valuation in self.reported_valuations(types)
            for epsilon in offers
        )
        return _best_of(mechanism, types, budget, reports)

    def reported_offers(self, types: Bids) -> Iterator[Array]:
        """Yields the offers that are tried, (..., clients) each and none above the own, the truth first."""
        for share in np.linspace(1.0, 0.0, self.shares, endpoint=False):
            yield types.epsilon * share
        if self.round_offers:
            for offer in _ROUND_OFFERS:
                if (offer < types.epsilon).any():
                    yield np.minimum(types.epsilon, offer)

    def reported_valuations(self, types: Bids) -> Iterator[Array]:
        """Yields the valuations that are tried, (..., clients) each, the truth first."""
        yield types.valuation
        if not self.over_valuation:
            return
        top = types.valuation.max(axis=-1, keepdims=True)
        top = np.where(top > 0, top, 1.0)
        for point in np.append(np.linspace(0.0, 2.0, self.valuations), 100.0):
            yield np.broadcast_to(point * top, types.shape)
        ranked = np.sort(types.valuation, axis=-1)
        count = min(self.neighbours, types.clients)
        for rank in np.unique(np.linspace(0, types.clients - 1, count).astype(int)):
            beside = ranked[..., rank : rank + 1]
            for nudge in (-1e-7, 0.0, 1e-7):
                yield np.broadcast_to(np.maximum(beside * (1 + nudge), 0.0), types.shape)


@dataclass(frozen=True)
class UpwardAttack:
    """Offers above the client's own ε while its valuation is truthful.

    A client that is asked for more than it has cannot deliver, and such reports count for nothing. The others are
    lies about capacity that nobody would ever see.

    Attributes:
        most: the largest offer that the market admits.
        offers: points between the own ε and `most`, in equal ratios, and then in equal steps.
        neighbours: how many of the other offers are tried from just below and just above.

    Round numbers and `most` itself are offered, too.
    """

    most: float
    offers: int = 40
    neighbours: int = 16

    @property
    def words(self) -> str:
        """What it tries."""
        return f"ε upwards: {self.offers} offers above the own, with round ones and values next to other bids"

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Tries the offers for every client of `types`, (..., clients); returns each client's best one."""
        reports = (types.replace(epsilon=offer) for offer in self.reported_offers(types))
        return _best_of(mechanism, types, budget, reports)

    def reported_offers(self, types: Bids) -> Iterator[Array]:
        """Yields the offers that are tried, (..., clients) each, the truth first."""
        yield types.epsilon
        top = np.maximum(types.epsilon, self.most)
        for part in np.linspace(0.0, 1.0, self.offers // 2 + 1)[1:]:
            yield np.minimum(types.epsilon * (top / types.epsilon) ** part, top)
            yield np.minimum(types.epsilon + (top - types.epsilon) * part, top)
        yield top
        for offer in _ROUND_OFFERS:
            if ((types.epsilon < offer) & (offer < top)).any():
                yield np.clip(offer, types.epsilon, top)
        ranked = np.sort(types.epsilon, axis=-1)
        count = min(self.neighbours, types.clients)
        for rank in np.unique(np.linspace(0, types.clients - 1, count).astype(int)):
            beside = ranked[..., rank : rank + 1]
            for nudge in (-1e-7, 1e-7):
                yield np.clip(beside * (1 + nudge), types.epsilon, top)


@dataclass(frozen=True)
class AscentAttack:
    """Projected ascent on (v, ε) from many starts, all clients at once.

    Signs of finite differences give the direction, so the rule need not be differentiable; the step shrinks
    geometrically. `over_valuation=False` keeps v truthful, `over_epsilon=False` keeps ε truthful.
    """

    starts: int = 20
    steps: int = 25
    first_step: float = 0.2
    over_valuation: bool = True
    over_epsilon: bool = True

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Climbs from every start for each client of `types`, (..., clients); returns the best misreports."""
        best = _truth(types)
        truth = truthful_utility(mechanism, types, budget)
        starts = (self._start(types, rng, near_truth=start % 2 == 0) for start in range(self.starts))
        size = _at_once(mechanism, types)
        while group := list(islice(starts, size)):
            if size == 1:
                paths = [[*self._climb(mechanism, types, budget, group[0])]]
            else:
                together = [*self._climb(mechanism, _stacked([types] * len(group)), budget, _joined(group))]
                paths = [
                    [Regret(step.gain[i], step.valuation[i], step.epsilon[i]) for step in together]
                    for i in range(len(group))
                ]
            for step in (step for path in paths for step in path):
                best = best.worst_of(Regret(step.gain - truth, step.valuation, step.epsilon))
        return best

    def _start(self, types: Bids, rng: np.random.Generator, *, near_truth: bool) -> _Start:
        top = 2.0 * np.maximum(types.valuation.max(axis=-1, keepdims=True), 1e-12)
        x = types.valuation / top
        y = np.ones(types.shape)
        if near_truth:
            x = x + rng.normal(0.0, 0.1, types.shape) * self.over_valuation
            y = y - np.abs(rng.normal(0.0, 0.1, types.shape)) * self.over_epsilon
        else:
            x = rng.random(types.shape) if self.over_valuation else x
            y = 1.0 - rng.random(types.shape) * self.over_epsilon
        searched = (self.over_valuation, self.over_epsilon)
        coins = [
            [rng.choice([-1.0, 1.0], types.shape) if one else np.zeros(types.shape) for one in searched]
            for _ in range(self.steps)
        ]
        return _Start(x, y, coins)

    def _climb(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, start: _Start) -> Iterator[Regret]:
        """Yields the reports along one path, with the utility that each gives in place of the gain."""
        top = 2.0 * np.maximum(types.valuation.max(axis=-1, keepdims=True), 1e-12)
        x = start.x
        y = start.y

        def evaluate(x: Array, y: Array) -> tuple[Bids, Array]:
            report = types.replace(
                valuation=top * np.clip(x, 0.0, 1.0), epsilon=types.epsilon * np.clip(y, _LEAST_SHARE, 1.0)
            )
            return report, utility_of(mechanism, types, report, budget)

        width = self.first_step
        for x_coin, y_coin in start.coins:
            report, here = evaluate(x, y)
            yield Regret(here, report.valuation, report.epsilon)
            probe = 0.1 * width
            x_next = x
            y_next = y
            if self.over_valuation:
                x_next = np.clip(x + width * _uphill(here, evaluate(x + probe, y)[1], x_coin), 0.0, 1.0)
            if self.over_epsilon:
                y_next = np.clip(y - width * _uphill(here, evaluate(x, y - probe)[1], y_coin), _LEAST_SHARE, 1.0)
            x = x_next
            y = y_next
            width *= 0.85


@dataclass(frozen=True, eq=False)
class _Start:
    """Where an ascent begins, and which way it goes on plateaus.

    Attributes:
        x, y: (..., clients) v/(2·max v) and ε/cap, both in [0, 1].
        coins: for every step −1 or 1 for x and for y, (..., clients) each.
    """

    x: Array
    y: Array
    coins: list[list[Array]]


def _joined(starts: Sequence[_Start]) -> _Start:
    """Stacks several starts along a new first axis."""
    steps = zip(*(start.coins for start in starts), strict=True)
    coins = [[np.stack(coin) for coin in zip(*step, strict=True)] for step in steps]
    return _Start(np.stack([start.x for start in starts]), np.stack([start.y for start in starts]), coins)


def combined(*attacks: Attack) -> Attack:
    """The worst that any of the attacks finds, client by client."""

    def run(mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        found = _truth(types)
        for attack in attacks:
            found = found.worst_of(attack(mechanism, types, budget, rng))
        return found

    return run


@dataclass(frozen=True)
class Level:
    """One strength of attack in three forms.

    Attributes:
        joint: misreports of valuation and ε together.
        valuation: misreports of the valuation while ε is truthful.
        epsilon: withheld ε while the valuation is truthful.
        words: what each of them tries.
    """

    joint: Attack
    valuation: Attack
    epsilon: Attack
    words: tuple[str, ...] = ()


def _level(valuations: int, shares: int, neighbours: int, starts: int, steps: int) -> Level:
    ascent = f"{starts} starts of ascent"
    return Level(
        combined(GridAttack(valuations, shares, neighbours), AscentAttack(starts, steps)),
        combined(GridAttack(valuations, 1, neighbours), AscentAttack(starts, steps, over_epsilon=False)),
        combined(
            GridAttack(over_valuation=False, shares=5 * shares, round_offers=True),
            AscentAttack(starts, steps, over_valuation=False),
        ),
        (
            f"v and ε: a grid of {valuations} valuations × {shares} offers with values next to other bids, and "
            f"{ascent}",
            f"v alone: a grid of {valuations} valuations with values next to other bids, and {ascent}",
            f"ε alone: a grid of {5 * shares} offers, round ones, and {ascent}",
        ),
    )


def own_level(attack: Attack) -> Level:
    """An attack on (v, ε) of somebody's own, checked, and the strong ones on v alone and on ε alone."""
    strong = LEVELS["strong"]
    name = getattr(attack, "__name__", type(attack).__name__)
    return Level(_checked(attack, name), strong.valuation, strong.epsilon, (f"v and ε: {name}", *strong.words[1:]))


def _checked(attack: Attack, name: str) -> Attack:
    """The attack with its gains measured again, so that nothing is claimed that the rule does not pay."""

    def run(mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        found = attack(mechanism, types, budget, rng)
        if not isinstance(found, Regret) or found.gain.shape != types.shape:
            raise ConfigurationError(
                f"the attack {name} returned {type(found).__name__}",
                "return privmarket.market.Regret(gain, valuation, epsilon), each of the shape of the bids",
            )
        reports = types.replace(valuation=found.valuation, epsilon=found.epsilon)
        truth = truthful_utility(mechanism, types, budget)
        gain = utility_of(mechanism, types, reports, budget) - truth
        return _truth(types).worst_of(Regret(gain, found.valuation, found.epsilon))

    return run


LEVELS: dict[str, Level] = {
    "quick": _level(valuations=21, shares=6, neighbours=8, starts=3, steps=12),
    "strong": _level(valuations=41, shares=20, neighbours=16, starts=20, steps=25),
}
"""`strong` is what evaluation uses. `quick` does a twentieth of that work and finds gross misreports, not the last
per mille; it is for comparisons."""

QUICK: Attack = LEVELS["quick"].joint
STRONG: Attack = LEVELS["strong"].joint
VALUATION_ONLY: Attack = LEVELS["strong"].valuation
EPSILON_ONLY: Attack = LEVELS["strong"].epsilon


def _truth(types: Bids) -> Regret:
    return Regret(np.zeros(types.shape), types.valuation, types.epsilon)


def _uphill(here: Array, there: Array, coin: Array) -> Array:
    """+1 where `there` is better, −1 where it is worse, the coin on plateaus. All of one shape."""
    direction = (there > here).astype(np.float64) - (there < here)
    return np.where(direction == 0, coin, direction)


def _best_of(mechanism: Mechanism, types: Bids, budget: ArrayLike, reports: Iterator[Bids]) -> Regret:
    truth = truthful_utility(mechanism, types, budget)
    best = _truth(types)
    size = _at_once(mechanism, types)
    while group := list(islice(reports, size)):
        if size == 1:
            utilities = utility_of(mechanism, types, group[0], budget)[None]
        else:
            utilities = utility_of(mechanism, _stacked([types] * len(group)), _stacked(group), budget)
        for report, utility in zip(group, utilities, strict=True):
            best = best.worst_of(Regret(utility - truth, report.valuation, report.epsilon))
    return best


_JOINT_FACTORS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)
_JOINT_SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)
_FLOOR_QUANTILES = (0.25, 0.5, 0.65, 0.8, 0.9, 0.97)
_OUT_OF_REACH = 100.0  # times the dearest valuation: nobody buys at that


@dataclass(frozen=True, eq=False)
class Collusion:
    """The best joint misreport found for each coalition.

    Attributes:
        members: (markets, coalitions, size) client numbers.
        gain: (markets, coalitions) utility of all members together above what the truth gives them, ≥ 0.
        truthful_pay: (markets, coalitions) what the members are paid when everybody is truthful.
        valuation, epsilon: (markets, coalitions, size) what the members report to gain that.
    """

    members: NDArray[np.intp]
    gain: Array
    truthful_pay: Array
    valuation: Array
    epsilon: Array

    @property
    def share(self) -> float:
        """Mean gain over mean truthful pay of the coalitions; 0 where nobody gains, infinite without any pay."""
        gain = float(self.gain.mean())
        paid = float(self.truthful_pay.mean())
        if gain == 0.0:
            return 0.0
        return gain / paid if paid > 0 else np.inf

    def witness(self, types: Bids) -> CoalitionWitness:
        """The coalition that gains most, among the clients of `types`, (markets, clients) or (clients,)."""
        market, coalition = (int(i) for i in np.unravel_index(int(np.argmax(self.gain)), self.gain.shape))
        members = self.members[market, coalition]
        truth = types if len(types.shape) == 1 else types[market]
        return CoalitionWitness(
            market=() if len(types.shape) == 1 else (market,),
            clients=tuple(int(client) for client in members),
            valuation=tuple(float(v) for v in truth.valuation[members]),
            epsilon=tuple(float(e) for e in truth.epsilon[members]),
            reported_valuation=tuple(float(v) for v in self.valuation[market, coalition]),
            reported_epsilon=tuple(float(e) for e in self.epsilon[market, coalition]),
            gain=float(self.gain[market, coalition]),
        )


@dataclass(frozen=True)
class CoalitionAttack:
    """Searches joint misreports of coalitions of `size` clients.

    Tried for each coalition: everybody's valuation times a common factor, a common price floor, some members
    pricing themselves out to lift the price of the rest, each with several shares of ε withheld; then random
    changes of single members are kept as long as they help.

    Attributes:
        size: clients in a coalition; all of them where a market has fewer.
        coalitions: how many per market: the cheapest clients, those around the last seller, the rest by chance.
        steps: random changes tried at the end.
    """

    size: int
    coalitions: int = 6
    steps: int = 120

    def __post_init__(self) -> None:
        if self.size < 1 or self.coalitions < 1:
            raise ConfigurationError(
                f"{self.coalitions} coalitions of {self.size} clients", "give at least 1 of each"
            )

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Collusion:
        """Types have shape (markets, clients) or (clients,); one budget, or one per market."""
        markets = types if len(types.shape) == 2 else types[None]
        members = self._members(mechanism, markets, budget, rng)
        truth = _repeated(markets, self.coalitions)
        money = np.broadcast_to(np.asarray(budget, dtype=np.float64), markets.shape[:1]).repeat(self.coalitions)
        inside = np.zeros(truth.shape, dtype=np.bool_)
        np.put_along_axis(inside, members.reshape(inside.shape[0], -1), True, axis=-1)

        def joint_utility(reports: Bids) -> Array:
            outcome = mechanism.run(reports, money)
            # Who is asked for more ε than it has cannot deliver: such a plan is worthless to the coalition.
            undeliverable = (inside & ~can_deliver(outcome.epsilon, truth.epsilon)).any(axis=-1)
            utility = np.where(inside, outcome.utility(truth), 0.0).sum(axis=-1)
            return np.where(undeliverable, -np.inf, utility)

        honest = mechanism.run(truth, money)
        base = np.where(inside, honest.utility(truth), 0.0).sum(axis=-1)
        best = truth
        best_utility = base
        for reports in (*self._plans(truth, inside), *self._withdrawals(truth, inside)):
            best, best_utility = _better(best, best_utility, reports, joint_utility(reports))
        for _ in range(self.steps):
            reports = self._changed(best, truth, inside, rng)
            best, best_utility = _better(best, best_utility, reports, joint_utility(reports))
        shape = members.shape[:2]
        pay = np.where(inside, honest.payment, 0.0).sum(axis=-1)
        seats = members.reshape(len(pay), -1)
        return Collusion(
            members,
            gain=np.maximum(best_utility - base, 0.0).reshape(shape),
            truthful_pay=pay.reshape(shape),
            valuation=np.take_along_axis(best.valuation, seats, axis=-1).reshape(members.shape),
            epsilon=np.take_along_axis(best.epsilon, seats, axis=-1).reshape(members.shape),
        )

    def _members(
        self, mechanism: Mechanism, markets: Bids, budget: ArrayLike, rng: np.random.Generator
    ) -> NDArray[np.intp]:
        """(markets, coalitions, size) the clients of each coalition."""
        clients = markets.clients
        size = min(self.size, clients)
        order = np.argsort(markets.valuation, axis=-1, kind="stable")
        sellers = np.count_nonzero(mechanism.run(markets, budget).epsilon > 0, axis=-1)
        chosen = []
        for market, ranked in enumerate(order):
            around = int(np.clip(sellers[market] - size // 2, 0, clients - size))
            groups = [ranked[:size], ranked[around : around + size]]
            while len(groups) < self.coalitions:
                groups.append(rng.permutation(clients)[:size])
            chosen.append(np.stack(groups[: self.coalitions]))
        return np.stack(chosen)

    def _plans(self, truth: Bids, inside: NDArray[np.bool_]) -> Iterator[Bids]:
        """Common factors and common price floors, with ε withheld or not."""
        valuation = truth.valuation
        asked = [valuation, *(valuation * factor for factor in _JOINT_FACTORS)]
        asked += [
            np.maximum(valuation, np.quantile(valuation, q, axis=-1, keepdims=True)) for q in _FLOOR_QUANTILES
        ]
        for report in asked:
            for share in _JOINT_SHARES:
                yield _joint(truth, inside, report, truth.epsilon * share)

    def _withdrawals(self, truth: Bids, inside: NDArray[np.bool_]) -> Iterator[Bids]:
        """The dearest members, or the cheapest, price themselves out, the others stay truthful."""
        beyond = _OUT_OF_REACH * np.maximum(truth.valuation.max(axis=-1, keepdims=True), 1e-12)
        size = min(self.size, truth.clients)
        for sign in (-1.0, 1.0):
            rank = np.argsort(np.argsort(np.where(inside, sign * truth.valuation, np.inf), axis=-1), axis=-1)
            for leaving in sorted({1, *(size * k // 8 for k in range(1, 8))} - {0}):
                report = np.where(rank < leaving, beyond, truth.valuation)
                yield _joint(truth, inside, report, truth.epsilon)

    def _changed(self, best: Bids, truth: Bids, inside: NDArray[np.bool_], rng: np.random.Generator) -> Bids:
        """The best plan so far with the reports of about a third of the members moved."""
        moved = inside & (rng.random(truth.shape) < 1 / 3)
        valuation = best.valuation * np.exp(rng.normal(0.0, 0.3, truth.shape))
        epsilon = best.epsilon * np.exp(rng.normal(0.0, 0.3, truth.shape) * (rng.random() < 0.5))
        return _joint(best, moved, valuation, np.minimum(epsilon, truth.epsilon))


def _repeated(markets: Bids, times: int) -> Bids:
    """(markets·times, clients): every market as often as it has coalitions."""
    fields = (markets.valuation, markets.epsilon, markets.data_size, markets.accuracy)
    valuation, epsilon, data_size, accuracy = (
        None if field is None else np.repeat(field, times, axis=0) for field in fields
    )
    assert valuation is not None
    assert epsilon is not None
    return Bids(valuation, epsilon, data_size, accuracy)


def _joint(bids: Bids, members: NDArray[np.bool_], valuation: Array, epsilon: Array) -> Bids:
    """`bids` in which the members of the coalition report `valuation` and `epsilon`."""
    return bids.replace(
        valuation=np.where(members, valuation, bids.valuation), epsilon=np.where(members, epsilon, bids.epsilon)
    )


def _better(best: Bids, utility: Array, reports: Bids, found: Array) -> tuple[Bids, Array]:
    """For each market, whichever of two joint reports gains the coalition more, and that gain."""
    won = (found > utility)[:, None]
    return _joint(best, won, reports.valuation, reports.epsilon), np.maximum(utility, found)
