"""A task whose labels follow from a known slope, and a run on it."""

import numpy as np

from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federate import settings_of
from privmarket.tasks import Task

CLIENTS = 12
SLOPE = np.array([1.5, -1.0, 0.5, 0.0])


def in_turn(i):
    """Whose record is number i where all hold equally many."""
    return i % CLIENTS


def half_to_one(i):
    """Whose record is number i where the first client holds more than half: 260 of 480, the others 20 each."""
    return 0 if i % 2 else i // 2 % CLIENTS


def made(goal="classification", private_seed=0, public=60, model="linear", rows=40, owner=in_turn, **changes):
    """A task whose labels follow from a known slope; `private_seed` changes nothing but the private records."""

    def drawn(seed, count):
        rng = np.random.default_rng(seed)
        inputs = rng.normal(size=(count, SLOPE.size)).astype(np.float32)
        values = inputs @ SLOPE
        if goal == "regression":
            return inputs, values + 0.3 * rng.normal(size=count)
        return inputs, (rng.random(count) < 1 / (1 + np.exp(-2 * values))).astype(np.int64)

    inputs, labels = drawn([1, private_seed], CLIENTS * rows)
    extra = {"classes": 2} if goal == "classification" else {"label_range": (-8.0, 8.0)}
    return Task.from_arrays(
        inputs,
        labels,
        clients=[f"site {owner(i)}" for i in range(labels.size)],
        public=drawn(2, public) if public else None,
        test=drawn(3, 400),
        model=model,
        **extra,
        **changes,
    )


def config_of(task, **changes):
    settings = {"trust": "aggregate", "budget": 20.0, "rounds": 5, "mechanism": "ration", "evaluate_every": 5}
    return FederationConfig(**settings_of(task), **{**settings, **changes})
