"""What was released: frozen events, and the one place where a release is multiplied by its count.

Every event is a number of identical steps of one mechanism: a sum over a Poisson sample of the client's
records, clipped to norm C each, plus N(0, (noise_multiplier · C)²) on every coordinate. The full batch is
sampling rate 1. The privacy unit is one record (or person) zeroed out, the number of records being public, so the
sum's sensitivity is C.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError

if TYPE_CHECKING:
    import dp_accounting
else:
    dp_accounting = late("dp_accounting")


Unit = Literal["record", "person"]
"""What one unit of privacy is: a record, or all records of a person at one client."""


@dataclass(frozen=True, slots=True)
class PrivacyEvent:
    """`steps` noisy sums, each over a fresh Poisson sample: every record with probability `sampling_rate`.

    `noise_multiplier` is the noise's standard deviation over the sum's L2 sensitivity. By default one sum over all
    records.
    """

    noise_multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise PrivacyError(
                f"noise multiplier is {self.noise_multiplier}: must be finite and above 0",
                "a release without noise has no finite ε; sell nothing instead",
            )
        if not 0.0 < self.sampling_rate <= 1.0:
            raise PrivacyError(
                f"sampling rate is {self.sampling_rate}: must be above 0 and at most 1",
                "it is the probability with which a record enters a step; 1 means the full batch",
            )
        if self.steps != int(self.steps) or self.steps < 1:
            raise PrivacyError(
                f"steps is {self.steps}: must be a whole number, at least 1", "leave out the release"
            )


class Step(NamedTuple):
    """One noisy sum: its noise multiplier and sampling rate. An event repeats it `steps` times."""

    noise_multiplier: float
    sampling_rate: float


def step_counts(events: Iterable[PrivacyEvent | None]) -> dict[Step, int]:
    """How often each mechanism ran in all; None is a round in which nothing was released.

    The only place where a release is multiplied by its count: every accountant starts from here, so that
    one event of ten steps and ten events of one step cannot disagree.
    """
    counts: dict[Step, int] = {}
    for event in events:
        if event is not None:
            step = Step(event.noise_multiplier, event.sampling_rate)
            counts[step] = counts.get(step, 0) + event.steps
    return counts


def to_dp_event(events: Iterable[PrivacyEvent | None]) -> dp_accounting.DpEvent:
    """The same releases in dp-accounting's terms. An empty list is its no-op."""

    def one(step: Step, count: int) -> dp_accounting.DpEvent:
        gaussian = dp_accounting.GaussianDpEvent(step.noise_multiplier)
        sampled = (
            gaussian
            if step.sampling_rate == 1.0
            else dp_accounting.PoissonSampledDpEvent(step.sampling_rate, gaussian)
        )
        return dp_accounting.SelfComposedDpEvent(sampled, count)

    parts = [one(step, count) for step, count in step_counts(events).items()]
    return dp_accounting.ComposedDpEvent(parts) if parts else dp_accounting.NoOpDpEvent()


def from_json(fields: Mapping[str, float]) -> PrivacyEvent:
    """An event from its stored fields, as `dataclasses.asdict` gives them."""
    known = {"noise_multiplier", "sampling_rate", "steps"}
    if set(fields) != known:
        raise PrivacyError(
            f"a stored privacy event has fields {sorted(fields)}", f"expected {', '.join(sorted(known))}"
        )
    return PrivacyEvent(float(fields["noise_multiplier"]), float(fields["sampling_rate"]), int(fields["steps"]))


def require_delta(delta: float) -> None:
    """Refuses a δ that is no probability, or too small for float64 to certify."""
    if not 1e-12 <= delta <= 0.5:
        raise PrivacyError(
            f"delta is {delta}: must lie between 1e-12 and 0.5",
            f"choose it well below 1 / number of records; the default is {DELTA}",
        )
