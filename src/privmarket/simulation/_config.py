"""The configuration of a federated run: a frozen record, checked when it is made, stored next to every result.

The default training was found to work under record-level DP on each data set, by a search on validation records
that no client holds. It takes one full-batch step per round: with an ε of a few per round, sampling costs more
signal than it gains privacy.

Importing this module is quick, so that commands start quickly and a client can bid without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from privmarket._settings import ARITHMETICS, MEASURED_ON, MarketPlan, TrainingPlan, identity, setting
from privmarket.errors import ConfigurationError, UnknownNameError


@dataclass(frozen=True)
class Mode:
    """How a run treats privacy.

    Attributes:
        name: as in configurations.
        reference: for modes that are not private: ordinary local training, or the paper's as printed, with noise on
            the trained weights. Empty for clipped gradients.
        holds_auctions: if False, all clients with records train for free.
        counts_epsilon: wallets limit what is offered and are charged for what is sold.
        is_private: the sold noise is added and the stated ε is true; otherwise no ε is stated.
        uses_server_plan: the server's momentum and averaging are used; otherwise it takes the plain average.
        aggregation: weights of the updates that replace the configured ones.
        on_pixels: the default is the paper's MLP on pixels.
    """

    name: str
    reference: Literal["plain", "literal"] | None = None
    holds_auctions: bool = True
    counts_epsilon: bool = False
    is_private: bool = False
    uses_server_plan: bool = False
    aggregation: str | None = None
    on_pixels: bool = False

    @property
    def leaves_noise_out(self) -> bool:
        """Whether this is a private run without its noise (same market, clipping and wallets), for comparisons."""
        return self.counts_epsilon and not self.is_private


_ALL = (
    Mode("private", counts_epsilon=True, is_private=True, uses_server_plan=True),
    # Without noise, wallets are charged as if there were noise, so that the same clients sell.
    Mode("no-noise", counts_epsilon=True, uses_server_plan=True),
    Mode("no-dp", "plain", holds_auctions=False),
    Mode("literal", "literal", aggregation="epsilon", on_pixels=True),
)
MODES = {mode.name: mode for mode in _ALL}


DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
# The value of `Training.model` if the task builds a module of its own.
OWN_MODEL = "own"
SIZES = ("equal", "dirichlet")
STRATEGIES = ("truthful", "equilibrium", "learning")
Statistics = Literal["none", "free", "moments"]
STATISTICS: tuple[Statistics, ...] = get_args(Statistics)


def usual_interval(rounds: int) -> int:
    """The default number of rounds between two measurements on test records: about ten in a run, at most ten rounds
    apart.

    Measurements between rounds are for charts only; nothing is chosen by them.
    """
    return min(10, max(1, rounds // 10))


@dataclass(frozen=True)
class Training(TrainingPlan):
    """How a round trains: the model, local steps, clipping, the server's optimiser. All of it is public."""

    model: str = setting("mlp", "mlp, cnn or logistic; own where a task brings its model.")
    features: str = setting("none", "none, or a fixed public transform: `pm.tasks.feature_names()`.")
    local_rate: float = setting(1.0, "Local step size, relative to clip_norm.", above=0)
    arithmetic: str = setting(
        "exact",
        "exact: integer noise on a grid, private in the bits that leave; float: not private in floating point.",
        choices=ARITHMETICS,
        added=True,
    )


_GRADIENTS = Training(
    features="centred-gradients",
    clip_norm=4.0,
    server_rate=4.0,
    final_rate=0.1,
    momentum=0.9,
    averaging=0.9,
)
_RECOMMENDED = {
    "digits": Training(model="logistic", final_rate=0.1, averaging=0.8),
    "mnist": _GRADIENTS,
    "fashion-mnist": _GRADIENTS,
    "cifar10": replace(_GRADIENTS, server_rate=2.0),
}
# Under aggregate trust there is little noise, so quick learning matters more: a linear model on whitened features.
_WHITENED = Training(
    model="logistic",
    features="whitened-scattering",
    clip_norm=4.0,
    server_rate=16.0,
    final_rate=0.1,
    momentum=0.9,
    averaging=0.9,
)
_UNDER_AGGREGATE_TRUST = {"mnist": _WHITENED, "fashion-mnist": _WHITENED, "cifar10": _WHITENED}


# For a task whose settings were not chosen on public records; see docs/how-to/your-own-data.md.
_OF_A_TASK = Training(model=OWN_MODEL, clip_norm=1.0, server_rate=1.0, final_rate=0.1, momentum=0.9, averaging=0.5)

# For whitened inputs, see `_moments`: the clip norm is in usual norms, the rate in usual steps.
_OF_WHITENED = Training(
    model=OWN_MODEL, clip_norm=0.25, server_rate=1.0, final_rate=0.1, momentum=0.0, averaging=0.5
)

_SET_FOR_WHITENED = ("clip_norm", "server_rate", "final_rate", "momentum", "averaging")


def recommended_training(dataset: str, trust: str = "local") -> Training:
    """The training that was found to work on a built-in picture set, under local or aggregate trust."""
    if dataset not in _RECOMMENDED:
        raise UnknownNameError(f"unknown data set {dataset!r}", f"choose one of: {', '.join(_RECOMMENDED)}")
    if trust == "aggregate" and dataset in _UNDER_AGGREGATE_TRUST:
        return _UNDER_AGGREGATE_TRUST[dataset]
    return _RECOMMENDED[dataset]


def whitened_training(training: Training, fixed: Sequence[str] = ()) -> Training:
    """The starting point of the search for settings on whitened inputs; settings in `fixed` stay."""
    changed = {name: getattr(_OF_WHITENED, name) for name in _SET_FOR_WHITENED if name not in fixed}
    return replace(training, **changed)


def statistics_words(config: FederationConfig) -> str:
    """How a run scales its inputs, in words; empty if it does not."""
    if config.statistics == "moments":
        return "round 1 sells means and second moments of the inputs; later rounds train on inputs whitened by them"
    if config.statistics == "free":
        source = "the moments of your own records" if config.public else "what the schema suggests"
        return f"inputs are whitened by {source}"
    return ""


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings with those of the training among them."""
    training = settings.get("training")
    rest = {name: value for name, value in settings.items() if name != "training"}
    return {**rest, **training} if isinstance(training, dict) else rest


# Replaced when the configuration is made, since it depends on data set, trust and mode.
_NOT_GIVEN = cast(Training, None)


@dataclass(frozen=True)
class FederationConfig(MarketPlan):
    """One run, stored next to every result; settings of every engine come from `plans.MarketPlan`.

    Without `training` it trains as is recommended for its data set and trust; a paper-literal run trains the
    paper's MLP on pixels.
    """

    dataset: str = setting("digits", "digits, mnist, fashion-mnist or cifar10; or the name of a task.")
    clients: int = setting(100, "How many clients share the records.", at_least=1)
    alpha: float = setting(0.5, "Dirichlet skew of labels: 0.1 severe, 0.5 mild.", above=0)
    sizes: str = setting(
        "equal",
        "equal: as many records each; dirichlet: each label is shared out by Dir(α), so that sizes vary too.",
        choices=SIZES,
        added=True,
    )
    valuations: str = setting(
        "drawn",
        "drawn from the scenario; measured: v = a·u/ε + b·|D| + c·Δ from each client's own records.",
        choices=("drawn", "measured"),
        added=True,
    )
    valuation_weights: str = setting(
        "0,0,1", "a,b,c of measured valuations: accuracy over ε, size, distance of labels.", added=True
    )
    strategy: str = setting(
        "truthful",
        "How clients report: truthful; equilibrium (they look ahead, needs a wallet); learning (by what has paid).",
        choices=STRATEGIES,
        added=True,
    )
    scenario: str = setting("uniform", "The distribution that clients' (v, ε) are drawn from.")
    wallet: float | None = setting(None, "Lifetime limit on each client's ε at δ; none if not given.", above=0)
    wallet_policy: str = setting(
        "spread",
        "spread: save for the rounds to come; spend: offer all that is left.",
        choices=("spend", "spread"),
    )
    types: str = setting(
        "persistent",
        "Whether a client's (v, ε) is persistent, or redrawn every round.",
        choices=("persistent", "redrawn"),
    )
    dropout: float = setting(
        0.0,
        "Probability with which a seller vanishes after the auction, unpaid.",
        at_least=0,
        below=1,
        added=True,
    )
    mode: str = setting(
        "private",
        "private; no-noise (the same market and clipping, noise left out); no-dp (plain FedAvg with everyone, no "
        "clipping, no noise, no money); literal (paper-literal Algorithm 2: noise on the weights).",
        choices=tuple(MODES),
    )
    measured_on: str = setting(
        "test", "Test records, or the validation records on which settings are chosen.", choices=MEASURED_ON
    )
    seed: int = setting(0, "Seed of everything that is drawn by chance.", at_least=0)
    task: str = setting("", "Digest of a task of one's own; empty for a built-in data set.", added=True)
    public: int = setting(0, "How many of the kept-back records are the buyer's own.", at_least=0, added=True)
    bids: str = setting("", "Digest of what each client asks, if it was given client by client.", added=True)
    statistics: str = setting(
        "none",
        "What inputs are scaled by: none; free (moments of public records, or what the schema suggests); moments "
        "(the first round sells means and second moments of the inputs, and the others train on scaled ones).",
        choices=STATISTICS,
        added=True,
    )
    statistics_norm: float | None = setting(
        None, "Norm of (inputs, 1) at which bought moments clip a record; else by schema.", above=0, added=True
    )
    training: Training = _NOT_GIVEN

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.task and self.dataset not in DATASETS:
            raise UnknownNameError.among("data set", self.dataset, DATASETS)
        if self.training is None:
            if self.task:
                usual = _OF_A_TASK if self.statistics == "none" else _OF_WHITENED
            elif self.privacy.on_pixels:
                usual = Training()
            else:
                usual = recommended_training(self.dataset, self.trust)
            object.__setattr__(self, "training", usual)

    @property
    def privacy(self) -> Mode:
        """The `Mode` object that belongs to the name in `mode`."""
        return MODES[self.mode]

    def to_json(self) -> dict[str, object]:
        """The configuration as JSON data; `training` is a dictionary inside."""
        return asdict(self)

    def digest(self) -> str:
        """A digest of this configuration, the same in every version of this program."""
        text = json.dumps(identity(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_same_run(self, saved: Mapping[str, object]) -> bool:
        """Whether `saved` is this run as `to_json` wrote it, perhaps before some settings existed."""
        try:
            return self.from_json(dict(saved)).to_json() == self.to_json()
        except ConfigurationError:
            return False

    def differences(self, saved: Mapping[str, object]) -> list[str]:
        """How `saved`, another run as `to_json` wrote it, differs from this one: "rounds was 20 and is 30"."""
        found = []
        then = _flat(saved)
        now = _flat(self.to_json())
        for name in (*now, *(name for name in then if name not in now)):
            was, is_now = (side.get(name, "not given") for side in (then, now))
            if was == is_now:
                continue
            # Digests say nothing to a reader.
            words = {"task": "the task has other records or another model", "bids": "clients ask otherwise"}
            found.append(words.get(name, f"{name} was {was} and is {is_now}"))
        return found or ["it was saved by another version"]

    def replace(self, **changes: Any) -> FederationConfig:
        """A copy of this configuration with some settings changed, checked again."""
        return replace(self, **changes)

    def replace_training(self, **changes: float | str) -> FederationConfig:
        """The same run with some settings of its training given anew."""
        return replace(self, training=Training(**{**asdict(self.training), **changes}))

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> FederationConfig:
        """The configuration that `to_json` wrote; unknown keys are refused."""
        rest = dict(given)
        training = rest.pop("training", None)
        for part, kind in ((rest, cls), (training or {}, Training)):
            unknown = set(part) - {f.name for f in fields(kind)}
            if unknown:
                raise ConfigurationError(
                    f"unknown settings: {', '.join(sorted(unknown))}",
                    f"choose from: {', '.join(f.name for f in fields(kind))}",
                )
        return cls(**rest) if training is None else cls(**rest, training=Training(**training))
