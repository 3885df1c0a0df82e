"""What a market on Flower is told: the auction, the training plan, the deadlines. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.federated.aggregation import AGGREGATIONS
from privmarket.federated.round import MICRO
from privmarket.market.mechanism import Mechanism
from privmarket.market.objectives import AggregationError
from privmarket.mechanisms import mechanism as named_mechanism
from privmarket.mechanisms import takes_setting
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import DEFAULT_DELTA


@dataclass(frozen=True)
class MarketSettings:
    """One run's public constants.

    Attributes:
        mechanism: the auction rule, or its name.
        mechanism_settings: settings of a rule given by name.
        budget: money per round.
        total_budget: money for the whole run, paced over its rounds; replaces `budget`.
        delta, epsilon_max: the δ of every sale and the public limit on offers.
        sampling_rate, steps, clip_norm, learning_rate, expected_batch: local training, see `LocalPlan`.
        aggregation: how updates are weighted: epsilon, epsilon-squared or optimal (with kappa, heterogeneity).
        server_rate, final_rate, momentum, averaging: the server's optimiser, see `ServerPlan`.
        min_nodes: nodes to wait for before the first round, at most `join_seconds`.
        bid_seconds, deadline_seconds: how long to wait for bids and for updates; who is later is not paid.
        evaluate_every: rounds between two measurements.
        secure_aggregation: see `secure`; the clients' app must be told, too.
        receipts: tell every client what became of its last delivery when the run ends.
    """

    mechanism: str | Mechanism = "mean-field-menu"
    mechanism_settings: Mapping[str, Any] = field(default_factory=dict)
    budget: float = 10.0
    total_budget: float | None = None
    rounds: int = 10
    delta: float = DEFAULT_DELTA
    epsilon_max: float = 5.0
    sampling_rate: float = 1.0
    steps: int = 1
    clip_norm: float = 1.0
    learning_rate: float = 1.0
    expected_batch: float = 1.0
    aggregation: str = "epsilon-squared"
    kappa: float = 1.0
    heterogeneity: float = 0.1
    server_rate: float = 1.0
    final_rate: float = 1.0
    momentum: float = 0.0
    averaging: float = 0.0
    min_nodes: int = 1
    join_seconds: float = 120.0
    bid_seconds: float = 120.0
    deadline_seconds: float = 600.0
    evaluate_every: int = 1
    secure_aggregation: bool = False
    receipts: bool = True

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise UnknownNameError(
                f"unknown aggregation {self.aggregation!r}", f"choose one of: {', '.join(AGGREGATIONS)}"
            )
        for name in ("budget", "epsilon_max", "clip_norm", "learning_rate", "expected_batch", "deadline_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} is {getattr(self, name)}", "must be finite and above 0")
        if self.rounds < 1 or self.min_nodes < 1 or self.evaluate_every < 1:
            raise ConfigurationError(
                f"rounds {self.rounds}, min_nodes {self.min_nodes}, evaluate_every {self.evaluate_every}",
                "each must be at least 1",
            )

    @property
    def family(self) -> ReleaseFamily:
        """What sellers release, up to its noise."""
        return ReleaseFamily(self.sampling_rate, self.steps, self.delta)

    @property
    def objective(self) -> AggregationError:
        """κ and H of P2."""
        return AggregationError(self.kappa, self.heterogeneity)

    def rule(self) -> Mechanism:
        """The auction rule, told the public limit on offers where it wants to know it."""
        if isinstance(self.mechanism, Mechanism):
            return self.mechanism
        given = dict(self.mechanism_settings)
        if "epsilon_max" not in given and takes_setting(self.mechanism, "epsilon_max"):
            given["epsilon_max"] = self.epsilon_max
        return named_mechanism(self.mechanism, **given)

    def budget_micro(self, number: int, spent_micro: int) -> int:
        """The escrow of round `number`: the budget per round, or an even share of what is left of the total."""
        if self.total_budget is None:
            return int(self.budget * MICRO)
        return max(1, (int(self.total_budget * MICRO) - spent_micro) // (self.rounds - number))

    def overridden(self, run_config: Mapping[str, Any]) -> MarketSettings:
        """These settings with those of Flower's run configuration that bear their names, `-` for `_`."""
        names = {f.name.replace("_", "-"): f.name for f in fields(self) if f.name != "mechanism_settings"}
        return replace(self, **{names[key]: value for key, value in run_config.items() if key in names})

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["mechanism"] = self.mechanism if isinstance(self.mechanism, str) else self.mechanism.name
        return {**plain, "mechanism_settings": {k: repr(v) for k, v in self.mechanism_settings.items()}}
