"""What was released, in the form that accountants and wallets use: frozen events, counted in one place.

A `PrivacyEvent` is the release that this package trains models with: a number of identical steps. Each step draws a
Poisson sample of the client's records, clips the contribution of each to norm C, adds them up, and adds N(0,
(noise_multiplier · C)²) to every coordinate. The full batch is sampling rate 1. Neighbours differ in one record (or
person) being zeroed out; the number of records is public, so the sum's sensitivity is C.

Every other release, with other noise, is an `OtherRelease`: a class that states how far apart its outputs are with
and without one unit. Laplace noise is in `_laplace`; docs/how-to/other-releases.md shows one of your own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError

if TYPE_CHECKING:
    import dp_accounting
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
else:
    dp_accounting = late("dp_accounting")

Unit = Literal["record", "person"]
"""What one unit of privacy is: a record, or all records of a person at one client."""

Array = NDArray[np.float64]


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


class OtherRelease(ABC):
    """A release whose noise is not Gaussian. Derive a frozen dataclass from it, so that equal releases are equal.

    Accountants and wallets need one figure, `renyi_divergence`. The others make them tighter where they are known.
    Let P and Q be the distributions of the output with and without one unit. Every figure must hold for both orders
    of the pair, and must never be below the truth: nothing here can check that.
    """

    stored_name: ClassVar[str] = ""
    """The name of this class in stored wallets; `module:Class` unless the class sets another."""

    _known: ClassVar[dict[str, type[OtherRelease]]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "stored_name" not in vars(cls):
            cls.stored_name = f"{cls.__module__}:{cls.__qualname__}"
        OtherRelease._known[cls.stored_name] = cls

    @abstractmethod
    def renyi_divergence(self, orders: Array) -> Array:
        """(orders,) at least the Rényi divergence D_α(P‖Q) at each order α > 1; infinite where it is not known."""

    @property
    def gaussian_mu(self) -> float:
        """A μ such that P and Q are no easier to tell apart than N(0, 1) and N(μ, 1); infinite if none is known."""
        return math.inf

    @property
    def pure_epsilon(self) -> float:
        """ε at δ = 0: no output is more than e^ε times as likely under P as under Q; infinite if there is none."""
        return math.inf

    def loss_distribution(self, spacing: float) -> PrivacyLossDistribution | None:
        """dp-accounting's privacy loss distribution of the release, pessimistic, with losses in bins of `spacing`.

        None if it is not known; then ε by loss distributions is infinite, and Rényi accounting is used.
        """
        return None

    def for_group(self, records: int) -> OtherRelease | None:
        """The same release for a person with this many records, all zeroed out at once; None if not known."""
        return None


Release = PrivacyEvent | OtherRelease
"""Whatever an accountant composes and a wallet is charged with."""


class Step(NamedTuple):
    """One noisy sum: its noise multiplier and sampling rate. An event repeats it `steps` times."""

    noise_multiplier: float
    sampling_rate: float


def step_counts(events: Iterable[Release | None]) -> dict[Step | OtherRelease, int]:
    """How often each mechanism ran in all; None is a round in which nothing was released.

    The only place where a release is multiplied by its count: every accountant starts from here, so that
    one event of ten steps and ten events of one step cannot disagree.
    """
    counts: dict[Step | OtherRelease, int] = {}
    for event in events:
        if isinstance(event, PrivacyEvent):
            step = Step(event.noise_multiplier, event.sampling_rate)
            counts[step] = counts.get(step, 0) + event.steps
        elif event is not None:
            require_release(event)
            counts[event] = counts.get(event, 0) + 1
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

    parts = []
    for step, count in step_counts(events).items():
        if not isinstance(step, Step):
            raise PrivacyError(f"{step}: has no form in dp-accounting's terms", "compose its own event there")
        parts.append(one(step, count))
    return dp_accounting.ComposedDpEvent(parts) if parts else dp_accounting.NoOpDpEvent()


def to_json(event: Release) -> dict[str, Any]:
    """The fields of a release, for a store; `from_json` reads them."""
    if isinstance(event, PrivacyEvent):
        return asdict(event)
    if not is_dataclass(event):
        raise PrivacyError(f"{event}: cannot be stored", "derive a frozen dataclass from OtherRelease")
    return {"release": event.stored_name, **asdict(event)}


def from_json(fields: Mapping[str, Any]) -> Release:
    """A release from its stored fields, as `to_json` gives them.

    A class of your own must have been imported before: reading a file never imports what the file names.
    """
    name = fields.get("release")
    known = {"noise_multiplier", "sampling_rate", "steps"}
    if name is None and set(fields) != known:
        raise PrivacyError(
            f"a stored privacy event has fields {sorted(fields)}", f"expected {', '.join(sorted(known))}"
        )
    if name is not None and name not in OtherRelease._known:
        raise PrivacyError(f"a stored release is a {name!r}, which is not known", "import its module first")
    made = PrivacyEvent if name is None else OtherRelease._known[name]
    try:
        return made(**{key: value for key, value in fields.items() if key != "release"})
    except PrivacyError:
        raise
    except (TypeError, ValueError) as error:
        raise PrivacyError(f"a stored release {dict(fields)}: {error}", "restore the file from a copy") from error


def require_release(event: object) -> None:
    """Refuses what is not a release: a thing that an accountant does not know must not count as free."""
    if not isinstance(event, PrivacyEvent | OtherRelease):
        raise PrivacyError(
            f"{event!r} is not a release",
            "give a PrivacyEvent, a LaplaceRelease, or a class derived from OtherRelease",
        )


def require_delta(delta: float) -> None:
    """Refuses a δ that is not a probability, or is too small for float64 to certify."""
    if not 1e-12 <= delta <= 0.5:
        raise PrivacyError(
            f"delta is {delta}: must lie between 1e-12 and 0.5",
            f"choose it well below 1 / number of records; the default is {DELTA}",
        )
