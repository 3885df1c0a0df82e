"""What is publicly known about a market before anyone bids, as one record that any rule can be told from."""

from __future__ import annotations

from dataclasses import dataclass

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Bids
from privmarket.market._distributions import Distribution, EmpiricalDistribution, IndependentDistribution


@dataclass(frozen=True, eq=False)
class MarketFacts:
    """Public facts of a market. None means: not known.

    A rule lists in `Mechanism.market_facts` which of these fields its constructor takes, and
    `privmarket.mechanism(name, market=facts)` hands over those that are known. Nothing in here may be computed
    from the bids of the round that the rule clears.

    Attributes:
        distribution: the distribution that clients are drawn from.
        scenario: the name under which learned rules look up what was trained for this distribution.
        epsilon_max: the most ε that a client may offer in one round.
        past_bids: bids of earlier rounds, (clients,).
    """

    distribution: Distribution | None = None
    scenario: str | None = None
    epsilon_max: float | None = None
    past_bids: Bids | None = None

    def __post_init__(self) -> None:
        if self.epsilon_max is not None:
            offer_limit(self.epsilon_max)

    @classmethod
    def of(cls, distribution: Distribution) -> MarketFacts:
        """What follows from a distribution: its name, its limit on offers and, where it has them, its rows."""
        past = (
            distribution.past if isinstance(distribution, EmpiricalDistribution | IndependentDistribution) else None
        )
        return cls(
            distribution=distribution,
            scenario=distribution.name,
            epsilon_max=distribution.epsilon_max,
            past_bids=past,
        )


def offer_limit(epsilon_max: float) -> float:
    """`epsilon_max` as a number, refused unless it can limit offers."""
    if not 0 < epsilon_max < float("inf"):
        raise ConfigurationError(
            f"epsilon_max is {epsilon_max}: must be finite and above 0",
            "give the most ε that a client may offer in one round, e.g. 5",
        )
    return float(epsilon_max)
