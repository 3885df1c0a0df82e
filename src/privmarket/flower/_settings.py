"""The settings of a market on Flower: the auction, the training plan, the deadlines. Does not need torch.

`settings_from` and the `require_…` functions check the arguments of apps before the first message: misspelt names,
a module in place of the function that makes it, a score that is no number.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, UserConfigValue

from privmarket._settings import EPSILON_MAX, MarketPlan, TrainingPlan, setting
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.flower import _failures as failures
from privmarket.flower._wire import Arrays
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import AggregationError
from privmarket.mechanisms import Rule, resolve
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.secagg import DEFAULT_COHORT

if TYPE_CHECKING:
    from torch import nn

    from privmarket.simulation._own_records import OwnRecords
    from privmarket.tasks import Task


@dataclass(frozen=True, kw_only=True)
class MarketSettings(MarketPlan, TrainingPlan):
    """One run's public settings: those of every engine (`plans`), and those that only Flower needs."""

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
            # A run configuration may give 2 for a float; 2.5 rounds are an error.
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
        """The auction rule, with the public limit on offers if it takes one."""
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


_log = logging.getLogger("flwr.privmarket")


def settings_from(place: str, given: Mapping[str, Any], others: Iterable[str]) -> MarketSettings:
    """Settings by name.

    Args:
        place: the function whose arguments they are, for messages.
        others: further arguments of `place`, for suggestions.

    Raises:
        UnknownNameError: a name is not a setting; the message has the nearest one.
        ConfigurationError: a value is outside its limits.
    """
    known = [one.name for one in fields(MarketSettings)]
    for name in given:
        if name not in known:
            raise UnknownNameError.among(f"argument of {place}", name, [*known, *others])
    return MarketSettings(**given)


def own_arguments(function: Callable[..., object]) -> list[str]:
    """The names that a function takes beside its settings."""
    return [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_KEYWORD]


def require_maker(place: str, name: str, value: object) -> None:
    """Refuses an object where a function that makes it is needed: `model=build()` for `model=build`.

    Raises:
        ConfigurationError: it cannot be called without arguments, or is a module.
    """
    if value is None:
        return
    kind = type(value).__name__
    made = hasattr(value, "state_dict") and not isinstance(value, type)
    if made:
        raise ConfigurationError(
            f"{place}: {name} is a {kind}, not a function that makes one",
            f"leave out the brackets: {name}=build, not {name}=build(); or {name}=lambda: {kind}(…)",
        )
    if not callable(value):
        raise ConfigurationError(
            f"{place}: {name} is {value!r}, not a function", f"give a function without arguments as {name}="
        )


def score_of(value: object, function: Callable[..., object]) -> float:
    """The number that a scoring function returned.

    Raises:
        ConfigurationError: it is not a number; the message has the function's file and line.
    """
    plain = value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1,) else value
    if callable(plain):
        plain = None
    if isinstance(plain, Real) and not isinstance(plain, bool) and math.isfinite(float(plain)):
        return float(plain)
    hint = "return one finite number, the higher the better"
    if isinstance(value, Mapping):
        key = next(iter(value), "accuracy")
        hint = f"return one number, for instance result[{str(key)!r}]"
    elif isinstance(value, tuple | list):
        hint = "return one number, for instance the last of these"
    raise ConfigurationError(f"{where(function)}: evaluate returned {value!r:.80}", hint)


def where(function: Callable[..., object]) -> str:
    """`file.py, line 12`: the place of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return getattr(function, "__qualname__", type(function).__name__)
    return f"{code.co_filename}, line {code.co_firstlineno}"


def tried_score(measure: Callable[..., object], *arguments: Any) -> float:
    """The first score, before anyone is asked for a bid, so that an error here costs nothing.

    Raises:
        ConfigurationError: the function raised an error, or returned no number.
    """
    try:
        value = measure(*arguments)
    except ConfigurationError:
        raise
    except Exception as error:  # the function is the user's and may raise anything
        raise ConfigurationError(
            f"evaluate failed before the first round: {failures.story(error)}", "correct that line"
        ) from error
    return score_of(value, measure)


def later_score(measure: Callable[..., object], *arguments: Any) -> float | None:
    """A score after a round; None, with a line in the log, if it fails: the round is paid and must be kept."""
    try:
        return score_of(measure(*arguments), measure)
    except Exception as error:  # the function is the user's and may raise anything
        _log.error("evaluate failed after a round that is paid; the run goes on: %s", failures.story(error))
        return None


def checked_evaluation(
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None],
) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """A strategy's `evaluate_fn`; it may raise an error before the first round only."""

    def measure(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        try:
            value = evaluate(number, arrays)
            if value is not None and not isinstance(value, MetricRecord):
                wanted = (
                    f"return MetricRecord({value})" if isinstance(value, dict) else "return a MetricRecord, or None"
                )
                raise ConfigurationError(f"{where(evaluate)}: evaluate_fn returned {value!r:.80}", wanted)
            return value
        except Exception as error:  # the function is the user's and may raise anything
            if number == 0:
                if isinstance(error, ConfigurationError):
                    raise
                raise ConfigurationError(
                    f"evaluate_fn failed before the first round: {failures.story(error)}", "correct that line"
                ) from error
            _log.error("evaluate_fn failed after a round that is paid; the run goes on: %s", failures.story(error))
            return None

    return measure


InitialWeights = Callable[[], Mapping[str, np.ndarray]]
Evaluate = Callable[[Arrays], float]
"""The weights that are tested, array by array ↦ a score."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What a run trains and measures.

    Attributes:
        start: the first weights, array by array.
        measure: the weights ↦ a score; None if nothing is measured.
        build: makes the module, if there is one.
        task: what is learned, if the app gave a task.
        own_records: the models of the buyer's own records.
    """

    start: InitialWeights
    measure: Evaluate | None
    build: Callable[[], nn.Module] | None = None
    task: Task | None = None
    own_records: OwnRecords | None = None
