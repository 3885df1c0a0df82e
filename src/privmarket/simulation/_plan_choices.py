"""What a plan may choose (rounds, rule, price, server rate), and how much of it a plan of some effort tries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import SCENARIOS, Distribution
from privmarket.market._objectives import AggregateError
from privmarket.market._ration_design import Marginals
from privmarket.simulation._config import FederationConfig, Training

# Settings are chosen with this seed; figures come from others.
SEARCH_SEEDS = (0,)
REFINEMENTS = 2  # totals tried between the cheapest that reaches a target and the next below it
# Under local trust, where H means something else and is not measured.
_GRADED_HETEROGENEITY = 1.0


@dataclass(frozen=True)
class Choice:
    """What a plan chooses, all of it public.

    Attributes:
        rounds: how often money is spent; the total is split evenly.
        rule, settings: the auction rule; `label` names both for tables.
        server_rate: step size of the server's optimiser.
        clip_norm, averaging: of the training; None leaves those of the base configuration.
    """

    rounds: int
    rule: str
    settings: tuple[tuple[str, object], ...]
    label: str
    server_rate: float
    clip_norm: float | None = None
    averaging: float | None = None

    def tuned(self, training: Training) -> Choice:
        """The same choice with the settings that a rehearsal found."""
        return replace(
            self, server_rate=training.server_rate, clip_norm=training.clip_norm, averaging=training.averaging
        )

    def training(self, base: Training) -> Training:
        """The training of a run with this choice."""
        return replace(
            base,
            server_rate=self.server_rate,
            clip_norm=base.clip_norm if self.clip_norm is None else self.clip_norm,
            averaging=base.averaging if self.averaging is None else self.averaging,
        )

    def config(self, base: FederationConfig, total: float) -> FederationConfig:
        """The configuration of a run that spends `total` with these settings."""
        return base.replace(
            rounds=self.rounds,
            evaluate_every=self.rounds,
            budget=total / self.rounds,
            total_budget=None,
            mechanism=self.rule,
            mechanism_settings=dict(self.settings),
            training=self.training(base.training),
        )


@dataclass(frozen=True)
class Options:
    """What a plan tries. Prices are shares of clients that ask less; worlds are those of a rehearsal."""

    rounds: tuple[int, ...] = (5, 15, 50)
    price_shares: tuple[float, ...] = (0.5, 0.75, 0.95)
    heterogeneities: tuple[float, ...] = (0.3, 1.0)
    seeds: tuple[int, ...] = (1, 2, 3)
    worlds: int = 6

    def __post_init__(self) -> None:
        for name in ("rounds", "seeds"):
            if not getattr(self, name):
                raise ConfigurationError(f"plan: no {name} to try", "give at least one")
        if self.worlds < 1:
            raise ConfigurationError(f"plan: {self.worlds} worlds to rehearse in", "give at least 1")
        if min(self.rounds) < 1 or {*SEARCH_SEEDS} & {*self.seeds} or min(self.seeds) < 0:
            raise ConfigurationError(
                f"plan: rounds {list(self.rounds)}, seeds {list(self.seeds)}",
                f"rounds must be above 0, seeds other than {SEARCH_SEEDS}, which choose the settings",
            )


EFFORTS = {
    "quick": Options((5, 20), (0.6, 0.95), (0.3,), (1, 2), 4),
    "normal": Options(),
    "full": Options((3, 7, 20, 60), (0.4, 0.6, 0.8, 0.95), (0.1, 0.3, 1.0), (1, 2, 3, 4, 5), 10),
}

# Under aggregate trust the same model takes a fraction of the money: the noise is shared.
_MONEY_PER_CLIENT = {"local": (0.3, 1.0, 3.0, 10.0), "aggregate": (0.03, 0.1, 0.4, 1.5)}


def usual_totals(clients: int, trust: str) -> list[float]:
    """Totals of money to try where none are named."""
    return [clients * amount for amount in _MONEY_PER_CLIENT[trust]]


def rule_choices(
    base: FederationConfig, law: Distribution, options: Options, measured: float | None = None
) -> list[Choice]:
    """The rules that a plan tries: all exact, so that the plan holds when clients look after themselves.

    Rounds and rate of the result are those of the base configuration.

    Args:
        law: what clients ask.
        measured: H where it was measured; else rules that need it are tried with those of the options.
    """
    facts = Marginals.of(law)
    rounds, rate = base.rounds, base.training.server_rate
    found = []
    for share in options.price_shares:
        price = float(f"{float(facts.price(np.array(share))):.4g}")
        settings = (("unit_price", price),)
        found.append(Choice(rounds, "two-step", settings, f"two-step, one ration at {price:g}", rate))
    for heterogeneity in options.heterogeneities if measured is None else (measured,):
        learned = (("objective", AggregateError.name), ("heterogeneity", heterogeneity))
        if law.name in SCENARIOS:
            found.append(Choice(rounds, "mfg-menunet", learned, f"mfg-menunet for H = {heterogeneity:g}", rate))
        else:
            found.append(Choice(rounds, "two-step", learned[1:], f"two-step for H = {heterogeneity:g}", rate))
    grade = _GRADED_HETEROGENEITY if measured is None else measured
    graded, label = (("heterogeneity", grade),), f"graded-ration for H = {grade:g}"
    found.append(Choice(rounds, "graded-ration", graded, label, rate))
    found.append(Choice(rounds, "mean-field-menu", (), "mean-field-menu", rate))
    return found


def expected_cells(options: Options, totals: int, rules: int, *, rehearses: bool, target: bool = False) -> int:
    """About how many rehearsals and runs a plan for so many totals makes; for a target, more totals are tried."""
    totals += REFINEMENTS if target else 0
    search = rules + len(options.rounds)
    near = min(3, len(options.rounds)) + min(2, rules - 1)
    return (search + (totals - 1) * near if rehearses else 0) + totals * len(options.seeds)
