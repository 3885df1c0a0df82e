"""A seller's policy: what may be asked of this client, checked before any record is touched.

The server is not trusted. It names δ, the schedule, the clip norm, the learning rate and the weights, and each of
them can be chosen so that "ε = 1" means little or nothing. The policy is a small file that the seller writes. An
order outside it is refused with one word of `Reason`. The word depends only on the order, the policy and the
wallet, never on the records, so a refusal reveals nothing about them.

`SellerPolicy.read` reads the file (TOML), `TEMPLATE` is a file to start from. Its table `[guard]` (`GuardPolicy`)
is for a site that takes part in no market: it answers the training messages of any server, and the table says
with how much noise, and which other numbers may go with an update (`flower.GuardMod`).
"""

from __future__ import annotations

import difflib
import hashlib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from privmarket._files import in_words
from privmarket._settings import DELTA, TOLERANCE, Trust
from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.privacy._calibration import ReleaseFamily, alone_epsilon, is_ready, sold_epsilon
from privmarket.privacy._events import PrivacyEvent, Unit, require_delta

_ROUNDING = 1.0 + TOLERANCE

# Publishing each record outright with probability δ is (0, δ)-DP. At a tenth that is expected of one record even
# where there are only ten, so nothing is promised to anybody.
_MOST_DELTA = 0.1
REGISTERS = ("required", "none")
_KEY_DIGITS = 64
Declared = Literal["rounded", "exact"]
Training = Literal["auto", "records", "update"]
Failures = Literal["noise", "tell"]
GUARDED = "guard "  # a guarded release's name in a wallet begins with this

# Values with a meaning of their own in the policy file.
UNLIMITED: Literal["unlimited"] = "unlimited"
ANY = "any"
READY = "ready"
NONE = "none"
TENTH = "tenth"


class Reason(StrEnum):
    """Why a client refused: all that ever leaves it instead of an update."""

    EPSILON = "epsilon-per-sale"
    WALLET = "wallet"
    DELTA = "delta"
    SCHEDULE = "schedule"
    CLIP_NORM = "clip-norm"
    LEARNING_RATE = "learning-rate"
    EXPECTED_BATCH = "expected-batch"
    WEIGHTS = "weights"
    MODEL = "model"
    NOISE = "noise"
    RECORDS = "records"
    APP = "app"
    TRUST = "trust"
    HONEST_SHARE = "honest-share"
    COHORT = "cohort"
    REGISTER = "register"
    UNIT = "unit"
    BUYER = "buyer"
    BROKER = "broker"
    UNPAID = "unpaid"
    OFFER = "offer"
    AWARD = "award"
    SOLD = "sold-before"
    UNSOLD = "unsold"
    MESSAGE = "message"
    FAILED = "failed"

    @property
    def meaning(self) -> str:
        """The reason in one sentence, for the server's report."""
        return MEANINGS[self]


MEANINGS: dict[Reason, str] = {
    Reason.EPSILON: "more ε than the seller's policy allows in one sale",
    Reason.WALLET: "the seller's lifetime wallet does not hold this sale",
    Reason.DELTA: "δ is above the seller's",
    Reason.SCHEDULE: "a sampling rate and step count that the seller does not accept, or has no noise table for",
    Reason.CLIP_NORM: "the clip norm is outside the seller's range",
    Reason.LEARNING_RATE: "the learning rate is outside the seller's range",
    Reason.EXPECTED_BATCH: "the divisor of the sums is outside the seller's range",
    Reason.WEIGHTS: "weights of a wrong name, shape, type or size, or not finite, or too large",
    Reason.MODEL: "a model that the seller does not train, or that mixes records",
    Reason.NOISE: "noise that cannot be drawn exactly, or that would not reach the sum whole",
    Reason.RECORDS: "the client's own records cannot be used as they are; its owner finds the cause in its log",
    Reason.APP: "the client's own code fails before it trains; its owner finds the line in its log",
    Reason.TRUST: "a trust model that the seller does not accept",
    Reason.HONEST_SHARE: "the promise would rest on more honest sellers than this one is willing to suppose",
    Reason.COHORT: "too few sellers in a secure sum, or sellers, keys or survivors that others did not confirm",
    Reason.REGISTER: "the seller joins a secure sum only with sellers of a register, and knows none here",
    Reason.UNIT: "another privacy unit than the seller's",
    Reason.BUYER: "a buyer that the seller does not sell to, or that cannot be known without a broker",
    Reason.BROKER: "a broker that the seller does not use, or none where one is demanded",
    Reason.UNPAID: "earlier sales are not paid for: by this buyer, or by another where no broker tells them apart",
    Reason.OFFER: "nothing was offered for this, or less, or under other terms",
    Reason.AWARD: "the order is not what the broker awarded",
    Reason.SOLD: "this round is sold already",
    Reason.UNSOLD: "a message that was not paid for",
    Reason.MESSAGE: "a message that cannot be read",
    Reason.FAILED: "the client failed; its owner finds the cause in the client's own log",
}


class PolicyRefusal(PrivmarketError):
    """A client refuses an order. `reason` is what leaves the client; the message stays in its own log."""

    code = "refused"

    def __init__(self, reason: Reason, message: str = "", hint: str = "") -> None:
        super().__init__(message or reason.meaning, hint)
        self.reason = reason


@dataclass(frozen=True)
class Order:
    """What a server asks for. A field is None if the call for bids does not say it yet.

    Attributes:
        epsilon, delta: what is sold.
        sampling_rate, steps: the schedule.
        clip_norm, learning_rate, expected_batch: the training plan.
        trust: "local" or "aggregate".
        supposed_honest: under aggregate trust, the share of the sellers whose noise must protect each of them.
        sellers: under aggregate trust, how many sell in the round's secure sum.
        registered: whether the seller relies on a register of those that may be in a secure sum.
        unit: "record" or "person".
        buyer: who buys, as a broker says it; None where no broker is asked.
        broker: the broker's address; None without one.
    """

    delta: float
    sampling_rate: float = 1.0
    steps: int = 1
    epsilon: float | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    expected_batch: float | None = None
    trust: str = "local"
    supposed_honest: float = 0.0
    sellers: int | None = None
    registered: bool = False
    unit: str = "record"
    buyer: str | None = None
    broker: str | None = None


@dataclass(frozen=True)
class GuardedMetric:
    """A number that may leave with a reply, under a name that the policy gives.

    Attributes:
        value: a constant that leaves whatever the app measured; None where the app's own number leaves.
        low, high: the range to which the app's number is clipped.
        epsilon: ε of one release, at the policy's δ. Infinite, in the file "unlimited", sends the number without
            noise; the promise about the site's records then does not cover it.
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
        training: "update" clips the whole change of the weights and adds noise to it, whatever the app did.
            "records" demands that the app trains by `train_privately`, which clips record by record and needs far
            less noise, but trusts the app about what a record is. "auto" is "records" if the app calls it, else
            "update".
        epsilon: ε of one update, at the policy's δ.
        clip_norm: the norm to which an update, or one record's gradient, is clipped.
        learning_rate, steps, sampling_rate: of training record by record: step size, noisy steps in one update,
            and the share of the records that is drawn for each.
        examples: the number of records that the site declares, constant and public. It is the site's weight in
            FedAvg, and sums over records are divided by it.
        examples_key: under which name that number is sent; a strategy's `weighted_by_key`.
        metrics_record: the name of the record that holds it, and the metrics.
        failures: what leaves when the app fails. "noise" answers with noise alone, which looks like any other
            answer; "tell" answers that it failed, one bit about the records that no ε accounts for.
        train, evaluate: metrics that leave with an update, or in answer to an evaluation. If `evaluate` is empty,
            evaluation is refused.
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


@dataclass(frozen=True)
class SellerPolicy:
    """What a client agrees to. Every field is a key of the policy file.

    Attributes:
        epsilon_per_sale: the most ε in one sale, as the wallet is charged.
        epsilon_lifetime: the wallet's cap: the most ε in all, at `delta`; infinite only if "unlimited" is written.
        wallet: the wallet's file, relative to the policy file; `{client}` stands for the client's name.
        head_file: a second file, on another disk, that records how long the wallet's file is; None for none.
        unpaid_epsilon: the most ε of several sales that one buyer may leave unpaid. Who owes for nothing can always
            buy once, up to `epsilon_per_sale`; a further sale that would pass this limit is refused until the buyer
            pays. None is a tenth of the wallet's cap.
        delta: the largest δ that a sale may name.
        schedules: (sampling rate, steps) that are accepted; "ready" accepts all whose noise needs no new table.
        steps: the most noisy steps in one sale.
        clip_norm, learning_rate, expected_batch: accepted ranges.
        parameters: the most weights that a model may have.
        weight_magnitude: the largest absolute value of a weight.
        models: fingerprints (`model_fingerprint`) of models that are trained; "any" accepts the client's own model.
        unit: what one unit of privacy is: "record", or "person".
        trust: trust models that are accepted.
        honest_share: the largest share of honest sellers that a promise under aggregate trust may rest on.
        minimum_cohort: the fewest sellers in a secure sum under aggregate trust.
        register: whom to join in a secure sum under aggregate trust. "required": only sellers that a broker names
            or that stand in a list of the client's own. A public key in hexadecimal: only a roster that this
            register signed (`secagg.SellerRegister`). "none": anybody. Then a server may own all the other sellers,
            so limits, wallet and statements count what is left of a sale if all of them work together.
        largest_cohort: where `register` is "none", the most sellers in a secure sum. The more there are, the
            smaller is this seller's part of the noise, so what it offers is small enough for a sum of so many.
        declared_records: "rounded" declares the number of records rounded up to two digits; "exact" as it is.
        price: money asked per unit of ε, by trust model; the client's own valuation if none is given.
        buyers: names of the buyers to sell to, as a broker states them.
        brokers: addresses of brokers. If the list is not empty, nothing is sold without one of them.
        guard: what leaves a site that takes part in no market, see `flower.GuardMod`.
    """

    epsilon_per_sale: float = 1.0
    epsilon_lifetime: float = 8.0
    wallet: str = "wallet-{client}.jsonl"
    head_file: str | None = None
    unpaid_epsilon: float | None = None
    delta: float = DELTA
    schedules: tuple[tuple[float, int], ...] | None = None
    steps: int = 1000
    clip_norm: tuple[float, float] = (1e-3, 1e3)
    learning_rate: tuple[float, float] = (1e-6, 1e3)
    expected_batch: tuple[float, float] = (1.0, 1e9)
    parameters: int = 10_000_000
    weight_magnitude: float = 1e4
    models: frozenset[str] | None = None
    unit: Unit = "record"
    trust: tuple[Trust, ...] = ("local",)
    # A limit on terms: a little above 2/3, so that terms which say 0.667 are within it.
    honest_share: float = 0.67
    minimum_cohort: int = 10
    register: str = "required"
    largest_cohort: int = 400
    declared_records: Declared = "rounded"
    price: Mapping[str, float] = field(default_factory=dict)
    buyers: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    guard: GuardPolicy = field(default_factory=GuardPolicy)

    def __post_init__(self) -> None:
        require_delta(self.delta)
        if self.delta >= _MOST_DELTA:
            raise ConfigurationError(
                f"policy: delta is {self.delta:g}: so large a share of the records may be published outright",
                f"choose it below 1 / number of records; the default is {DELTA:g}",
            )
        for name in ("epsilon_per_sale", "epsilon_lifetime", "steps", "parameters", "weight_magnitude"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"policy: {name} is {getattr(self, name)}", "give a number above 0")
        for name in ("clip_norm", "learning_rate", "expected_batch"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise ConfigurationError(f"policy: {name} is [{low}, {high}]", "give 0 < least ≤ most")
        for rate, steps in self.schedules or ():
            if not (0 < rate <= 1 and steps >= 1):
                raise ConfigurationError(f"policy: schedule [{rate}, {steps}]", "give [sampling rate, steps]")
        if self.unpaid_epsilon is not None and not self.unpaid_epsilon > 0:
            raise ConfigurationError(f"policy: unpaid_epsilon is {self.unpaid_epsilon}", "give a number above 0")
        if self.minimum_cohort < 1:
            raise ConfigurationError(f"policy: minimum_cohort is {self.minimum_cohort}", "give at least 1")
        if self.largest_cohort < self.minimum_cohort:
            raise ConfigurationError(
                f"policy: largest_cohort is {self.largest_cohort}, minimum_cohort {self.minimum_cohort}",
                "give a largest_cohort of at least minimum_cohort",
            )
        _known("unit", [self.unit], get_args(Unit))
        if self.register_key is None:
            _known("register", [self.register], (*REGISTERS, "the register's public key, 64 hexadecimal digits"))
        _known("declared_records", [self.declared_records], get_args(Declared))
        _known("trust", self.trust, get_args(Trust))
        _known("price", self.price, get_args(Trust))
        if not self.trust:
            raise ConfigurationError("policy: no trust model is accepted", "name local, aggregate or both")
        if not 0 < self.honest_share <= 1:
            raise ConfigurationError(f"policy: honest_share is {self.honest_share}", "give a share in (0, 1]")
        if any(not 0 <= price < math.inf for price in self.price.values()):
            raise ConfigurationError(f"policy: price is {dict(self.price)}", "give money per unit of ε, at least 0")

    @property
    def register_key(self) -> bytes | None:
        """The public key of the register that the policy names; None where it names none."""
        if len(self.register) != _KEY_DIGITS:
            return None
        try:
            return bytes.fromhex(self.register)
        except ValueError:
            return None

    def charged_epsilon(self, order: Order, epsilon: float) -> float:
        """What a sale of ε costs: in a sum without a register, what is left if all other sellers work together.

        As long as the number of sellers is not known, `largest_cohort` is supposed.
        """
        if order.trust != "aggregate" or order.registered or not epsilon > 0:
            return epsilon
        sellers = self.largest_cohort if order.sellers is None else order.sellers
        family = ReleaseFamily(order.sampling_rate, order.steps, order.delta)
        return alone_epsilon(family, epsilon, sellers, order.supposed_honest)

    def sold_epsilon(self, order: Order, charged: float) -> float:
        """The most ε that may be sold so that the sale costs at most `charged`: `charged_epsilon` turned around."""
        if order.trust != "aggregate" or order.registered or not charged > 0:
            return charged
        sellers = self.largest_cohort if order.sellers is None else order.sellers
        family = ReleaseFamily(order.sampling_rate, order.steps, order.delta)
        return sold_epsilon(family, charged, sellers, order.supposed_honest)

    def check(self, order: Order) -> None:
        """Refuses an order, or a call for bids, that is outside the policy. Needs no noise table and no records.

        Raises:
            PolicyRefusal: with the first reason in the order of `Reason`.
        """
        if order.epsilon is not None and not 0 < order.epsilon <= self.epsilon_per_sale * _ROUNDING:
            raise _refusal(
                Reason.EPSILON, f"asked for ε = {order.epsilon}, epsilon_per_sale = {self.epsilon_per_sale}"
            )
        if not 0 < order.delta <= self.delta * _ROUNDING:
            raise _refusal(Reason.DELTA, f"asked for δ = {order.delta}, delta = {self.delta}")
        rate = order.sampling_rate
        steps = order.steps
        asked = f"asked for {steps} steps at sampling rate {rate}"
        if not (0 < rate <= 1 and 1 <= steps <= self.steps):
            raise _refusal(Reason.SCHEDULE, f"{asked}, steps = {self.steps}")
        if self.schedules is not None and (rate, steps) not in self.schedules:
            raise _refusal(Reason.SCHEDULE, f"{asked}, schedules = {[list(one) for one in self.schedules]}")
        if self.schedules is None and not is_ready(order.delta, rate, steps):
            raise _refusal(Reason.SCHEDULE, f'{asked}, schedules = "{READY}", and no noise table is ready for it')
        for reason, name in (
            (Reason.CLIP_NORM, "clip_norm"),
            (Reason.LEARNING_RATE, "learning_rate"),
            (Reason.EXPECTED_BATCH, "expected_batch"),
        ):
            value = getattr(order, name)
            (low, high) = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise _refusal(reason, f"asked for {value}, {name} = [{low}, {high}]")
        if order.trust not in self.trust:
            raise _refusal(Reason.TRUST, f"asked for {order.trust} trust, trust = {list(self.trust)}")
        if order.trust == "aggregate" and not 0 < order.supposed_honest <= self.honest_share * _ROUNDING:
            rests = f"ε rests on {order.supposed_honest:.0%} honest sellers, honest_share = {self.honest_share:g}"
            raise _refusal(Reason.HONEST_SHARE, rests)
        if order.trust == "aggregate" and order.sellers is not None and order.sellers < self.minimum_cohort:
            raise _refusal(
                Reason.COHORT, f"a secure sum of {order.sellers} sellers, minimum_cohort = {self.minimum_cohort}"
            )
        if order.trust == "aggregate" and self.register != "none" and not order.registered:
            raise _refusal(
                Reason.REGISTER,
                "a secure sum, and no register says who the other sellers are: sell through a broker, "
                'give parties=, or write a register\'s key, or "none", as register into the policy',
            )
        if order.trust == "aggregate" and not order.registered:
            self._check_alone(order)
        if order.unit != self.unit:
            raise _refusal(Reason.UNIT, f'asked for ε per {order.unit}, unit = "{self.unit}"')
        if self.brokers is not None and order.broker not in self.brokers:
            raise _refusal(Reason.BROKER, f"order through {order.broker}, brokers = {sorted(self.brokers)}")
        if self.buyers is not None and order.buyer not in self.buyers:
            raise _refusal(Reason.BUYER, f"order of {order.buyer}, buyers = {sorted(self.buyers)}")

    def _check_alone(self, order: Order) -> None:
        """Refuses an order in a sum without a register if it costs too much against all others of the sum."""
        if order.sellers is not None and order.sellers > self.largest_cohort:
            raise _refusal(
                Reason.COHORT,
                f"a secure sum of {order.sellers} sellers and no register, largest_cohort = {self.largest_cohort}",
            )
        if order.sellers is None or order.epsilon is None:
            return  # a call for bids: what is offered will be small enough
        charged = self.charged_epsilon(order, order.epsilon)
        if charged > self.epsilon_per_sale * _ROUNDING:
            raise _refusal(
                Reason.EPSILON,
                f"asked for ε = {order.epsilon:g} in a sum of {order.sellers} without a register: against all "
                f"others that is ε = {charged:.4g}, epsilon_per_sale = {self.epsilon_per_sale:g}",
            )

    def most_unpaid(self, cap_epsilon: float) -> float:
        """The most ε of several sales that one buyer may leave unpaid, for a wallet with this cap."""
        return 0.1 * cap_epsilon if self.unpaid_epsilon is None else self.unpaid_epsilon

    def check_debt(self, buyer: str, owed: float, with_sale: float, cap_epsilon: float) -> None:
        """Refuses a sale to a buyer that has not paid for others, if it would owe more ε than the policy risks.

        A buyer that owes for nothing is not refused: it could never buy if one sale were more than the limit.

        Args:
            buyer: who buys, as a broker says it; without a broker all buyers are one.
            owed: ε of everything that this buyer received and has not paid for.
            with_sale: the same with the sale that is asked for.
            cap_epsilon: the wallet's cap.

        Raises:
            PolicyRefusal: `unpaid`.
        """
        most = self.most_unpaid(cap_epsilon)
        if owed > 0 and with_sale > most:
            who = f"{buyer} has" if buyer else "buyers without a broker, who all count as one, have"
            raise PolicyRefusal(
                Reason.UNPAID,
                f"{who} not paid for ε = {owed:.3g}; with this sale it would be {with_sale:.3g}, "
                f"unpaid_epsilon = {most:.3g}",
                "wait for the payment, sell through a broker, which tells buyers apart, or raise unpaid_epsilon"
                if not buyer
                else "wait for the payment, or raise unpaid_epsilon in the policy",
            )

    def declared(self, records: float) -> float:
        """The number of records that a bid declares: rounded up to two digits unless the policy says `exact`.

        A count that changes from one round to the next would show that somebody joined or left.
        """
        if self.declared_records == "exact" or records < 100:
            return records
        step = 10 ** (len(str(math.floor(records))) - 2)
        return float(math.ceil(records / step) * step)

    def check_weights(
        self, weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        """Refuses weights that no honest server sends: of another shape, not finite, or too large.

        Args:
            weights: as they came, before any conversion.
            shapes: what the client's own model has.

        Raises:
            PolicyRefusal: `weights` or `model`.
        """
        if shapes is not None and {n: tuple(a.shape) for n, a in weights.items()} != dict(shapes):
            raise _refusal(Reason.WEIGHTS, f"arrays {sorted(weights)[:4]} do not fit {sorted(shapes)[:4]}")
        total = sum(array.size for array in weights.values())
        if not 1 <= total <= self.parameters:
            raise _refusal(Reason.WEIGHTS, f"{total} weights, parameters = {self.parameters}")
        for name, array in weights.items():
            if array.dtype not in (np.float32, np.float64):
                raise _refusal(Reason.WEIGHTS, f"{name} holds {array.dtype}, not float32 or float64")
            # Written so that NaN fails; the extremes of the array need no copy of it.
            if array.size and not max(-float(array.min()), float(array.max())) <= self.weight_magnitude:
                raise _refusal(
                    Reason.WEIGHTS, f"{name} is not finite or above weight_magnitude = {self.weight_magnitude:g}"
                )
        if self.models is not None and model_fingerprint(weights) not in self.models:
            raise _refusal(Reason.MODEL, f"model {model_fingerprint(weights)} is not in the list models")

    @classmethod
    def read(cls, path: Path | str) -> SellerPolicy:
        """The policy in a TOML file; every key is optional and unknown ones are refused."""
        place = Path(path)
        values = read_policy_file(place)
        try:
            found = cls(**values)
        except PrivmarketError as error:
            raise ConfigurationError(f"{place}: {error.message}", error.hint) from error
        folder = place.absolute().parent
        head = None if found.head_file is None else str(folder / found.head_file)
        return replace(found, wallet=str(folder / found.wallet), head_file=head)


def model_fingerprint(weights: Mapping[str, np.ndarray] | Mapping[str, tuple[int, ...]]) -> str:
    """Names a model by its trainable arrays' names and shapes: 16 hexadecimal digits."""
    shapes = {name: tuple(int(n) for n in getattr(one, "shape", one)) for name, one in weights.items()}
    text = "\n".join(f"{name} {shapes[name]}" for name in sorted(shapes))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refusal(reason: Reason, message: str) -> PolicyRefusal:
    return PolicyRefusal(reason, f"{reason.value}: {message}", "change that key of the policy if you agree to this")


def _known(name: str, given: Iterable[str], choices: tuple[str, ...]) -> None:
    for one in given:
        if one not in choices:
            raise ConfigurationError(f"policy: {name} {one!r}", f"choose from: {', '.join(choices)}")


def read_policy_file(place: Path) -> dict[str, Any]:
    """Field of `SellerPolicy` → value, for the keys that the file has.

    Raises:
        ConfigurationError: the file is no TOML, has an unknown key, or a value of the wrong kind.
    """
    try:
        table = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            f"{place}: cannot be read as a policy: {in_words(error)}",
            "check the path and the text; `privmarket seller policy` prints a file to start from",
        ) from error
    for key in table:
        if key not in _READERS:
            raise ConfigurationError(f"{place}: unknown key {key!r}", _did_you_mean(key, _READERS, "known"))
    try:
        return {key: _READERS[key](key, value) for key, value in table.items()}
    except _BadValueError as error:
        raise ConfigurationError(f"{place}: {error}", "`privmarket seller policy` shows the form") from error
    except PrivmarketError as error:
        raise ConfigurationError(f"{place}: {error.message}", error.hint) from error


class _BadValueError(ValueError):
    """A key of the policy file has a value of the wrong type or form."""


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _BadValueError(f"{key} = {value!r}: not a number")
    return float(value)


def _limit(key: str, value: object) -> float:
    if value == UNLIMITED:
        return math.inf
    if (number := _number(key, value)) == math.inf:
        raise _BadValueError(f'{key} = inf: write "{UNLIMITED}" to sell without a limit')
    return number


def _risk(key: str, value: object) -> float | None:
    return None if value == TENTH else _limit(key, value)


def _place(key: str, value: object) -> str | None:
    return None if value == NONE else _text(key, value)


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadValueError(f"{key} = {value!r}: not a whole number")
    return value


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _BadValueError(f"{key} = {value!r}: not a text")
    return value


def _range(key: str, value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise _BadValueError(f"{key} = {value!r}: not [least, most]")
    return _number(key, value[0]), _number(key, value[1])


def _list(key: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise _BadValueError(f"{key} = {value!r}: not a list")
    return value


def _names(key: str, value: object) -> frozenset[str] | None:
    return None if value == ANY else frozenset(_text(key, one) for one in _list(key, value))


def _schedules(key: str, value: object) -> tuple[tuple[float, int], ...] | None:
    if value == READY:
        return None
    pairs = [_list(key, pair) for pair in _list(key, value)]
    if any(len(pair) != 2 for pair in pairs):
        raise _BadValueError(f"{key} = {value!r}: not a list of [sampling rate, steps]")
    return tuple((_number(key, rate), _whole(key, steps)) for rate, steps in pairs)


def _prices(key: str, value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _BadValueError(f"{key} = {value!r}: not a table such as {{ local = 0.5 }}")
    return {trust: _number(key, price) for trust, price in value.items()}


def _texts(key: str, value: object) -> tuple[str, ...]:
    return tuple(_text(key, one) for one in _list(key, value))


def _guard_table(key: str, table: object) -> GuardPolicy:
    """The guard's part of the policy, from a TOML table."""
    if not isinstance(table, dict):
        raise ConfigurationError(f"{key} = {table!r}: not a table", f"write [{key}] and its keys below")
    known = {one.name: one for one in fields(GuardPolicy)}
    values: dict[str, object] = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigurationError(f"[{key}]: unknown key {name!r}", _did_you_mean(name, known, "known"))
        place = f"[{key}] {name}"
        if name in ("train", "evaluate"):
            values[name] = _guarded_metrics(f"{key}.{name}", value)
        elif name in ("steps", "examples"):
            values[name] = _whole(place, value)
        elif known[name].type == "float":
            values[name] = _number(place, value)
        else:
            values[name] = _text(place, value)
    return GuardPolicy(**values)  # type: ignore[arg-type]  # each value was read for its field


def _guarded_metrics(table: str, value: object) -> dict[str, GuardedMetric]:
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
        low = _number(place, limits[0])
        high = _number(place, limits[1])
        epsilon = math.inf if metric["epsilon"] == UNLIMITED else _number(place, metric["epsilon"])
        if not -math.inf < low < high < math.inf or not epsilon > 0:
            raise ConfigurationError(f"{place}: range [{low:g}, {high:g}], epsilon {epsilon:g}", form)
        if metric["epsilon"] == math.inf:
            raise ConfigurationError(
                f"{place}: epsilon = inf", f'write "{UNLIMITED}" to send it without noise, outside every promise'
            )
        found[name] = GuardedMetric(low=low, high=high, epsilon=epsilon)
    return found


def _did_you_mean(given: str, known: Mapping[str, object] | tuple[str, ...], otherwise: str) -> str:
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"{otherwise}: {', '.join(known)}"


_READERS: dict[str, Callable[[str, object], Any]] = {
    "epsilon_per_sale": _limit,
    "epsilon_lifetime": _limit,
    "wallet": _text,
    "head_file": _place,
    "unpaid_epsilon": _risk,
    "delta": _number,
    "schedules": _schedules,
    "steps": _whole,
    "clip_norm": _range,
    "learning_rate": _range,
    "expected_batch": _range,
    "parameters": _whole,
    "weight_magnitude": _number,
    "models": _names,
    "unit": _text,
    "trust": _texts,
    "honest_share": _number,
    "minimum_cohort": _whole,
    "register": _text,
    "largest_cohort": _whole,
    "declared_records": _text,
    "price": _prices,
    "buyers": _names,
    "brokers": _names,
    "guard": _guard_table,
}

_GUARD_TEMPLATE = """
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

TEMPLATE = f"""\
# What this client agrees to. Every line is optional; these are the defaults.
epsilon_per_sale = 1.0             # the most ε in one sale
epsilon_lifetime = 8.0             # the wallet's cap, for life; "{UNLIMITED}" must be written out
wallet = "wallet-{{client}}.jsonl"   # where sales are remembered, beside this file
head_file = "{NONE}"                 # a file on another disk that shows when an old wallet file is put back
unpaid_epsilon = "{TENTH}"           # of the wallet, or a number: what one buyer may owe for
delta = 1e-5                       # the largest δ; keep it below 1 / number of records
unit = "record"                    # or "person": all records of a person together
declared_records = "rounded"       # up to two digits; or "exact", which tells when a record comes or goes

schedules = "{READY}"              # or a list of [sampling rate, steps], e.g. [[1.0, 1]]
steps = 1000                       # the most noisy steps in one sale
clip_norm = [1e-3, 1e3]            # least, most
learning_rate = [1e-6, 1e3]
expected_batch = [1.0, 1e9]

parameters = 10_000_000            # the most weights of a model
weight_magnitude = 1e4             # the largest absolute value of a weight
models = "{ANY}"                     # or a list of fingerprints; a client's log names each model that it refuses

trust = ["local"]                  # add "aggregate" to sell under secure sums
honest_share = 0.67                # the most honest sellers, as a share, that a promise may rest on
minimum_cohort = 10                # the fewest sellers in a secure sum
register = "required"              # who sells besides: a broker says it; or a register's key; or "none" says it
largest_cohort = 400               # with register = "none": the most sellers in a secure sum
price = {{}}                         # money per unit of ε, e.g. {{ local = 0.5, aggregate = 0.1 }}

buyers = "{ANY}"                     # or a list of ids, as the broker names them
brokers = "{ANY}"                    # or a list of addresses: then nothing is sold without one of them
{_GUARD_TEMPLATE}"""
