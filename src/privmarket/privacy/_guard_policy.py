"""The `[guard]` table of a site's policy: what may leave a Flower client that takes part in no market.

A site that is guarded sells nothing. It answers the training messages of any server, and this table says with how
much noise, and which other numbers may go with an update. `flower.GuardMod` reads it; the wallet, δ, the unit and
the limits on weights are those of the rest of the file.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from privmarket.errors import ConfigurationError
from privmarket.privacy._events import PrivacyEvent

Training = Literal["auto", "records", "update"]
Failures = Literal["noise", "tell"]
_UNLIMITED = "unlimited"
GUARDED = "guard "  # how the name of a guarded release begins in a wallet


@dataclass(frozen=True)
class GuardedMetric:
    """A number that may leave with a reply, under a name that the policy gives.

    Attributes:
        value: a constant that leaves whatever the app measured; None where the app's own number leaves.
        low, high: the range to which the app's number is clipped.
        epsilon: ε of one release, at the policy's δ. Infinite, which must be written out as "unlimited", sends the
            number without noise: a promise about the site's records then does not cover it.
    """

    value: float | None = None
    low: float = 0.0
    high: float = 1.0
    epsilon: float = math.inf

    @property
    def is_priced(self) -> bool:
        """Whether it leaves with noise and is charged to the wallet."""
        return self.value is None and math.isfinite(self.epsilon)


@dataclass(frozen=True)
class GuardPolicy:
    """What a guard lets out. Every field is a key of the table `[guard]`.

    Attributes:
        training: "update" clips the whole change of the weights and adds noise to it, whatever the app did;
            "records" demands that the app trains by `train_privately`, which clips record by record and needs far
            less noise, but believes the app what a record is; "auto" takes the second where the app calls it.
        epsilon: ε of one update, at the policy's δ.
        clip_norm: the norm to which an update, or one record's gradient, is clipped.
        learning_rate, steps, sampling_rate: of training record by record: step size, noisy steps in one update,
            and the share of the records that is drawn for each.
        examples: the number of records that the site declares; constant and public. It is the site's weight in
            FedAvg, and what sums over records are divided by.
        examples_key: under which name that number is sent; a strategy's `weighted_by_key`.
        metrics_record: the name of the record that holds it, and the metrics.
        failures: what leaves when the app fails. "noise" answers with noise alone, so that nobody can tell;
            "tell" answers that it failed, which is one bit about the records that no ε accounts for.
        train, evaluate: metrics that leave with an update, or in answer to an evaluation. Without one, evaluation
            is refused.
    """

    training: Training = "auto"
    epsilon: float = 1.0
    clip_norm: float = 1.0
    learning_rate: float = 1.0
    steps: int = 1
    sampling_rate: float = 1.0
    examples: int = 1
    examples_key: str = "num-examples"
    metrics_record: str = "metrics"
    failures: Failures = "noise"
    train: Mapping[str, GuardedMetric] = field(default_factory=dict)
    evaluate: Mapping[str, GuardedMetric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip_norm", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"guard: {name} is {getattr(self, name)}", "give a number above 0")
        if self.examples < 1:
            raise ConfigurationError(f"guard: examples is {self.examples}", "declare at least 1 record")
        for name, choices in (("training", get_args(Training)), ("failures", get_args(Failures))):
            if getattr(self, name) not in choices:
                raise ConfigurationError(
                    f"guard: {name} is {getattr(self, name)!r}",
                    _did_you_mean(str(getattr(self, name)), choices, "choose from"),
                )
        PrivacyEvent(1.0, self.sampling_rate, self.steps)  # refuses a schedule that no release can have
        for metrics in (self.train, self.evaluate):
            if self.examples_key in metrics:
                raise ConfigurationError(
                    f"guard: {self.examples_key} is declared as a metric", "the number of records is `examples`"
                )

    @property
    def expected_batch(self) -> float:
        """What a step's sum over records is divided by: the declared number of records in a sample."""
        return max(1.0, self.sampling_rate * self.examples)


def read_guard_table(key: str, table: object) -> GuardPolicy:
    """The policy in a TOML table.

    Raises:
        ConfigurationError: an unknown key, or a value of the wrong kind; with the place, but without the file.
    """
    if not isinstance(table, dict):
        raise ConfigurationError(f"{key} = {table!r}: not a table", f"write [{key}] and its keys below")
    known = {one.name: one for one in fields(GuardPolicy)}
    values: dict[str, object] = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigurationError(f"[{key}]: unknown key {name!r}", _did_you_mean(name, known, "known"))
        place = f"[{key}] {name}"
        if name in ("train", "evaluate"):
            values[name] = _metrics(f"{key}.{name}", value)
        elif name in ("steps", "examples"):
            values[name] = _whole(place, value)
        elif known[name].type == "float":
            values[name] = _number(place, value)
        else:
            values[name] = _text(place, value)
    return GuardPolicy(**values)  # type: ignore[arg-type]  # each value was read for its field


def _metrics(table: str, value: object) -> dict[str, GuardedMetric]:
    """The metrics of a table: a number is a constant, a table has a range and an ε."""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{table} = {value!r}: not a table", f"write [{table}] and one metric a line")
    found = {}
    for name, metric in value.items():
        place = f"[{table}] {name}"
        if not isinstance(metric, dict):
            found[name] = GuardedMetric(value=_number(place, metric))
            continue
        for key in metric:
            if key not in ("range", "epsilon"):
                raise ConfigurationError(
                    f"{place}: unknown key {key!r}", _did_you_mean(key, ("range", "epsilon"), "known")
                )
        form = f"write {name} = {{ range = [0, 1], epsilon = 0.1 }}, or a constant"
        limits = metric.get("range")
        if not isinstance(limits, list) or len(limits) != 2 or "epsilon" not in metric:
            raise ConfigurationError(f"{place}: needs a range of two numbers and an epsilon", form)
        low, high = _number(place, limits[0]), _number(place, limits[1])
        epsilon = math.inf if metric["epsilon"] == _UNLIMITED else _number(place, metric["epsilon"])
        if not -math.inf < low < high < math.inf or not epsilon > 0:
            raise ConfigurationError(f"{place}: range [{low:g}, {high:g}], epsilon {epsilon:g}", form)
        if metric["epsilon"] == math.inf:
            raise ConfigurationError(
                f"{place}: epsilon = inf", f'write "{_UNLIMITED}" to send it without noise, outside every promise'
            )
        found[name] = GuardedMetric(low=low, high=high, epsilon=epsilon)
    return found


def _number(place: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ConfigurationError(f"{place} = {value!r}: not a number", "give a number")
    return float(value)


def _whole(place: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{place} = {value!r}: not a whole number", "give a whole number")
    return value


def _text(place: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{place} = {value!r}: not a text", "write it in quotation marks")
    return value


def _did_you_mean(given: str, known: Mapping[str, object] | tuple[str, ...], otherwise: str) -> str:
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"{otherwise}: {', '.join(known)}"


TEMPLATE = """
# For a site that takes part in no market: what `pm.flower.GuardMod` lets out. See docs/how-to/guard-a-site.md.
[guard]
training = "auto"                  # or "records", or "update", which need not believe the app anything
epsilon = 1.0                      # ε of one update
clip_norm = 1.0
learning_rate = 1.0                # this line and the next two: only where the app calls train_privately
steps = 1
sampling_rate = 1.0
examples = 1                       # the number of records that the site declares, its weight in FedAvg
examples_key = "num-examples"      # a strategy's weighted_by_key
metrics_record = "metrics"
failures = "noise"                 # or "tell": says when the app failed, one bit that no ε accounts for
[guard.train]                      # metrics that leave with an update, e.g. train_loss = 0.0, a constant
[guard.evaluate]                   # e.g. accuracy = { range = [0, 1], epsilon = 0.1 }; none: evaluation is refused
"""
