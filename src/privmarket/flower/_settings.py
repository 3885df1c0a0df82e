"""What a market on Flower is told: the auction, the training plan, the deadlines. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from flwr.app import UserConfigValue

from privmarket._settings import EPSILON_MAX, MarketPlan, TrainingPlan, setting
from privmarket.errors import ConfigurationError
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import AggregationError
from privmarket.mechanisms import Rule, resolve
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.secagg import DEFAULT_COHORT


@dataclass(frozen=True, kw_only=True)
class MarketSettings(MarketPlan, TrainingPlan):
    """One run's public constants: what `plans` declares for every engine, and what only Flower needs."""

    mechanism: Rule = MarketPlan.mechanism  # type: ignore[assignment]  # here also a rule itself
    epsilon_max: float = setting(EPSILON_MAX, "The public limit on offers.", above=0)
    learning_rate: float | None = setting(
        None, "Local step size; left out, chosen in every round from what was sold, see `defaults`.", above=0
    )
    expected_batch: float | None = setting(
        None,
        "Public number by which sums over records are divided. Left out, the sampling rate times the mean number "
        "of records that clients declare.",
        above=0,
    )
    min_nodes: int = setting(1, "Nodes to wait for before the first round.", at_least=1)
    join_seconds: float = setting(120.0, "How long to wait for them.", at_least=0)
    bid_seconds: float = setting(120.0, "How long to wait for bids.", above=0)
    deadline_seconds: float = setting(600.0, "How long to wait for updates; who is later is not paid.", above=0)
    secure_aggregation: bool = setting(False, "Updates leave masked, see `secure`; tell the clients' app, too.")
    largest_cohort: int = setting(
        DEFAULT_COHORT,
        "The most sellers of one secure sum under aggregate trust. More are dealt to k sums: √k times the noise.",
        at_least=2,
    )
    receipts: bool = setting(True, "Tell every client what became of its last delivery when the run ends.")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            # A run configuration may give 2 for a number; 2.5 rounds are a slip.
            if one.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigurationError(f"{one.name} is {value!r}", "give a whole number")
        MarketPlan.__post_init__(self)

    @property
    def family(self) -> ReleaseFamily:
        """What sellers release, up to its noise."""
        return ReleaseFamily.of(self, self.delta)

    @property
    def objective(self) -> AggregationError:
        """The aggregation error (problem P2) with this run's κ and H, for rules that minimise it."""
        return AggregationError(self.kappa, self.heterogeneity)

    def rule(self) -> Mechanism:
        """The auction rule, told the public limit on offers where it wants to know it."""
        return resolve(self.mechanism, market=MarketFacts(epsilon_max=self.epsilon_max), **self.mechanism_settings)

    def overridden(self, run_config: Mapping[str, UserConfigValue]) -> MarketSettings:
        """These settings with those of Flower's run configuration that bear their names, `-` for `_`."""
        names = {f.name.replace("_", "-"): f.name for f in fields(self) if f.name != "mechanism_settings"}
        given = {names[key]: value for key, value in run_config.items() if key in names}
        return type(self)(**{**vars(self), **given})  # checked there, as every setting is

    def to_json(self) -> dict[str, object]:
        """The settings as JSON data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["mechanism"] = self.mechanism if isinstance(self.mechanism, str) else self.rule().name
        return {**plain, "mechanism_settings": {k: repr(v) for k, v in self.mechanism_settings.items()}}
