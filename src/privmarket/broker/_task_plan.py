"""What a buyer fixes when it publishes a task and a seller when it registers, each setting declared once.

Forms, checks and defaults are made from these records; rows and answers have their fields, which a test compares.
Defaults are those of `privmarket._settings`, with the exceptions that are named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

from privmarket._settings import (
    EPSILON_MAX,
    TRUSTS,
    MarketPlan,
    TrainingPlan,
    check_settings,
    require_one_step,
    setting,
)
from privmarket.broker._http_errors import BrokerError
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Sealing = Literal["broker", "bidder"]
Delivery = Literal["open", "sealed"]
SEALINGS, DELIVERIES = get_args(Sealing), get_args(Delivery)
MONEY_LIMIT_MICRO = 10**15  # the most of any amount
YEAR_SECONDS = 366 * 24 * 3600  # the longest that anything may last
TITLE_LENGTH = 120
SAMPLING_RATE_LEAST = 1e-6  # one record in a million; below, float64 loses the digits of the noise
_FLOAT, _INT, _STR = cast(float, MISSING), cast(int, MISSING), cast(str, MISSING)  # no default: must be given
# Narrower than a plan's δ: strangers choose it, and beyond these limits a promise means nothing or costs hours.
_DELTA_LEAST, _DELTA_MOST = 1e-12, 0.5


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """A task as its buyer publishes it: a budget per round, the rule, the release that is bought, deadlines."""

    title: str = setting(_STR, "What the buyer calls it.")
    mechanism: str = setting(MarketPlan.mechanism, "Which auction rule.")
    settings: Mapping[str, object] = field(default_factory=dict)
    budget_micro: int = setting(_INT, "Money per round.", at_least=1, at_most=MONEY_LIMIT_MICRO)
    # A plan has 200 rounds, one training; a task is one round unless its buyer wants more.
    rounds: int = setting(1, "How many rounds may be opened.", at_least=1, at_most=100_000)
    epsilon_max: float = setting(EPSILON_MAX, "The public limit on offers.", above=0, at_most=100)
    sampling_rate: float = setting(
        TrainingPlan.sampling_rate,
        "Probability with which a record enters a step.",
        at_least=SAMPLING_RATE_LEAST,
        at_most=1,
    )
    # A plan has no upper limit; here strangers choose it, and the broker computes the noise table.
    steps: int = setting(TrainingPlan.steps, "Noisy local steps per round.", at_least=1, at_most=1_000_000)
    delta: float = setting(MarketPlan.delta, "The δ of every sale.", at_least=_DELTA_LEAST, at_most=_DELTA_MOST)
    sealing: str = setting("broker", "Who keeps bids sealed until bidding ends.", choices=SEALINGS)
    buyer_may_close: bool = setting(False, "Whether the buyer may end bidding before its deadline.")
    bid_seconds: int = setting(3600, "Time for bids.", at_least=1, at_most=YEAR_SECONDS)
    reveal_seconds: int = setting(600, "Time to reveal bids that bidders sealed.", at_least=1, at_most=YEAR_SECONDS)
    delivery_seconds: int = setting(3600, "Time to claim a delivery.", at_least=1, at_most=YEAR_SECONDS)
    review_seconds: int = setting(3600, "Time for the buyer's receipts.", at_least=0, at_most=YEAR_SECONDS)
    dispute_seconds: int = setting(3600, "Time to dispute a rejection.", at_least=0, at_most=YEAR_SECONDS)
    ruling_seconds: int = setting(86_400, "Time for the arbiter's ruling.", at_least=0, at_most=YEAR_SECONDS)
    arbiter_id: str | None = setting(None, "Who rules on disputes; an operator where nobody is named.")
    delivery: str = setting("open", "How updates travel.", choices=DELIVERIES)
    attested: bool = setting(False, "Whether only sellers that attest their data set may bid.")
    trust: str = setting(MarketPlan.trust, "Against whom sales protect.", choices=TRUSTS)
    honest_share: float = setting(
        MarketPlan.honest_share, "The share of sellers whose noise protects each of them.", above=0, at_most=1
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 < len(self.title.strip()) <= TITLE_LENGTH or not self.title.isprintable():
            raise BrokerError(
                "a title of the wrong length, or that does not print", f"give 1 to {TITLE_LENGTH} characters"
            )
        require_one_step(self.trust, self.steps)


@dataclass(frozen=True, kw_only=True)
class WalletPlan:
    """A seller's lifetime wallet: at most ε at δ, for ever."""

    cap_epsilon: float = setting(_FLOAT, "The lifetime cap.", above=0, at_most=1e4)
    delta: float = setting(_FLOAT, "The δ at which it holds.", at_least=_DELTA_LEAST, at_most=_DELTA_MOST)

    def __post_init__(self) -> None:
        check_settings(self)


def checked(record: type[Record], given: Mapping[str, object]) -> Record:
    """A record from fields by name; whole numbers become floats where the record says so.

    Raises:
        BrokerError: a field is unknown, missing, or beyond its limits.
    """
    known = {one.name: one for one in fields(record)}
    for name in sorted(set(given) - set(known)):
        raise BrokerError(f"there is no field {name!r}", f"give some of: {', '.join(known)}")
    for name, one in known.items():
        if name not in given and one.default is MISSING and one.default_factory is MISSING:
            raise BrokerError(f"{name} is missing", f"give {name}")
    numbers = {name: value for name, value in given.items() if known[name].type == "float"}
    floats = {name: float(one) for name, one in numbers.items() if isinstance(one, int | float)}
    try:
        return record(**{**given, **floats})
    except ConfigurationError as error:
        raise BrokerError(error.message, error.hint) from error
