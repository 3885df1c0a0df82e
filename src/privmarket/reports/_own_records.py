"""The free baseline of a report: what the buyer's own records give without a market."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privmarket.errors import DataError
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._result import RunResult
from privmarket.tasks import Dataset, load_dataset, own_records_alone, with_features

_OWN = 7  # keeps the draws apart from the run's random numbers


@dataclass(frozen=True)
class OwnRecords:
    """How often models are right that were fitted to the buyer's own records alone.

    Attributes:
        records: how many records the buyer has.
        accuracy: share of test records that such a model gets right, or another headline score, in the mean over
            the draws.
        curve: (records, accuracy) for other numbers of own records, rising in records; `records` is among them.
        draws: over how many draws of the records each accuracy is a mean.
        tested: how many test records there are.
        gain_error: standard error of what the market adds, from the choice of test records; None if not known.
    """

    records: int
    accuracy: float
    curve: tuple[tuple[int, float], ...]
    draws: int
    tested: int
    gain_error: float | None = None

    @classmethod
    def of(cls, result: RunResult) -> OwnRecords | None:
        """What a run on a task says of the buyer's public records; None where it has none."""
        found = result.own_records
        test = result.task.test
        if found is None or test is None:
            return None
        value = found.scores[result.task.score.name]
        return cls(found.records, value, ((found.records, value),), 1, len(test), result.gain_error)

    def enough(self, accuracy: float) -> int | None:
        """The fewest own records of the curve that do as well as `accuracy`; None if none do."""
        return next((records for records, reached in self.curve if reached >= accuracy), None)


def measure_own_records(
    kept: Dataset, test: Dataset, records: int, others: Sequence[int] = (), *, seed: int = 0
) -> OwnRecords:
    """Fits plain models to draws from the records that no client holds, and tests them.

    The model is the best of `tasks.own_records_alone` by cross-validation on the drawn records. Up to 500 records
    are drawn ten times; more, which vary less and take longer, once.

    Args:
        kept: its test records are those that no client holds, with the features that the market's model sees.
        test: its test records are those that the market's model is tested on, with the same features.
        records: how many records the buyer has.
        others: further numbers of records for the curve; those above what is kept back are left out.
        seed: of the draws.
    """
    inputs = kept.test_images
    labels = kept.test_labels
    if records > labels.size:
        raise DataError(
            f"{records} own records asked for, but only {labels.size} of {kept.name} are held by no client",
            f"ask for at most {labels.size}",
        )
    sizes = sorted({size for size in (records, *others) if size <= labels.size})
    draws = 10 if sizes[-1] <= 500 else 1
    curve = []
    for size in sizes:
        reached = []
        for draw in range(draws):
            chosen = np.random.default_rng([seed, _OWN, draw]).permutation(labels.size)[:size]
            best = own_records_alone(inputs[chosen], labels[chosen], seed=draw)[0]
            reached.append(best.score(test.test_images, test.test_labels))
        curve.append((size, float(np.mean(reached))))
    return OwnRecords(records, dict(curve)[records], tuple(curve), draws, int(test.test_labels.size))


def own_records_of(config: FederationConfig, records: int, others: Sequence[int] = ()) -> OwnRecords:
    """The same for the data set, features and seed of a run."""
    kept, test = (
        with_features(load_dataset(config.dataset, measured_on=part), config.training.features)
        for part in ("validation", "test")
    )
    return measure_own_records(kept, test, records, others, seed=config.seed)
