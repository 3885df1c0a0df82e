"""What a federated run is: one frozen record, checked when it is made, stored next to every result."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.federated.aggregation import AGGREGATIONS
from privmarket.federated.datasets import DATASETS, MEASURED_ON

MODES = ("private", "no-noise", "no-dp", "literal")
TYPES = ("persistent", "redrawn")
WALLET_POLICIES = ("spend", "spread")


@dataclass(frozen=True)
class Training:
    """How a round trains: local steps, clipping, the server's optimiser. All of it is public.

    Attributes:
        model: mlp, cnn or logistic.
        features: none, or a fixed transform of each image (`oriented-gradients`).
        steps: noisy local steps per round.
        sampling_rate: probability with which a record enters a step.
        clip_norm: largest norm with which one record's gradient counts.
        local_rate: local step size, relative to clip_norm.
        server_rate, final_rate, momentum, averaging: see `server.ServerPlan`.
    """

    model: str = "mlp"
    features: str = "none"
    steps: int = 1
    sampling_rate: float = 1.0
    clip_norm: float = 1.0
    local_rate: float = 1.0
    server_rate: float = 1.0
    final_rate: float = 1.0
    momentum: float = 0.9
    averaging: float = 0.0


@dataclass(frozen=True)
class FederationConfig:
    """One run.

    Attributes:
        mechanism_settings: settings of the auction rule, by name.
        budget: money per round.
        total_budget: money for the whole run, paced over its rounds; replaces `budget` when given.
        wallet: lifetime limit on each client's ε at `delta`; None means no limit.
        wallet_policy: `spend` offers as much as is left, `spread` keeps enough for all rounds to come.
        types: whether a client's (v, ε) persists over the rounds or is redrawn each round.
        mode: `private`; `no-noise` (the same market and clipping, noise left out); `no-dp` (plain FedAvg with
            everyone, no clipping, no noise, no money); `literal`
            (Algorithm 2 of [Sun2026] to the letter: noise on the weights).
        kappa, heterogeneity: κ and H of P2, for the optimal aggregation.
        evaluate_every: rounds between two measurements of the accuracy.
        measured_on: test records, or the validation records on which settings are chosen.
        seed: None draws every secret afresh, and the run cannot be repeated.
    """

    dataset: str = "digits"
    clients: int = 20
    alpha: float = 0.5
    scenario: str = "uniform"
    mechanism: str = "mean-field-menu"
    mechanism_settings: dict[str, Any] = field(default_factory=dict)
    budget: float = 10.0
    total_budget: float | None = None
    rounds: int = 30
    aggregation: str = "epsilon-squared"
    delta: float = 1e-5
    wallet: float | None = None
    wallet_policy: str = "spread"
    types: str = "persistent"
    mode: str = "private"
    kappa: float = 1.0
    heterogeneity: float = 0.1
    evaluate_every: int = 1
    measured_on: str = "test"
    seed: int = 0
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        _choice("data set", self.dataset, DATASETS)
        _choice("aggregation", self.aggregation, AGGREGATIONS)
        _choice("mode", self.mode, MODES)
        _choice("types", self.types, TYPES)
        _choice("records to measure on", self.measured_on, MEASURED_ON)
        _choice("wallet policy", self.wallet_policy, WALLET_POLICIES)
        for name, low in (("clients", 1), ("rounds", 1), ("evaluate_every", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise ConfigurationError(f"{name} is {getattr(self, name)}", f"must be at least {low}")
        for name in ("budget", "total_budget", "wallet", "alpha"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigurationError(f"{name} is {value}", "must be finite and above 0")

    def to_json(self) -> dict[str, Any]:
        """Plain data, nested."""
        return asdict(self)

    def digest(self) -> str:
        """Names this configuration: equal configurations, equal digests."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def replace(self, **changes: Any) -> FederationConfig:
        """The same run with some settings given anew."""
        return replace(self, **changes)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> FederationConfig:
        """The configuration that `to_json` wrote; unknown keys are refused."""
        rest = dict(given)
        training = rest.pop("training", {})
        for part, kind in ((rest, cls), (training, Training)):
            unknown = set(part) - {f.name for f in fields(kind)}
            if unknown:
                raise ConfigurationError(f"unknown settings: {', '.join(sorted(unknown))}", "check the spelling")
        return cls(**rest, training=Training(**training))


def _choice(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UnknownNameError(f"unknown {what} {given!r}", f"choose one of: {', '.join(known)}")
