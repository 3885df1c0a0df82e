"""Settings of a run, each declared once: its name, default, limits and help.

Command-line options, Flower's settings and the simulation's configuration are made from these records; what a
broker's task adds to them stands in `broker._shapes`. Importing this module loads nothing else, so that
`privmarket --help` stays quick.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from privmarket.errors import ConfigurationError, UnknownNameError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AGGREGATIONS = ("epsilon", "epsilon-squared", "inverse-noise", "optimal", "precision")
Trust = Literal["local", "aggregate"]
Arithmetic = Literal["exact", "float"]
TRUSTS: tuple[Trust, ...] = get_args(Trust)
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)

# What a run's accuracy is measured on. Settings are chosen on validation records, which no client ever holds.
MEASURED_ON = ("test", "validation")

# Defaults that rules, objectives, accounting and engines share; a test refuses a second number for any of them.
EPSILON_MAX = 5.0  # the public limit on offers where no distribution says another
DELTA = 1e-5  # of sales, wallets and claims
HONEST_SHARE = 2 / 3  # of a secure sum's sellers
KAPPA = 1.0  # weight of noise in the error of a model
HETEROGENEITY = 0.1  # H, weight of bias in it

TOLERANCE = 1e-9
"""How far rounding may carry a figure beyond its limit, relative to the figure's own scale (a cost, a budget, an
offer), so that a change of currency changes no finding."""

Value = TypeVar("Value")
_HOLDS = {"above": operator.gt, "at_least": operator.ge, "at_most": operator.le, "below": operator.lt}


def setting(
    default: Value,
    help: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    added: bool = False,
) -> Value:
    """A field of a settings record with its help and its limits; None is allowed where it is the default.

    Args:
        added: the setting was added after results had been saved under digests of the record; see `identity`.
    """
    limits = {"above": above, "at_least": at_least, "at_most": at_most, "below": below, "choices": choices}
    return field(default=default, metadata={"help": help, "added": added, **limits})


def identity(record: DataclassInstance) -> dict[str, object]:
    """The values that identify a settings record, without added settings that have their default.

    So a result that was saved before a setting existed is still found under its digest.
    """
    named: dict[str, object] = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if not (one.metadata.get("added") and value == one.default):
            named[one.name] = identity(value) if is_dataclass(value) and not isinstance(value, type) else value
    return named


def check_settings(record: DataclassInstance) -> None:
    """Refuses values outside their limits; a settings record calls this when it is made.

    Raises:
        ConfigurationError: a number is not finite or beyond its limits.
        UnknownNameError: a name is not among the choices.
    """
    for one in fields(record):
        value = getattr(record, one.name)
        limit = one.metadata
        if value is None or not limit:
            continue
        if limit["choices"] and value not in limit["choices"]:
            words = "data set" if one.name == "dataset" else one.name.replace("_", " ")
            raise UnknownNameError.among(words, str(value), limit["choices"])
        bounds = {name: limit[name] for name in _HOLDS if limit[name] is not None}
        if bounds and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigurationError(f"{one.name} is {value!r}", "must be a number")
        if any(not isfinite(value) or not _HOLDS[name](value, bound) for name, bound in bounds.items()):
            words = " and ".join(f"{name.replace('_', ' ')} {bound:.12g}" for name, bound in bounds.items())
            raise ConfigurationError(f"{one.name} is {value}", f"must be finite and {words}")


def require_one_step(trust: str, steps: int) -> None:
    """Refuses aggregate trust with several steps a round: between two steps a server would see single sellers.

    Raises:
        ConfigurationError: there are several.
    """
    if trust == "aggregate" and steps != 1:
        raise ConfigurationError(
            f"trust 'aggregate' with {steps} steps a round", "nobody may see single steps: use steps = 1"
        )


@dataclass(frozen=True, kw_only=True)
class MarketPlan:
    """What a buyer fixes before the first round, in every engine."""

    mechanism: str = setting("mean-field-menu", "Which auction rule.")
    mechanism_settings: Mapping[str, object] = field(default_factory=dict)
    budget: float = setting(50.0, "Money per round.", above=0)
    total_budget: float | None = setting(
        None, "Money for the whole run, paced over its rounds, instead of a budget per round.", above=0
    )
    rounds: int = setting(200, "How many rounds.", at_least=1)
    delta: float = setting(DELTA, "The δ of every sale and of the wallets.", above=0, below=1)
    trust: str = setting(
        "local",
        "Whom sellers trust: local (nobody), or aggregate (the server sees only a secure sum).",
        choices=TRUSTS,
        added=True,
    )
    honest_share: float = setting(
        HONEST_SHARE,
        "Under aggregate trust, the share of a round's sellers whose noise protects each of them. Of the others "
        "half may collude with the server and half may drop out.",
        above=0,
        at_most=1,
        added=True,
    )
    aggregation: str = setting(
        "epsilon-squared",
        "Weights of updates under local trust: epsilon, epsilon-squared, inverse-noise, optimal or precision.",
        choices=AGGREGATIONS,
    )
    kappa: float = setting(KAPPA, "κ of P2, for the optimal aggregation.", at_least=0)
    heterogeneity: float = setting(HETEROGENEITY, "H of P2, for the optimal aggregation.", at_least=0)
    evaluate_every: int = setting(10, "Rounds between two measurements of the accuracy.", at_least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def money_in_all(self) -> float:
        """Money that may be spent over the whole run."""
        return self.budget * self.rounds if self.total_budget is None else self.total_budget

    @property
    def budget_per_round(self) -> float:
        """Money of the first round: the budget, or an even share of the total; `rounds.Pacing` has later ones."""
        return self.budget if self.total_budget is None else self.total_budget / self.rounds

    def measures_after(self, number: int) -> bool:
        """Whether the accuracy is measured after round `number`, from 0: every so often, and after the last."""
        return number + 1 == self.rounds or (number + 1) % self.evaluate_every == 0


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How a round trains, up to the model: local steps, clipping, the server's optimiser. All of it is public."""

    steps: int = setting(1, "Noisy local steps per round.", at_least=1)
    sampling_rate: float = setting(
        1.0, "Probability with which a record enters a step; 1 is the full batch.", above=0, at_most=1
    )
    clip_norm: float = setting(1.0, "The largest norm with which one record's gradient counts.", above=0)
    server_rate: float = setting(1.0, "The server's step size in the first round.", above=0)
    final_rate: float = setting(
        1.0, "Share of it that is left in the last round; it falls linearly.", at_least=0, at_most=1
    )
    momentum: float = setting(0.9, "Share of the last direction that the server keeps.", at_least=0, below=1)
    averaging: float = setting(
        0.0, "Share of the averaged weights kept each round; 0 tests the last weights.", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """Which client is attacked and how hard, in `privmarket attack`."""

    dataset: str = setting("digits", "digits, mnist, fashion-mnist or cifar10.")
    epsilon: float = setting(1.0, "What one sale claims.", above=0)
    delta: float = setting(DELTA, "The δ of the claim.", above=0, below=1)
    model: str | None = setting(None, "mlp, logistic or cnn; else the recommended one.")
    records: int = setting(100, "Records of the client that is attacked.", at_least=1)
    sampling_rate: float = setting(1.0, "Share of records in a step, by Poisson sampling.", above=0, at_most=1)
    steps: int = setting(1, "Noisy steps in a sale.", at_least=1)
    trials: int = setting(
        1000, "canary: releases with, and as many without, the record.", at_least=50, at_most=10_000_000
    )
    canaries: int = setting(500, "one-run: planted records.", at_least=1)
    targets: int = setting(200, "membership: records in question.", at_least=1)
    rounds: int = setting(30, "membership: rounds that train the model, a sale each.", at_least=1)
    noise_share: float = setting(
        1.0, "Break the client on purpose: 0.1 adds a tenth of the noise that it claims.", at_least=0
    )
    confidence: float = setting(0.95, "Probability with which a bound holds.", above=0, below=1)
    seed: int = setting(0, "Seed of what the attacker plants.", at_least=0)

    def __post_init__(self) -> None:
        check_settings(self)
