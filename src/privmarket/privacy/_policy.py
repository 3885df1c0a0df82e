"""A seller's policy: what may be asked of this client, checked before anything private is touched.

A server is not trusted. It names δ, the schedule, the clip norm, the learning rate and the weights, and each of
them can be chosen so that "ε = 1" means little or nothing. The policy is a small file of the seller's own; an order
outside it is refused with one word out of `Reason`. The word depends on the order, the policy and the wallet alone,
never on the records, so that a refusal tells nothing about them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from privmarket._settings import DELTA, TOLERANCE, Trust
from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.privacy._events import require_delta
from privmarket.privacy._guard_policy import GuardPolicy
from privmarket.privacy._policy_file import read_policy_file
from privmarket.privacy._tables import is_ready
from privmarket.privacy._words import Unit

_ROUNDING = 1.0 + TOLERANCE

REGISTERS = ("required", "none")
_KEY_DIGITS = 64
Declared = Literal["rounded", "exact"]


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
        """What the word means, in a sentence for the server's report."""
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
    Reason.UNPAID: "the buyer has not paid for earlier sales, and the seller risks no more ε with it",
    Reason.OFFER: "nothing was offered for this, or less, or under other terms",
    Reason.AWARD: "the order is not what the broker awarded",
    Reason.SOLD: "this round is sold already",
    Reason.UNSOLD: "a message that was not paid for",
    Reason.MESSAGE: "a message that cannot be read",
    Reason.FAILED: "the client failed; its owner finds the cause in the client's own log",
}


class PolicyRefusal(PrivmarketError):
    """A client refuses. `reason` is what leaves; the message stays in the client's own log."""

    code = "refused"

    def __init__(self, reason: Reason, message: str = "", hint: str = "") -> None:
        super().__init__(message or reason.meaning, hint)
        self.reason = reason


@dataclass(frozen=True)
class Order:
    """What a server asks for, as plain facts; None where a call for bids does not say it yet.

    Attributes:
        epsilon, delta: what the sale is called.
        sampling_rate, steps: the schedule.
        clip_norm, learning_rate, expected_batch: the training plan.
        trust: "local" or "aggregate".
        supposed_honest: under aggregate trust, the share of the sellers whose noise must protect each of them.
        sellers: under aggregate trust, how many sell in the round's secure sum.
        registered: whether there is a register of the sellers that may be in a secure sum.
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
class SellerPolicy:
    """What a client agrees to. Every field is a key of the policy file.

    Attributes:
        epsilon_per_sale: the most ε in one sale.
        epsilon_lifetime: the wallet's cap: the most ε in all, at `delta`; infinite only if "unlimited" is written.
        wallet: the wallet's file, relative to the policy file; `{client}` stands for the client's name.
        head_file: a second file, on another disk, that says how long the wallet's file is; None for none.
        unpaid_epsilon: the most ε of sales that one buyer has not paid for; beyond it that buyer is refused until
            it pays. None is a tenth of the wallet's cap.
        delta: the largest δ that a sale may name.
        schedules: (sampling rate, steps) that are accepted; "ready" takes all whose noise is known at once.
        steps: the most noisy steps in one sale.
        clip_norm, learning_rate, expected_batch: accepted ranges.
        parameters: the most weights that a model may have.
        weight_magnitude: the largest absolute value of a weight.
        models: fingerprints (`model_fingerprint`) of models that are trained; "any" takes whatever the client has.
        unit: what one unit of privacy is: "record", or "person".
        trust: trust models that are accepted.
        honest_share: the largest share of honest sellers that a promise under aggregate trust may rest on.
        minimum_cohort: the fewest sellers in a secure sum under aggregate trust.
        register: "required" joins a secure sum under aggregate trust only with sellers that a broker or a list of
            the client's own names; the public key of a register, in hexadecimal, only with a roster that this
            register signed (`secagg.SellerRegister`); "none" also without, where a server may own all the others,
            and statements then promise no more than what is left if all of them work together.
        declared_records: "rounded" declares the number of records rounded up to two digits; "exact" as it is.
        price: money asked per unit of ε, by trust model; the client's own valuation where none is given.
        buyers: whom to sell to, as a broker names them.
        brokers: addresses of brokers; with a list, nothing is sold without one of them.
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
    # A limit on terms, not a term: a little above 2/3, so that terms which say 0.667 are within it.
    honest_share: float = 0.67
    minimum_cohort: int = 10
    register: str = "required"
    declared_records: Declared = "rounded"
    price: Mapping[str, float] = field(default_factory=dict)
    buyers: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    guard: GuardPolicy = field(default_factory=GuardPolicy)

    def __post_init__(self) -> None:
        require_delta(self.delta)
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

    def check(self, order: Order) -> None:
        """Refuses an order, or a call for bids, that goes beyond the policy. Needs no table and no data.

        Raises:
            PolicyRefusal: with the first reason in the order of `Reason`.
        """
        if order.epsilon is not None and not 0 < order.epsilon <= self.epsilon_per_sale * _ROUNDING:
            raise _refusal(Reason.EPSILON, f"asked for ε = {order.epsilon}, policy {self.epsilon_per_sale}")
        if not 0 < order.delta <= self.delta * _ROUNDING:
            raise _refusal(Reason.DELTA, f"asked for δ = {order.delta}, policy at most {self.delta}")
        rate, steps = order.sampling_rate, order.steps
        asked = f"asked for {steps} steps at sampling rate {rate}"
        if not (0 < rate <= 1 and 1 <= steps <= self.steps):
            raise _refusal(Reason.SCHEDULE, f"{asked}, policy at most {self.steps} steps")
        if self.schedules is not None and (rate, steps) not in self.schedules:
            raise _refusal(Reason.SCHEDULE, f"{asked}, policy {list(self.schedules)}")
        if self.schedules is None and not is_ready(order.delta, rate, steps):
            raise _refusal(Reason.SCHEDULE, f"{asked}: no noise table is at hand and building one takes a minute")
        for reason, name in (
            (Reason.CLIP_NORM, "clip_norm"),
            (Reason.LEARNING_RATE, "learning_rate"),
            (Reason.EXPECTED_BATCH, "expected_batch"),
        ):
            value, (low, high) = getattr(order, name), getattr(self, name)
            if value is not None and not low <= value <= high:
                raise _refusal(reason, f"asked for {name} = {value}, policy {low} to {high}")
        if order.trust not in self.trust:
            raise _refusal(Reason.TRUST, f"asked for {order.trust} trust, policy {', '.join(self.trust)}")
        if order.trust == "aggregate" and not 0 < order.supposed_honest <= self.honest_share * _ROUNDING:
            rests = f"ε rests on {order.supposed_honest:.0%} honest sellers, policy {self.honest_share:.0%}"
            raise _refusal(Reason.HONEST_SHARE, rests)
        if order.trust == "aggregate" and order.sellers is not None and order.sellers < self.minimum_cohort:
            raise _refusal(
                Reason.COHORT, f"a secure sum of {order.sellers} sellers, policy at least {self.minimum_cohort}"
            )
        if order.trust == "aggregate" and self.register != "none" and not order.registered:
            raise _refusal(
                Reason.REGISTER,
                "a secure sum, and no register says who the other sellers are: sell through a broker, "
                'give parties=, or write a register\'s key, or "none", as register into the policy',
            )
        if order.unit != self.unit:
            raise _refusal(Reason.UNIT, f"asked for ε per {order.unit}, policy per {self.unit}")
        if self.brokers is not None and order.broker not in self.brokers:
            raise _refusal(Reason.BROKER, f"order through {order.broker}, policy {sorted(self.brokers)}")
        if self.buyers is not None and order.buyer not in self.buyers:
            raise _refusal(Reason.BUYER, f"order of {order.buyer}, policy {sorted(self.buyers)}")

    def check_debt(self, buyer: str, unpaid_epsilon: float, cap_epsilon: float) -> None:
        """Refuses a buyer that has not paid for more ε than the policy risks.

        Args:
            buyer: who buys, as a broker says it; without a broker all buyers are one.
            unpaid_epsilon: ε of all that this buyer got and has not paid for.
            cap_epsilon: the wallet's cap.

        Raises:
            PolicyRefusal: `unpaid`.
        """
        most = 0.1 * cap_epsilon if self.unpaid_epsilon is None else self.unpaid_epsilon
        if unpaid_epsilon > most:
            who = buyer or "buyers without a broker"
            raise PolicyRefusal(
                Reason.UNPAID,
                f"{who} has not paid for ε = {unpaid_epsilon:.3g}, policy at most {most:.3g}",
                "wait for the payment, or raise unpaid_epsilon in the policy",
            )

    def declared(self, records: float) -> float:
        """The number of records that a bid declares: rounded up to two digits unless the policy says `exact`.

        A count that changes from one round to the next would tell who joined or left.
        """
        if self.declared_records == "exact" or records < 100:
            return records
        step = 10 ** (len(str(math.floor(records))) - 2)
        return float(math.ceil(records / step) * step)

    def check_weights(
        self, weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        """Refuses weights that a server has no honest reason to send.

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
            raise _refusal(Reason.WEIGHTS, f"{total} weights, policy 1 to {self.parameters}")
        for name, array in weights.items():
            if array.dtype not in (np.float32, np.float64):
                raise _refusal(Reason.WEIGHTS, f"{name} holds {array.dtype}, not float32 or float64")
            # Written so that NaN fails; the largest magnitude needs no copy of the array.
            if array.size and not max(-float(array.min()), float(array.max())) <= self.weight_magnitude:
                raise _refusal(Reason.WEIGHTS, f"{name} is not finite or above {self.weight_magnitude:g}")
        if self.models is not None and model_fingerprint(weights) not in self.models:
            raise _refusal(Reason.MODEL, f"model {model_fingerprint(weights)} is not on the policy's list")

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
    return PolicyRefusal(reason, f"{reason.value}: {message}", "see the seller's policy file")


def _known(name: str, given: Iterable[str], choices: tuple[str, ...]) -> None:
    for one in given:
        if one not in choices:
            raise ConfigurationError(f"policy: {name} {one!r}", f"choose from: {', '.join(choices)}")
