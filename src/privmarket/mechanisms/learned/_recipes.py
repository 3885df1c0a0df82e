"""What a training run is: everything that decides its result, in one frozen record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from privmarket._settings import HETEROGENEITY, KAPPA
from privmarket.errors import ConfigurationError
from privmarket.mechanisms._registry import check_type, declared_types
from privmarket.mechanisms.learned._losses import Alignment, Baseline, Steering

PAPER_SCENARIOS = ("uniform", "bimodal", "lognormal")


@dataclass(frozen=True)
class MisreportSearch:
    """The search for misreports during training.

    Attributes:
        kind: "candidates" (a dozen guesses and three sign steps) or "ascent" (plain projected ascent).
        steps, step_size: R and η of the ascent.
        rows: about how many clients of a batch are attacked.
        start: where an ascent starts: "others" (another client's valuation, the own ε), "uniform" (anywhere in the
            space of reports, Eq. (pga) of [Sun2026]) or "truth" (as the authors' public code does).
    """

    kind: str = "candidates"
    steps: int = 25
    step_size: float = 0.01
    rows: int = 640
    start: str = "others"


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Attributes:
        mechanism: the name the weights will serve.
        scenarios: distributions that markets are drawn from.
        clients: (low, high) numbers of clients, log-uniform.
        budget_per_client: (low, high) money per client, log-uniform.
        objective: "total-epsilon", "aggregation-error" (problem P2) or "revenue" (the paper's); or an own one.
        loss: "lagrangian" or "penalty"; see `_losses`.
        kappa, heterogeneity: weights of noise and of bias in the aggregation error.
        steps, rows, learning_rate: Adam steps, clients per batch, first rate (cosine to a twentieth).
        pool: number of batches drawn once and visited in turn, with warm-started misreports; 0 draws anew.
        individual_rationality: weight γ of the IR hinge, for networks that do not keep IR by construction.
        hinge: the cost that the IR hinge compares pay with: v times the ε that is "sold", or times the ε that was
            "offered", which is the paper's c(v_i, ε_i).
        profiles: markets per batch; 0 takes as many as `rows` holds.
        group_weight: weight of the group-regularised regret: how much more the worst fifth of valuations gains
            from misreports than the average client.
    """

    mechanism: str
    scenarios: tuple[str, ...] = PAPER_SCENARIOS
    clients: tuple[int, int] = (10, 1000)
    budget_per_client: tuple[float, float] = (0.1, 2.0)
    objective: str = "total-epsilon"
    loss: str = "lagrangian"
    kappa: float = KAPPA
    heterogeneity: float = HETEROGENEITY
    steps: int = 2_000
    rows: int = 2048
    learning_rate: float = 1e-3
    pool: int = 0
    individual_rationality: float = 10.0
    hinge: str = "sold"
    profiles: int = 0
    group_weight: float = 0.0
    seed: int = 0
    network: Mapping[str, object] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    attack: MisreportSearch = field(default_factory=MisreportSearch)
    alignment: Alignment = field(default_factory=Alignment)
    baseline: Baseline = field(default_factory=Baseline)

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The same run with some settings changed, by dotted names: {"alignment.weight": 0, "steps": 300}.

        Settings of the network are checked by the network itself. Unknown names are refused.
        """
        changed = self
        for name, value in settings.items():
            outer, _, inner = name.partition(".")
            known = bool(inner) if outer == "network" else name in _settings()
            if not known:
                raise _no_setting(name)
            part = getattr(changed, outer)
            types = declared_types(type(part) if inner else Recipe)
            value = tuple(value) if isinstance(value, list) else value
            if (inner or outer) in types:
                check_type("training", name, value, types[inner or outer])
            if inner:
                value = {**part, inner: value} if isinstance(part, dict) else replace(part, **{inner: value})
            changed = replace(changed, **{outer: value})
        return changed

    def to_json(self) -> str:
        """A stable text form, kept in the metadata of weights."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Recipe:
        """The recipe that `to_json` wrote; unknown keys are refused."""
        given = json.loads(text)
        known = {f.name for f in fields(Recipe)}
        if unknown := set(given) - known:
            raise ConfigurationError(
                f"recipe has unknown keys {sorted(unknown)}", "train the weights again with this version"
            )
        for name, kind in _NESTED.items():
            inner = {key: tuple(v) if isinstance(v, list) else v for key, v in given[name].items()}
            given[name] = kind(**inner)
        for name in ("scenarios", "clients", "budget_per_client"):
            given[name] = tuple(given[name])
        return Recipe(**given)


_NESTED = {"steering": Steering, "attack": MisreportSearch, "alignment": Alignment, "baseline": Baseline}
_PLAIN = {f.name for f in fields(Recipe)} - {*_NESTED, "network", "mechanism", "scenarios"}


def _settings() -> list[str]:
    """Dotted names of all settings but those of the network."""
    return [*sorted(_PLAIN), *(f"{outer}.{f.name}" for outer, kind in _NESTED.items() for f in fields(kind))]


def setting_names() -> list[str]:
    """What `Recipe.with_settings` and `privmarket train --set` understand."""
    return [*_settings(), "network.*"]


def _no_setting(name: str) -> ConfigurationError:
    """The error for a name that cannot be set; of a whole group it names the settings inside."""
    inside = [known for known in setting_names() if known.startswith(f"{name}.")]
    hint = f"{name} is a group; set one of: " if inside else "settings are: "
    return ConfigurationError(f"a recipe has no setting {name!r}", hint + ", ".join(inside or setting_names()))


# N of the edges between classes of markets that have multipliers of their own.
CLIENT_CLASSES = (18, 50, 150, 450)


def client_class(clients: int) -> int:
    """Which class of market size N belongs to, 0 … len(CLIENT_CLASSES)."""
    return sum(clients >= edge for edge in CLIENT_CLASSES)


# Means over poor and rich markets: the poorest leave several times as much regret as those of Table II.
_BY_SIZE = Steering(regret_budget=(0.008, 0.004, 0.002, 0.0015, 0.0015), first=10.0, rate=0.003)
# Groups of five to thirty: under the budgets above λ of the smallest climbs past 50 and costs more than it brings.
_BY_GROUP = Steering(regret_budget=(0.015, 0.006, 0.002, 0.0015, 0.0015), first=8.0, rate=0.003)
_NO_ALIGNMENT = Alignment(weight=0.0)
# Concatenated networks see one group of at most this many seats at a time, whatever the size of the market.
SEATS = 30
_SEATED = Recipe(
    "regretnet",
    clients=(5, SEATS),
    steps=1_500,
    network={"seats": SEATS},
    steering=_BY_GROUP,
    alignment=_NO_ALIGNMENT,
)
_DEFAULTS: dict[str, Recipe] = {
    "mfg-regretnet": Recipe("mfg-regretnet", steps=1_500, steering=_BY_SIZE),
    "regretnet": _SEATED,
    "dm-regretnet": replace(_SEATED, mechanism="dm-regretnet", steps=300, learning_rate=5e-4),
    "regretformer": Recipe(
        "regretformer",
        clients=(5, 60),
        steps=800,
        rows=768,
        steering=_BY_GROUP,
        attack=MisreportSearch(rows=192),
        alignment=_NO_ALIGNMENT,
    ),
    # Section VIII of the paper: revenue, 200 outer iterations of 25 steps on 64 profiles, R = 25 ascent steps of
    # 0.01 from uniform starts, ρ from 1 by 1.5 every ten outer iterations to 100, plain dual ascent, γ = 10 on the
    # cost of the offered ε. Ten clients of each profile are attacked per step; sizes up to the paper's N = 100.
    "mfg-regretnet:literal": Recipe(
        "mfg-regretnet:literal",
        clients=(10, 100),
        objective="revenue",
        steps=200 * 25,
        profiles=64,
        hinge="offered",
        steering=Steering(regret_budget=(0.0,) * 5, first=1.0, growth_every=10 * 25),
        attack=MisreportSearch(kind="ascent", start="uniform"),
        alignment=Alignment(anneal_steps=100 * 25),
    ),
}


def recipe(mechanism: str, profile: str = "full", **changes: Any) -> Recipe:
    """The recipe of a registered rule; `quick` is sized for under three minutes on two cores."""
    if mechanism not in _DEFAULTS:
        raise ConfigurationError(
            f"{mechanism!r} is not a mechanism that is trained",
            f"choose one of: {', '.join(sorted({*_DEFAULTS, 'mfg-menunet'}))}, or give file.py:Network",
        )
    return replace(_of_profile(_DEFAULTS[mechanism], profile), **changes)


def own_recipe(mechanism: str, profile: str = "full") -> Recipe:
    """The recipe of a network of one's own: that of `regretformer`, for markets of 5 to 30 clients."""
    return _of_profile(replace(_DEFAULTS["regretformer"], mechanism=mechanism, clients=(5, 30)), profile)


def _of_profile(base: Recipe, profile: str) -> Recipe:
    if profile == "quick":
        return replace(base, steps=max(200, base.steps // 20), rows=max(512, base.rows // 2))
    if profile != "full":
        raise ConfigurationError(f"unknown profile {profile!r}", "choose quick or full")
    return base


def market_size(of: Recipe, clients: int) -> dict[str, Any]:
    """Changes of a recipe that train for markets of one size.

    A concatenated network gets as many seats as the largest of the groups that such a market is cut into, and is
    trained from half of that on: no market of more clients is cut into smaller groups.
    """
    if "seats" not in of.network:
        return {"clients": (clients, clients)}
    largest = math.ceil(clients / math.ceil(clients / SEATS))
    return {"clients": ((largest + 1) // 2, largest), "network": {**of.network, "seats": largest}}
