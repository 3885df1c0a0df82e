"""Ways to find the equilibrium: how the next price path to try follows from what came out of the last one.

`solve` answers a price path with the best response, lets everybody play it, and hands price, response and flow to a
method, which returns the next price path. Clients meet the population only through prices, so a path of prices is
all that a method has to choose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._game import DiscreteGame, Flow
from privmarket.meanfield._schemes import shadow_price


class Method(ABC):
    """How the next price path is chosen. One object serves one solve at a time; `begin` forgets the last one."""

    name: ClassVar[str]

    @abstractmethod
    def begin(self, game: DiscreteGame, price: Array) -> None:
        """Called once before the first iteration, with the price path (steps,) that is answered first."""

    @abstractmethod
    def next_price(self, price: Array, shadow: Array, flow: Flow) -> Array | None:
        """The price path (steps,) to answer next, or None to give up.

        Args:
            price: (steps,) the path that was answered.
            shadow: (steps, kinds, valuations, budgets) the best response to it, as the shadow price that is added
                to the valuation.
            flow: what happens when everyone plays that response; `flow.price` are the prices that come out.
        """


class BestResponse(Method):
    """Damped best response: move the price path part of the way to the prices that came out.

    The share is halved after overshooting or standing still; below `least_share` the method gives up.

    Args:
        share: of the way, at first.
        patience: iterations without getting closer after which the share is halved.
        least_share: smallest share that is tried.
    """

    name = "best-response"

    def __init__(self, share: float = 0.5, patience: int = 15, least_share: float = 1e-3) -> None:
        if not 0 < least_share <= share <= 1:
            raise ConfigurationError(
                f"share {share} and least_share {least_share}",
                "use 0 < least_share ≤ share ≤ 1, such as 0.5 and 1e-3",
            )
        self._first_share = share
        self.patience = patience
        self.least_share = least_share
        self._forget()

    def _forget(self) -> None:
        self.share = self._first_share
        self._best = np.inf
        self._waited = 0

    def begin(self, game: DiscreteGame, price: Array) -> None:
        """Starts with the first share again."""
        self._forget()

    def next_price(self, price: Array, shadow: Array, flow: Flow) -> Array | None:
        """price + share × (price that came out − price)."""
        if not self._heed(float(np.abs(flow.price - price).max() / flow.price.mean())):
            return None
        return np.asarray(price + self.share * (flow.price - price))

    def _heed(self, change: float) -> bool:
        """Takes note of a price change; False when smaller steps no longer help."""
        self._waited = 0 if change < 0.9 * self._best else self._waited + 1
        if change > 2.0 * self._best or self._waited > self.patience:
            self.share = 0.5 * self.share
            self._best = change
            self._waited = 0
        self._best = min(self._best, change)
        return self.share >= self.least_share


class _MixedPlay:
    """A population whose clients draw how much they add to their valuation from a list of numbers.

    Policies are (steps, kinds, valuations, budgets, additions), probabilities along the last axis.
    """

    def __init__(self, game: DiscreteGame, price: Array, count: int) -> None:
        _, shadow = game.best_response(price)
        low = min(float(shadow.min()), 0.0)
        high = max(float(shadow.max()), low + game.mesh.valuation_width)
        # Responses to later price paths may lie beyond those to the first one.
        self.game = game
        self.additions = np.linspace(low, high + 0.25 * (high - low), count)
        self._report = game.mesh.valuation[:, None] + self.additions  # (valuations, additions)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a policy."""
        return (self.game.grid.time_steps, *self.game.initial_mass.shape, self.additions.size)

    def split(self, shadow: Array) -> tuple[NDArray[np.intp], Array]:
        """Where additions lie in the list: the number of the lower neighbour, and the weight of the upper one."""
        gap = self.additions[1] - self.additions[0]
        place = np.clip((shadow - self.additions[0]) / gap, 0.0, self.additions.size - 1.0)
        below = np.minimum(place.astype(np.intp), self.additions.size - 2)
        return below, place - below

    def flow(self, policy: Array) -> tuple[Array, Array]:
        """Prices (steps,) and mass (steps + 1, kinds, valuations, budgets) when everyone plays the policy."""
        game = self.game
        steps = game.grid.time_steps
        mass = np.empty((steps + 1, *game.initial_mass.shape))
        mass[0] = game.initial_mass
        price = np.empty(steps)
        for n in range(steps):
            now = policy[n]
            here = mass[n]

            def spend(level: float, now: Array = now, here: Array = here) -> float:
                exposed = game.scheme.exposure(here, self._rate(now, level), game.mesh)
                paid = self._mean(now, game.problem.market.spend(self._report, level, game.mesh.valuation_width))
                return float(np.vdot(exposed, paid * game.can_sell))

            price[n], _ = game.clear_spend(spend, price[n - 1] if n else np.nan)
            mass[n + 1] = game.move(game.scheme.move(here, self._rate(now, price[n]), game.mesh))
        return price, mass

    def advantage(self, policy: Array, price: Array) -> Array:
        """Per round: reward − sold × ∂_rΦ of each addition, where Φ is the policy's value; the shape of a policy.

        This is the policy's Q function up to a term that is the same for all additions.
        """
        game = self.game
        width = game.mesh.valuation_width
        found = np.empty(self.shape)
        value = np.zeros_like(game.initial_mass)
        if game.problem.final_value is not None:
            value = value + game.problem.final_value(game.mesh.budget)
        for n in reversed(range(game.grid.time_steps)):
            level = float(price[n])
            expected = game.expect(value)
            market = game.problem.market
            reward = market.reward(game.mesh.valuation[:, None], self._report, level, width)
            sold = market.sold(self._report, level, width)
            mean_reward = self._mean(policy[n], reward) * game.can_sell + game.holding
            value = game.scheme.advance(expected, self._rate(policy[n], level), mean_reward, game.mesh)
            shadow = shadow_price(value if game.scheme.implicit else expected, game.mesh)
            found[n] = reward[:, None, :] - shadow[..., None] * sold[:, None, :]
        return found

    def _rate(self, policy: Array, level: float) -> Array:
        sold = self.game.problem.market.sold(self._report, level, self.game.mesh.valuation_width)
        return self._mean(policy, sold) * self.game.can_sell

    def _mean(self, policy: Array, table: Array) -> Array:
        """(kinds, valuations, budgets) the mean of a table (valuations, additions) under one step's policy."""
        return np.asarray(np.matmul(policy, table[None, :, :, None])[..., 0])


class FictitiousPlay(Method):
    """Fictitious play: answer the prices of a population that plays the average of all best responses so far.

    The average is over clients, not over bids: each best response is played by an equal share of the population. It
    is kept on a list of additions to the valuation, each response split between its two neighbours there.

    Implements: fictitious play of [CardaliaguetHadikhanloo2017], in the discrete form of [Perrin2020].

    Args:
        additions: length of the list; memory and time grow with it.
    """

    name = "fictitious-play"

    def __init__(self, additions: int = 33) -> None:
        self.additions = _enough(additions)

    def begin(self, game: DiscreteGame, price: Array) -> None:
        """Starts without any response."""
        self._game = game
        self._play = _MixedPlay(game, price, self.additions)
        self._played = np.zeros(self._play.shape)

    def next_price(self, price: Array, shadow: Array, flow: Flow) -> Array | None:
        """Adds the best response to the average and returns the prices at which the average population clears."""
        mass = self._game.flow(shadow, price).mass[:-1]
        below, weight = self._play.split(shadow)
        add = np.take_along_axis(self._played, below[..., None], axis=-1)[..., 0] + mass * (1.0 - weight)
        np.put_along_axis(self._played, below[..., None], add[..., None], axis=-1)
        add = np.take_along_axis(self._played, below[..., None] + 1, axis=-1)[..., 0] + mass * weight
        np.put_along_axis(self._played, below[..., None] + 1, add[..., None], axis=-1)
        total = self._played.sum(axis=-1, keepdims=True)
        # Where nobody has been yet, the latest response stands in; it does not matter there.
        policy = np.where(total > 0.0, self._played / np.where(total > 0.0, total, 1.0), 0.0)
        nobody = total[..., 0] == 0.0
        rows = np.nonzero(nobody)
        policy[(*rows, below[nobody])] = 1.0 - weight[nobody]
        policy[(*rows, below[nobody] + 1)] = weight[nobody]
        return self._play.flow(policy)[0]


class OnlineMirrorDescent(Method):
    """Online mirror descent: every state keeps a score per addition to the valuation and plays their softmax.

    The scores grow by `rate` × what each addition would have earned in the last iteration. No client plays a
    best response; it is only computed to return a strategy and to see how far it is from an equilibrium.

    Implements: online mirror descent of [Perolat2022].

    Args:
        rate: how fast scores grow, in units of one over the most that a client can be paid in a round.
        additions: length of the list; memory and time grow with it.
    """

    name = "online-mirror-descent"

    def __init__(self, rate: float = 100.0, additions: int = 33) -> None:
        if not 0 < rate < np.inf:
            raise ConfigurationError(f"rate is {rate}: must be above 0", "leave it out for the default")
        self.rate = rate
        self.additions = _enough(additions)

    def begin(self, game: DiscreteGame, price: Array) -> None:
        """Starts with equal scores."""
        self._play = _MixedPlay(game, price, self.additions)
        self._scores = np.zeros(self._play.shape)
        self._policy = np.full(self._play.shape, 1.0 / self.additions)
        self._unit = game.problem.market.most_sold * game.problem.price_ceiling
        self._price = self._play.flow(self._policy)[0]

    def next_price(self, price: Array, shadow: Array, flow: Flow) -> Array | None:
        """Raises the scores by what the additions earn and returns the prices of the new policy."""
        self._scores += self.rate / self._unit * self._play.advantage(self._policy, self._price)
        shifted = np.exp(self._scores - self._scores.max(axis=-1, keepdims=True))
        self._policy = shifted / shifted.sum(axis=-1, keepdims=True)
        self._price = self._play.flow(self._policy)[0]
        return self._price


def _enough(additions: int) -> int:
    if additions < 2:
        raise ConfigurationError(f"additions is {additions}: at least 2 needed", "use 33, the default")
    return additions


METHODS: dict[str, type[Method]] = {m.name: m for m in (BestResponse, FictitiousPlay, OnlineMirrorDescent)}
"""The methods that `solve` knows by name."""
