"""What it costs to buy from some clients only, beside what noise costs: H²/κ of the market's error, measured.

A rule that is optimised for an accurate sum must weigh bias (clients left out) against noise (little ε bought).
Their exchange rate depends on the data, on how it is split and on the training, so it is measured where it counts:
in the accuracy of trainings on public records that stand for the clients' (a public proxy, or a data set that is
simulated anyway). Some trainings leave a random part of the clients out and add no noise, others keep all clients
and add noise; a part and a noise that end at the same accuracy do equal harm.

Notation: N clients of which a share u takes part, s = deviation of the noise on the mean of all clients' sums over
the clip norm C. The typical error is κ·s² for noise alone and H²·(1/u − 1) for a random part alone, so
H²/κ = s²/(1/u − 1) at equal accuracy. Derivation: docs/theory/aggregate-trust.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federation import Federation
from privmarket.simulation._workers import one_thread
from privmarket.tasks import Task

# Random streams of a measurement, apart from those of a run.
_PARTS, _NOISE = 11, 12


@dataclass(frozen=True)
class ClientSpread:
    """Accuracies of the trainings, and the exchange rate that follows from them.

    Attributes:
        share, share_accuracy: shares of clients that took part, and the mean accuracy of each.
        noise, noise_accuracy: s, rising, and the accuracy with all clients.
    """

    share: tuple[float, ...]
    share_accuracy: tuple[float, ...]
    noise: tuple[float, ...]
    noise_accuracy: tuple[float, ...]

    @property
    def equal_noise(self) -> tuple[float, ...]:
        """For each share the s that does equal harm, within the noise that was tried."""
        # Accuracy falls with noise but for chance; between levels on a logarithmic scale.
        falling = np.minimum.accumulate(np.array(self.noise_accuracy))
        logs = np.interp(-np.array(self.share_accuracy), -falling, np.log(self.noise))
        return tuple(float(s) for s in np.exp(logs))

    @property
    def bias_to_noise(self) -> float:
        """H²/κ: the geometric mean of s²/(1/u − 1) over the shares that were tried."""
        rates = np.array(self.equal_noise) ** 2 / (1.0 / np.array(self.share) - 1.0)
        return float(np.exp(np.log(rates).mean()))

    @property
    def heterogeneity(self) -> float:
        """The H of `TypicalAggregateError` that goes with κ = 1."""
        return float(self.bias_to_noise**0.5)


def measure_spread(
    config: FederationConfig,
    task: Task,
    *,
    shares: Sequence[float] = (0.2, 0.35, 0.5),
    draws: int = 3,
    octaves: Sequence[int] = range(-4, 4),
    on_training: Callable[[], None] = lambda: None,
) -> ClientSpread:
    """Trains several times and compares.

    Args:
        config: model, split into clients, rounds and server's steps; its rule and money do not matter.
        task: whose private records are public ones that stand for the clients'; accuracy is of its test records.
        shares: of clients that take part, above 0 and below 1.
        draws: random parts for each share.
        octaves: noise that is tried, as powers of 2 around noise as large as the first round's mean gradient.
        on_training: called after each training.
    """
    if not shares or not all(0 < share < 1 for share in shares):
        raise ConfigurationError(f"shares of clients {list(shares)}", "give shares above 0 and below 1")
    with one_thread(), Federation(config.replace(mode="no-noise"), task=task) as run:
        everyone = np.flatnonzero(run.sizes)
        rng = np.random.default_rng([config.seed, _PARTS])

        def accuracy(part: np.ndarray, noise: float) -> float:
            found = _accuracy(run, part, noise)
            on_training()
            return found

        share_accuracy = []
        for share in shares:
            parts = [rng.permutation(everyone)[: max(1, round(share * everyone.size))] for _ in range(draws)]
            share_accuracy.append(float(np.mean([accuracy(part, 0.0) for part in parts])))
        equal = _equal_noise(run, everyone)
        noise = [equal * 2.0**octave for octave in octaves]
        noise_accuracy = [accuracy(everyone, s) for s in noise]
    return ClientSpread(tuple(shares), tuple(share_accuracy), tuple(noise), tuple(noise_accuracy))


def _accuracy(run: Federation, clients: np.ndarray, noise: float) -> float:
    """Of a training on these clients alone, with noise of deviation `noise`·C on the mean of their sums."""
    rng = np.random.default_rng([run.config.seed, _NOISE])
    members, state = [int(i) for i in clients], run.start()
    deviation = noise * _unit(run)
    for number in range(run.config.rounds):
        update = run.run_clients(state, dict.fromkeys(run.names[i] for i in members)).mean(axis=0)
        update = (update + deviation * rng.standard_normal(update.size)).astype(np.float32)
        progress = number / run.config.rounds
        server = state.server.moved(update, run.server_plan, progress)
        state = replace(state, server=server, next_round=number + 1)
    found = run.score(state)
    assert found is not None
    return found


def _equal_noise(run: Federation, clients: np.ndarray) -> float:
    """The s whose noise is as long as the mean update of the first round."""
    members = [int(i) for i in clients]
    update = run.run_clients(run.start(), dict.fromkeys(run.names[i] for i in members)).mean(axis=0)
    return float(np.linalg.norm(update) / (_unit(run) * update.size**0.5))


def _unit(run: Federation) -> float:
    """How far a client's update moves where its clipped sum moves by one clip norm."""
    plan = run.pool.plan
    return float(plan.clip_norm * plan.learning_rate / plan.expected_batch)
