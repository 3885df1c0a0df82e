"""What a market would add, rehearsed where nobody but the buyer has shown any records.

Rehearsals choose settings in made-up worlds, see `_rehearsal`. Here the same worlds answer another question: by how
much does the score rise? Three things differ, because a gain must not be flattered by how it was found.

- The worlds are new ones: settings that were chosen in some worlds look better there than they are.
- They are as hard as the buyer's records. A truth that is fitted to few records has chance in it, so even labels
  that the inputs say nothing about make worlds in which there is something to learn. The truth's differences
  between records are therefore stretched or shrunk (`contrasts`) until the buyer's own models explain as much in
  the worlds as in cross-validation on its real records.
- How much that is, is itself uncertain. Each world is made for another value within its standard error, so that the
  spread of the gain over worlds contains it.

How rehearsed gains compare with measured ones: docs/decisions/settings-on-public-records.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privmarket.simulation._federation import Federation
from privmarket.simulation._own_records import CrossValidated, OwnModel, OwnTraining, cross_validated
from privmarket.simulation._rehearsal import SKEW, StandIn, explained, first_round, free_whitening
from privmarket.simulation._result import RunResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privmarket.privacy._release import ReleaseGrid
    from privmarket.rounds import Award
    from privmarket.simulation._checkpoint import RunState
    from privmarket.tasks import Task

Array = NDArray[np.float64]

# Seed of the worlds that gains are measured in; others choose the settings.
GAIN_SEED = 1
GAIN_WORLDS = 16
# Contrasts among which that of a world is found, and how many worlds each is tried in.
_CONTRASTS = (0.0, 0.35, 0.7, 1.0, 1.5, 2.5, 4.0, 7.0)
_TRIED_WORLDS = 6


class GainRehearsal:
    """Worlds as hard as a buyer's records, in which the gain of a market is measured.

    Args:
        task: its public records, model, scores and declared numbers of records are used.
        skew: of stand-in sellers, as for `StandIn`.
        worlds: how many gains are measured for each market.
        on_step: called after each part of the preparation, of which there are `GainRehearsal.steps`.
    """

    steps = len(_CONTRASTS) + 2

    def __init__(
        self,
        task: Task,
        *,
        skew: float = SKEW,
        worlds: int = GAIN_WORLDS,
        seed: int = GAIN_SEED,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.task = task
        self.skew = skew
        self.seed = seed
        self._on_step = on_step or (lambda: None)
        self.own_model: OwnModel = OwnTraining(task, seed).own_model()
        self.own: CrossValidated = cross_validated(task, self.own_model, seed=seed)
        self._on_step()
        self.worlds = worlds

    @cached_property
    def contrasts(self) -> tuple[float, ...]:
        """(worlds,) that make the buyer's own models explain as much as on its real records."""
        assert self.task.public is not None
        shares = explained(self.task, self.own.outputs, self.task.public.labels)
        error = float(shares.std(ddof=1)) / len(shares) ** 0.5
        found = []
        for contrast in _CONTRASTS:
            found.append(self._worlds([contrast] * _TRIED_WORLDS).explained_before())
            self._on_step()
        # Chance aside, more contrast explains more; a small slope makes the curve invertible.
        rising = np.maximum.accumulate(found) + 1e-9 * np.arange(len(found))
        places = (np.arange(self.worlds) + 0.5) / self.worlds
        wanted = shares.mean() + error * special.ndtri(np.random.default_rng(self.seed).permutation(places))
        return tuple(float(one) for one in np.interp(wanted, rising, _CONTRASTS))

    def _worlds(self, contrasts: Sequence[float]) -> StandIn:
        return StandIn(
            self.task,
            clients=len(self.task.clients),
            skew=self.skew,
            worlds=len(contrasts),
            seed=self.seed,
            contrasts=contrasts,
            own=self.own_model,
        )

    @cached_property
    def _stand_in(self) -> StandIn:
        made = self._worlds(self.contrasts)
        self._on_step()
        return made

    @property
    def key(self) -> str:
        """Names these worlds, given the task."""
        return f"{self.worlds} worlds {self.seed} {self.skew!r} {_CONTRASTS} {_TRIED_WORLDS}"

    def scores(self, federation: Federation) -> Array:
        """(worlds, 2): the headline score before and after a run's market; no rows if nobody sells."""
        config = federation.config
        first = first_round(federation)
        if first is None:
            return np.zeros((0, 2))
        noise = first.noise if config.privacy.is_private else 0.0
        whitening = free_whitening(config, self.task) if config.statistics == "free" else None
        return self._stand_in.scores(config.training, config.rounds, noise, first.weights, whitening)


@dataclass(frozen=True)
class MarketFigures:
    """What a run pays and releases, without the training that it buys; fields as in `RunFigures`."""

    spent: float
    lifetime_epsilon: float
    highest_pay: float
    sellers_per_round: float
    epsilon_if_others_collude: float | None


class MarketAlone(Federation):
    """A run whose auctions, payments and wallets are real and whose sellers send zeros: no record is looked at."""

    def run_clients(
        self, state: RunState, sales: Mapping[str, Award | None], grids: Sequence[ReleaseGrid] = ()
    ) -> np.ndarray:
        """Zeros in the shape of what these clients would release."""
        rows = min(1, len(sales)) if grids else len(sales)
        return np.zeros((rows, self.pool.model.parameters), dtype=np.int64 if grids else np.float32)

    def figures(self) -> MarketFigures:
        """The whole run's."""
        state = self.start()
        while state.next_round < self.config.rounds:
            state = self.step(state)
        types = self.types(self.config.rounds - 1)
        weights = self.model_weights(state).numpy()
        result = RunResult(
            self.config, state.records, weights, state.wallets, types, 0.0, self.task, None, None, state.whitening
        )
        rows = result.client_rows
        alone = [row["epsilon_if_others_collude"] for row in rows]
        return MarketFigures(
            spent=float(result.spent),
            lifetime_epsilon=max((row["epsilon_spent"] or 0.0 for row in rows), default=0.0),
            highest_pay=max((row["paid"] for row in rows), default=0.0),
            sellers_per_round=float(np.mean([record.sellers for record in state.records])),
            epsilon_if_others_collude=max((one for one in alone if one is not None), default=None),
        )
