"""Settings chosen on public records alone: a market is rehearsed in worlds that look like them.

How large the steps of a training should be, where gradients are clipped and from whom to buy depends on the data.
Trying that on the sellers' records would be a release that nobody sold. Trying it on the buyer's own records as
they are tells too little: a model that was fitted to them cannot learn anything new from them. So each rehearsal
takes place in a world made up from them (a parametric bootstrap):

1. the world's truth is a model that is plausible given the public records: the task's module fitted to a resample
   of them. The weights of a linear module are penalised for their distance from a random draw of its prior instead
   of from zero, so that the truth also varies in directions about which the records say nothing;
2. the buyer has as many inputs as in reality, with labels drawn from the truth; its own model is fitted to them;
3. stand-in sellers hold other inputs with labels drawn in the same way; a market buys from them, with the noise and
   the choice of sellers that the real one would have; the loss is measured on inputs that nobody holds.

What a market can gain in such a world is what the buyer is unsure of, given its own records. Real sellers hold many
more records than the buyer. For a linear module of numeric inputs a world therefore has as many inputs as it needs,
drawn around the public ones (a smoothed bootstrap); otherwise the buyer has the public inputs and stand-in sellers
share four fifths of the same. Sellers differ in their mix of labels, by a Dirichlet draw around the whole. Real
sellers may differ in other ways.

- `tuned_settings` chooses server rate, clip norm, averaging and the weights of updates for one run.
- `StandIn` holds the worlds; `_rehearsed_gain` measures scores in further ones. `first_round` says which noise and
  which sellers a run's auction would give.
- `ClientSpread` and `measure_spread` measure H: the harm of buying from some clients only, against that of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privmarket.errors import ConfigurationError, DataError
from privmarket.simulation._checkpoint import RunState
from privmarket.simulation._config import FederationConfig, Training, whitened_training
from privmarket.simulation._federation import Federation, SimulatedClients
from privmarket.simulation._moments import MOST_FREE_INPUTS, MomentsSale, Whitening, free_moments, further_rows
from privmarket.simulation._own_records import (
    FEWEST_RECORDS,
    OwnModel,
    OwnTraining,
    flat_weights,
    is_linear,
    is_linear_in_inputs,
    trained_linear,
)
from privmarket.simulation._server import ServerState, seller_weights
from privmarket.tasks import Records, Task
from privmarket.training import ClientRecords, PrivateModel, clipped_sums, one_thread

if TYPE_CHECKING:
    from privmarket.market._mechanism import Mechanism
    from privmarket.simulation._bidding import AskedPrices

Array = NDArray[np.float64]

# Numbers of random streams, different from those that a run uses.
_SPREAD_PARTS = 11
_SPREAD_NOISE = 12
_RESAMPLE = 21
_LABELS = 22
_MIXES = 23
_NOISE = 24
_PARTS = 25
# Parts of the clients and levels of noise by which H is measured.
SPREAD_SHARES = (0.15, 0.4)
SPREAD_DRAWS = 2
SPREAD_OCTAVES = (-2, 0, 1, 2, 3, 4)
# Rows of a world that are trained on, of linear modules and of others, whose steps cost more. Where inputs are made
# up, stand-in sellers hold as many as the real ones: with fewer, they know the drawn labels by heart after a few
# long steps, and short ones look best; with more, buying from a few looks better than it is.
_ROWS = 2_000
_MOST_ROWS = 10_000
_ROWS_OF_NETWORKS = 300
_CHECKED_ROWS = 2_000
# Rows of one product of matrices, which then stay in a processor's cache.
_ROWS_AT_ONCE = 500
# The share of the public inputs that stand-in sellers hold where no further inputs can be drawn. The loss is
# measured on the other inputs, so that noise counts also in directions that the sellers' inputs do not span.
_HELD_SHARE = 0.8
# Where inputs are few, each gets up to so many labels, so that the chance of a single draw is not what is learned.
_MOST_DRAWS = 8
# How far inputs are drawn around public ones: the share of their deviation that is drawn anew.
_SMOOTHING = 0.5
_LARGEST_PRIOR = 2.0
# Scales of a classifier's outputs at which its loss in a world is measured; the best one counts.
_SCALES = tuple(float(scale) for scale in np.geomspace(0.05, 4.0, 25))
# Regression targets are cut into so many groups, between which stand-in sellers differ.
_TARGET_GROUPS = 5
# The skew of stand-in sellers where the task does not say how its clients differ.
SKEW = 0.5
WORLDS = 8
# Clip norms that are tried, as shares of the length of a long gradient. With a small clip norm all records that are
# not learned yet count alike, and noise is small beside them. But if it is below the gradients of a rare class, the
# model learns that this class is even rarer than it is.
_CLIP_SHARES = (1.0, 0.25)
_LONG_GRADIENT = 0.99
_NORMS_LOOKED_AT = 400
# Server rates that are tried first. Each is given as the change of the loss over a whole run, to first order, if
# all gradients were long and pointed the same way. A wide range is tried in steps of a factor 4, because along it
# the loss that a rehearsal ends with may fall, rise and fall again.
_MOVES = tuple(4.0**power for power in range(1, 9))
# In how many worlds all of them are tried, and how many of them are then tried in every world.
_SCREENING_WORLDS = 2
_FINALISTS = 4
_AVERAGING = (0.0, 0.5, 0.8)
_FINE = 2.0
_LONGEST_WALK = 6


@dataclass(frozen=True)
class ClientSpread:
    """What it costs to buy from some clients only, beside what noise costs: H²/κ of the market's error, measured.

    A rule that is optimised for an accurate sum must weigh bias (clients left out) against noise (little ε bought).
    Their exchange rate depends on the data, on how it is split and on the training, so it is measured in trainings
    on public records. Some of these leave out a random part of the clients and add no noise, others keep all
    clients and add noise. If two of them end at the same accuracy, the missing clients and the noise do equal harm.

    Notation: N clients of which a share u takes part, s = deviation of the noise on the mean of all clients' sums
    over the clip norm C. The typical error is κ·s² for noise alone and H²·(1/u − 1) for a random part alone, so
    H²/κ = s²/(1/u − 1) at equal accuracy. Derivation: docs/theory/aggregate-trust.md.

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
        # Chance aside, accuracy falls as noise grows. Between the levels, log(noise) is interpolated.
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
    on_training: Callable[[], None] | None = None,
) -> ClientSpread:
    """Measures `ClientSpread` by trainings on public records that stand for the clients' own.

    Args:
        config: model, split into clients, rounds and server's steps; its rule and money do not matter.
        task: its private records are public ones that stand for the clients' own; accuracy is measured on its
            test records.
        shares: of clients that take part, above 0 and below 1.
        draws: random parts for each share.
        octaves: noise that is tried, as powers of 2 around noise as large as the first round's mean gradient.
        on_training: called after each training.
    """
    if not shares or not all(0 < share < 1 for share in shares):
        raise ConfigurationError(f"shares of clients {list(shares)}", "give shares above 0 and below 1")
    with one_thread(), Federation(config.replace(mode="no-noise"), task=task) as federation:
        everyone = np.flatnonzero(federation.sizes)
        rng = np.random.default_rng([config.seed, _SPREAD_PARTS])

        def accuracy(part: np.ndarray, noise: float) -> float:
            found = _accuracy(federation, part, noise)
            if on_training is not None:
                on_training()
            return found

        share_accuracy = []
        for share in shares:
            parts = [rng.permutation(everyone)[: max(1, round(share * everyone.size))] for _ in range(draws)]
            share_accuracy.append(float(np.mean([accuracy(part, 0.0) for part in parts])))
        equal = _equal_noise(federation, everyone)
        noise = [equal * 2.0**octave for octave in octaves]
        noise_accuracy = [accuracy(everyone, s) for s in noise]
    return ClientSpread(tuple(shares), tuple(share_accuracy), tuple(noise), tuple(noise_accuracy))


def _accuracy(federation: Federation, clients: np.ndarray, noise: float) -> float:
    """The accuracy after a training on these clients alone, with noise of deviation `noise`·C on their mean sum."""
    rng = np.random.default_rng([federation.config.seed, _SPREAD_NOISE])
    members = [int(i) for i in clients]
    state = federation.start()
    deviation = noise * _unit(federation)
    for number in range(federation.config.rounds):
        update = federation.run_clients(state, dict.fromkeys(federation.names[i] for i in members)).mean(axis=0)
        update = (update + deviation * rng.standard_normal(update.size)).astype(np.float32)
        progress = number / federation.config.rounds
        server = state.server.moved(update, federation.server_plan, progress)
        state = replace(state, server=server, next_round=number + 1)
    found = federation.score(state)
    assert found is not None
    return found


def _equal_noise(federation: Federation, clients: np.ndarray) -> float:
    """The s whose noise is as long as the mean update of the first round."""
    members = [int(i) for i in clients]
    update = federation.run_clients(federation.start(), dict.fromkeys(federation.names[i] for i in members)).mean(
        axis=0
    )
    return float(np.linalg.norm(update) / (_unit(federation) * update.size**0.5))


def _unit(federation: Federation) -> float:
    """How far a client's update moves where its clipped sum moves by one clip norm."""
    plan = federation.pool.plan
    return float(plan.clip_norm * plan.learning_rate / plan.expected_batch)


@dataclass(frozen=True)
class Rehearsal:
    """What was chosen on public records.

    Attributes:
        training: the settings.
        statistics: "none", or "free" where inputs whitened by the moments of the public records did better.
        aggregation: the weights of updates that did best; None where there was nothing to choose (`weightings`).
        loss_before: mean loss of the buyer's own model in the worlds.
        loss_after: mean loss of the model that the market ends with.
    """

    training: Training
    loss_before: float
    loss_after: float
    statistics: str = "none"
    aggregation: str | None = None

    @property
    def gain(self) -> float:
        """By how much the loss falls; negative where buying harms."""
        return self.loss_before - self.loss_after


@dataclass(frozen=True, eq=False)
class _World:
    """One made-up truth.

    Attributes:
        own_inputs: (public records, ...) the buyer's.
        inputs, labels: what stand-in sellers hold, group after group.
        sizes: rows of each group.
        start: (parameters,) the buyer's own model in this world.
        checked_inputs, checked_labels: on which the loss is measured.
    """

    own_inputs: Tensor
    inputs: Tensor
    labels: Tensor
    sizes: list[int]
    start: Tensor
    checked_inputs: Tensor
    checked_labels: Tensor

    def held_by_sellers(self, share: float) -> ClientRecords:
        """This share of the inputs of each group, at least one, with their labels."""
        if share >= 1.0:
            return ClientRecords(self.inputs, self.labels, self.sizes)
        counts = [min(size, max(1, round(share * size))) for size in self.sizes]
        starts = np.cumsum([0, *self.sizes[:-1]])
        rows = torch.cat([torch.arange(count) + int(start) for start, count in zip(starts, counts, strict=True)])
        return ClientRecords(self.inputs[rows], self.labels[rows], counts)


@dataclass(frozen=True, eq=False)
class _LinearRecords:
    """Stand-in records as the inputs of the one linear layer that a module trains.

    One round under many settings is then two products of matrices for all of them, in plain float32. That is for
    rehearsals only: what sellers really release is computed by `privmarket.training`.

    Attributes:
        model: whose layer it is.
        inputs: (rows, inputs) of the layer, finite.
        labels: (rows, ...).
        sizes: rows of each group, one after the other.
        shape: of the module's outputs for one record.
    """

    model: PrivateModel
    inputs: Tensor
    labels: Tensor
    sizes: list[int]
    shape: torch.Size

    @classmethod
    def of(cls, model: PrivateModel, records: ClientRecords) -> _LinearRecords | None:
        """None where a gradient is not just an outer product of the layer's inputs and a slope."""
        if not is_linear(model.module):
            return None
        layer = trained_linear(model.module)
        if len(model.slots) != len([*layer.parameters()]):  # a frozen bias
            return None
        met: list[tuple[Tensor, Tensor]] = []
        hook = layer.register_forward_hook(lambda _, given, outputs: met.append((given[0], outputs)))
        outputs = model.outputs(model.built_weights(), records.inputs, len(records.inputs))
        hook.remove()
        once = len(met) == 1 and met[0][0].ndim == 2
        if not once or not torch.equal(outputs.flatten(), met[0][1].flatten()):
            return None
        return cls(model, met[0][0], records.labels, records.sizes, outputs.shape[1:])

    def clipped_sums(self, weights: Tensor, clip_norms: Sequence[float], group_weights: Tensor) -> Tensor:
        """(settings, parameters): the sum of clipped gradients, those of each group counted with its weight.

        As in `privmarket.training.clipped_sums`, gradients that are not finite count for nothing.

        Args:
            weights: (settings, parameters).
            clip_norms: of each setting.
            group_weights: (groups,).
        """
        settings = len(weights)
        matrix = self.model.slots[0].of(weights)  # (settings, outputs, inputs)
        stacked = matrix.reshape(-1, matrix.shape[2]).t().contiguous()
        sums = torch.zeros_like(weights)
        into = self.model.slots[0].of(sums)
        has_bias = len(self.model.slots) > 1
        rows = torch.repeat_interleave(group_weights, torch.tensor(self.sizes))
        limits = torch.tensor(clip_norms, dtype=torch.float32)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            block = slice(first, first + _ROWS_AT_ONCE)
            inputs = self.inputs[block]
            outputs = (inputs @ stacked).view(len(inputs), settings, -1)
            if has_bias:
                outputs += self.model.slots[1].of(weights)
            outputs.requires_grad_()
            labels = self.labels[block].repeat_interleave(settings, dim=0)
            value = self.model.loss(outputs.reshape(-1, *self.shape), labels).sum()
            (slopes,) = torch.autograd.grad(value, outputs)
            energy = inputs.square().sum(1) + (1.0 if has_bias else 0.0)
            norms = (slopes.square().sum(2) * energy[:, None]).sqrt()
            factors = (limits / norms).clamp(max=1.0) * rows[block, None]
            slopes = torch.where(norms.isfinite()[..., None], slopes * factors[..., None], 0.0)
            into += (slopes.flatten(1).t() @ inputs).view_as(into)
            if has_bias:
                self.model.slots[1].of(sums).add_(slopes.sum(0))
        return sums


class StandIn:
    """Worlds that look like a task's public records.

    Args:
        task: its public records, model and loss are used, and the number of private records, which is public.
        clients: how many stand-in sellers there are.
        skew: concentration of their Dirichlet mixes of labels; small is skewed.
        worlds: how many.
        contrasts: (worlds,) by how much each truth's differences between records are stretched; 1 for all unless
            given. With 0 inputs say nothing about labels.
        own: the task's module trained on the public records, if it was trained before.
    """

    def __init__(
        self,
        task: Task,
        *,
        clients: int,
        skew: float = SKEW,
        worlds: int = WORLDS,
        seed: int = 0,
        contrasts: Sequence[float] | None = None,
        own: OwnModel | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self._training = OwnTraining(task, seed)
        self.own: OwnModel = self._training.own_model() if own is None else own
        self.model = PrivateModel(task.build_model(seed), task.loss)
        stretched = [1.0] * worlds if contrasts is None else contrasts
        self._worlds = [self._world(number, stretched[number]) for number in range(worlds)]
        self._mapped: list[tuple[_World, Whitening | None]] = []
        groups = len(self._worlds[0].sizes)
        shares = np.array(self._worlds[0].sizes, dtype=np.float64)
        shares = np.maximum(shares, 1e-9) / shares.sum()
        rng = np.random.default_rng([seed, _MIXES])
        # (clients, groups) each stand-in seller's share of each group, and (clients,) how many records it holds, as
        # the real ones declare. All together count as the whole.
        self._mixes = rng.dirichlet(np.maximum(skew * groups * shares, 1e-3), clients)
        declared = task.declared_sizes if len(task.clients) == clients else np.ones(clients)
        self._sizes: Array = declared.astype(np.float64) * len(task.private) / declared.sum()

    def group_weights(self, seller_weights: Array) -> Array:
        """(groups,) how much a group counts in the sum of these sellers, 1 where all sell equally.

        Weighted by the groups' sizes their mean is Σ w_i n_i over the mean n: the length of the signal, to which
        `FirstRound.noise` is compared.

        Args:
            seller_weights: (clients,) of sums, ≥ 0, 0 for clients that do not sell; 1/clients each counts as 1.
        """
        everybody = self._sizes @ self._mixes / len(self._sizes)
        chosen = (np.asarray(seller_weights) * self._sizes) @ self._mixes
        return np.where(everybody > 0, chosen / np.maximum(everybody, 1e-12), 0.0)

    def held_share(self, seller_weights: Array) -> float:
        """The share of a world's inputs that these sellers hold.

        Unequal weights count as fewer records: (Σ w_i n_i)²/Σ w_i² n_i of them.
        """
        weights = np.asarray(seller_weights)
        records = float((weights @ self._sizes) ** 2 / max(float(weights**2 @ self._sizes), 1e-300))
        return min(1.0, records / sum(self._worlds[0].sizes))

    def long_gradient(self, whitening: Whitening | None = None) -> float:
        """The length of a long gradient (the 99 % quantile) of stand-in sellers' records at the buyer's own model.

        Where labels are skewed, records of a rare class have the longest gradients.
        """
        world, _ = self._seen_through(whitening)[0]
        rows = torch.linspace(0, len(world.inputs) - 1, min(_NORMS_LOOKED_AT, len(world.inputs))).long()
        module = self.model.load(world.start)
        trained = [p for p in module.parameters() if p.requires_grad]
        norms = []
        for row in rows:
            one = slice(int(row), int(row) + 1)
            value = self.task.loss(module(world.inputs[one]), world.labels[one]).sum()
            slopes = torch.autograd.grad(value, trained, allow_unused=True)
            norms.append(sum(float(slope.square().sum()) for slope in slopes if slope is not None) ** 0.5)
        return max(float(np.quantile(norms, _LONG_GRADIENT)), 1e-6)

    def candidates(
        self,
        training: Training,
        rounds: int,
        *,
        fixed: Sequence[str] = (),
        whitening: Whitening | None = None,
    ) -> list[Training]:
        """Clip norms and server rates worth trying, as far as they are not fixed.

        With whitened inputs both are in the units that `Whitening.training` takes.
        """
        long = self.long_gradient(whitening)
        unit = 1.0 if whitening is None else whitening.usual_norm
        clips = [training.clip_norm]
        if "clip_norm" not in fixed:
            clips = [float(f"{share * long / unit:.3g}") for share in _CLIP_SHARES]
        found = []
        for clip in clips:
            one = replace(training, clip_norm=clip)
            if "server_rate" in fixed:
                found.append(one)
                continue
            # A round moves weights by the rate where all gradients are clipped and point the same way.
            step = replace(one, server_rate=1.0)
            if whitening is not None:
                step = whitening.training(step, self.task)
            usual = 1.0 / (step.server_rate * step.local_rate * long * rounds)
            found += [replace(one, server_rate=float(f"{usual * move:.3g}")) for move in _MOVES]
        return found

    def rehearse(
        self,
        training: Training,
        rounds: int,
        noise: float,
        seller_weights: Array,
        *,
        fixed: Sequence[str] = (),
        whitening: Whitening | None = None,
        on_tried: Callable[[int], None] | None = None,
    ) -> Rehearsal:
        """The best server rate, clip norm and averaging for a market of so many rounds.

        Args:
            training: where the search starts; everything else of it is kept.
            noise: deviation of the noise on the mean gradient, over the clip norm.
            seller_weights: (clients,) weights of the sellers' updates.
            fixed: settings of the training that are not to be changed.
            whitening: the public map that sellers apply to their inputs, if they do.
            on_tried: told how many settings have been tried so far.
        """
        groups = self.group_weights(seller_weights)
        held = self.held_share(seller_weights)
        tried: dict[tuple[Training, int], float] = {}

        def losses(settings: Sequence[Training], worlds: int = len(self._worlds)) -> list[float]:
            new = [one for one in dict.fromkeys(settings) if (one, worlds) not in tried]
            found = self.losses_after(new, rounds, noise, groups, whitening, held=held, worlds=worlds)
            for one, value in zip(new, found, strict=True):
                tried[one, worlds] = value if np.isfinite(value) else np.inf
                if on_tried is not None:
                    on_tried(len(tried))
            return [tried[one, worlds] for one in settings]

        def best_of(settings: Sequence[Training]) -> Training:
            return settings[int(np.argmin(losses(settings)))]

        candidates = self.candidates(training, rounds, fixed=fixed, whitening=whitening)
        screened = losses(candidates, min(_SCREENING_WORLDS, len(self._worlds)))
        best = best_of([candidates[place] for place in np.argsort(screened, kind="stable")[:_FINALISTS]])
        if "averaging" not in fixed:
            best = best_of([replace(best, averaging=share) for share in _AVERAGING])
        if "server_rate" not in fixed:
            best = self._best_rate(best, losses, _FINE)
        statistics = "none" if whitening is None else "free"
        return Rehearsal(best, self.loss_before(), losses([best])[0], statistics)

    @staticmethod
    def _best_rate(
        training: Training, losses: Callable[[Sequence[Training]], list[float]], factor: float
    ) -> Training:
        """Moves the server's rate by a factor, up or down, while the loss falls."""
        rates = [training.server_rate * step for step in (1.0, factor, 1.0 / factor)]
        here, up, down = losses([replace(training, server_rate=rate) for rate in rates])
        if min(up, down) >= here:
            return training
        step = factor if up < here else 1.0 / factor
        best = training
        for _ in range(_LONGEST_WALK):
            tried = replace(best, server_rate=best.server_rate * step)
            before, after = losses([best, tried])
            if not after < before:
                break
            best = tried
        return best

    def spread(self, training: Training, rounds: int, whitening: Whitening | None = None) -> ClientSpread:
        """The harm of buying from some stand-in sellers only, compared with that of noise; see `ClientSpread`.

        Noise is given as its deviation on the mean gradient, over the clip norm.
        """
        rng = np.random.default_rng([self.seed, _PARTS])
        clients = len(self._mixes)
        share_score = []
        for share in SPREAD_SHARES:
            found = []
            for _ in range(SPREAD_DRAWS):
                weights = np.zeros(clients)
                part = rng.permutation(clients)[: max(1, round(share * clients))]
                weights[part] = 1.0 / part.size
                groups, held = self.group_weights(weights), self.held_share(weights)
                found.append(-self.loss_after(training, rounds, 0.0, groups, whitening, held=held))
            share_score.append(float(np.mean(found)))
        everybody = np.ones(len(self._worlds[0].sizes))
        world, one = self._seen_through(whitening)[0]
        plan = training if one is None else one.training(training, self.task)
        records = ClientRecords(world.inputs, world.labels, world.sizes)
        sums = clipped_sums(self.model, world.start[None], records, plan.clip_norm).values
        length = float(sums.sum(0).norm()) / (plan.clip_norm * sum(world.sizes))
        equal = max(length / sums.shape[1] ** 0.5, 1e-9)
        noise = [equal * 2.0**octave for octave in SPREAD_OCTAVES]
        noise_score = [-self.loss_after(training, rounds, one, everybody, whitening) for one in noise]
        return ClientSpread(SPREAD_SHARES, tuple(share_score), tuple(noise), tuple(noise_score))

    def loss_before(self) -> float:
        """Mean loss of the buyer's own models, over worlds."""
        return float(np.mean([self._loss(world, world.start) for world in self._worlds]))

    def loss_after(
        self,
        training: Training,
        rounds: int,
        noise: float,
        group_weights: Array,
        whitening: Whitening | None = None,
        *,
        held: float = 1.0,
        worlds: int | None = None,
    ) -> float:
        """Mean loss after a market with these settings; the same noise for all settings.

        Args:
            held: the share of a world's inputs that the sellers hold.
            worlds: the loss is the mean over so many of them, over all if left out.
        """
        (found,) = self.losses_after([training], rounds, noise, group_weights, whitening, held=held, worlds=worlds)
        return found

    def losses_after(
        self,
        settings: Sequence[Training],
        rounds: int,
        noise: float,
        group_weights: Array,
        whitening: Whitening | None = None,
        *,
        held: float = 1.0,
        worlds: int | None = None,
    ) -> list[float]:
        """`loss_after` for several settings, which takes less time than one after the other."""
        if not settings:
            return []
        found = []
        for number, (world, one) in enumerate(self._seen_through(whitening)[:worlds]):
            plans = [each if one is None else one.training(each, self.task) for each in settings]
            found.append(self._played(number, world, plans, rounds, noise, group_weights, held))
        return [float(mean) for mean in np.mean(found, axis=0)]

    def scores(
        self,
        training: Training,
        rounds: int,
        noise: float,
        seller_weights: Array,
        whitening: Whitening | None = None,
    ) -> Array:
        """(worlds, 2): the headline score before and after a market with these settings.

        It is measured on inputs that nobody holds.

        NaN in a world where the score cannot be computed (AUC if a class is missing there).

        Args:
            noise, seller_weights: as for `rehearse`.
        """
        groups = self.group_weights(seller_weights)
        held = self.held_share(seller_weights)
        found = []
        for number, (world, one) in enumerate(self._seen_through(whitening)):
            plan = training if one is None else one.training(training, self.task)
            (after,) = self._trained(number, world, [plan], rounds, noise, groups, held)
            found.append([self._score(world, world.start), self._score(world, after)])
        return np.array(found, dtype=np.float64)

    def explained_before(self) -> float:
        """What the buyer's own models explain, as a share of the loss of a constant; the mean over worlds."""
        found = []
        for world in self._worlds:
            outputs = self.task.outputs(self.model.load(world.start), world.checked_inputs.numpy())
            found.append(explained(self.task, outputs, world.checked_labels.numpy()).mean())
        return float(np.mean(found))

    def _seen_through(self, whitening: Whitening | None) -> list[tuple[_World, Whitening | None]]:
        """The worlds with their inputs mapped, and with starting weights that give the same outputs for them.

        The map is made of what the buyer has in a world, as the real one is made of what it has: a map of the
        moments that sellers' inputs really have would flatter whitening.
        """
        if whitening is None:
            return [(world, None) for world in self._worlds]
        if not self._mapped:
            for world in self._worlds:
                own = world.own_inputs.flatten(1).double().numpy()
                one = Whitening(free_moments(self.task, own)) if self.draws_inputs else whitening
                mapped = replace(
                    world,
                    inputs=one.of(world.inputs),
                    start=one.unfolded(self.model, world.start),
                    checked_inputs=one.of(world.checked_inputs),
                )
                self._mapped.append((mapped, one))
        return self._mapped

    def _played(
        self,
        number: int,
        world: _World,
        plans: Sequence[Training],
        rounds: int,
        noise: float,
        group_weights: Array,
        held: float,
    ) -> list[float]:
        """The loss of each plan in one world; all plans meet the same noise."""
        ends = self._trained(number, world, plans, rounds, noise, group_weights, held)
        return [self._loss(world, weights) for weights in ends]

    def _trained(
        self,
        number: int,
        world: _World,
        plans: Sequence[Training],
        rounds: int,
        noise: float,
        group_weights: Array,
        held: float,
    ) -> list[Tensor]:
        """(parameters,) that each plan ends with in one world."""
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + 1_009 * number + _NOISE)
        records = world.held_by_sellers(held)
        layer = _LinearRecords.of(self.model, records)
        groups = torch.from_numpy(group_weights).float()
        states = [ServerState.start(world.start) for _ in plans]
        for done in range(rounds):
            weights = torch.stack([state.weights for state in states])
            norms = [plan.clip_norm for plan in plans]
            if layer is None:
                sums = [
                    groups @ clipped_sums(self.model, one[None], records, norm).values.float()
                    for one, norm in zip(weights, norms, strict=True)
                ]
            else:
                sums = [*layer.clipped_sums(weights, norms, groups)]
            drawn = noise * torch.randn(weights.shape[1], generator=generator)
            for place, (plan, total) in enumerate(zip(plans, sums, strict=True)):
                update = plan.local_rate * (total / (plan.clip_norm * sum(records.sizes)) + drawn)
                states[place] = states[place].moved(update.numpy(), plan, done / rounds)
        return [state.tested(plan) for state, plan in zip(states, plans, strict=True)]

    def _score(self, world: _World, weights: Tensor) -> float:
        """The headline score on the inputs that nobody holds; NaN where it cannot be computed."""
        records = Records(world.checked_inputs.numpy(), world.checked_labels.numpy())
        try:
            return self.task.evaluate(self.task.outputs(self.model.load(weights), records.inputs), records)[
                self.task.score.name
            ]
        except DataError:
            return np.nan

    def _loss(self, world: _World, weights: Tensor) -> float:
        """Mean loss on the inputs that nobody holds.

        Of a classifier it is the loss at the best scale of its outputs. A scale changes no decision; clipping and
        noise make outputs too large or too small, and the loss would count that more than what has been learned.
        """
        if self.task.goal != "classification":
            return float(self.model.losses(weights, world.checked_inputs, world.checked_labels).double().mean())
        module = self.model.load(weights)
        module.eval()
        with torch.no_grad():
            outputs = module(world.checked_inputs)

        @cache
        def loss(place: int) -> float:
            with torch.no_grad():
                found = float(self.task.loss(_SCALES[place] * outputs, world.checked_labels).double().mean())
            return found if math.isfinite(found) else math.inf

        # A log-likelihood is convex in the scale: it falls up to the best one and rises from there.
        first, last = 0, len(_SCALES) - 1
        while first < last:
            middle = (first + last) // 2
            if loss(middle) <= loss(middle + 1):
                last = middle
            else:
                first = middle + 1
        return loss(first)

    def _world(self, number: int, contrast: float) -> _World:
        assert self.task.public is not None
        inputs, labels = self.task.public.tensors()
        rows = labels.shape[0]
        rng = np.random.default_rng([self.seed, _RESAMPLE, number])
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + 1_009 * number + _LABELS)
        again = torch.from_numpy(rng.integers(0, rows, rows))
        around = self._prior_draw(generator)
        truth = self._training.fit(inputs[again], labels[again], self.own.strength, around=around)
        own_inputs = self._further_inputs(rows, rng) if self.draws_inputs else inputs
        own_labels = self._drawn_labels(truth, contrast, own_inputs, labels, generator)
        start = self._training.fit(own_inputs, own_labels, self.own.strength)
        if self.draws_inputs:
            held = self._further_inputs(min(len(self.task.private), _MOST_ROWS), rng)
            checked = self._further_inputs(_CHECKED_ROWS, rng)
            held_labels = self._drawn_labels(truth, contrast, held, labels, generator)
            checked_labels = self._drawn_labels(truth, contrast, checked, labels, generator)
        else:
            order = torch.from_numpy(rng.permutation(rows))
            most = _ROWS // 2 if self._training.is_linear else _ROWS_OF_NETWORKS
            count = min(round(_HELD_SHARE * rows), most)
            draws = max(1, min(_MOST_DRAWS, most // count))
            held_rows = order[:count].repeat(draws)
            checked_rows = order[count : count + most].repeat(draws)
            held = inputs[held_rows]
            checked = inputs[checked_rows]
            held_labels = self._drawn_labels(truth, contrast, held, labels[held_rows], generator)
            checked_labels = self._drawn_labels(truth, contrast, checked, labels[checked_rows], generator)
        group = self._groups(held_labels)
        by_group = torch.argsort(group, stable=True)
        sizes = torch.bincount(group, minlength=self._group_count()).tolist()
        return _World(
            own_inputs,
            held[by_group],
            held_labels[by_group],
            sizes,
            flat_weights(self.model, start),
            checked,
            checked_labels,
        )

    @property
    def draws_inputs(self) -> bool:
        """Whether worlds have inputs beyond the public ones."""
        public = self.task.public
        assert public is not None
        if self.task.goal == "own" or public.inputs.dtype.kind != "f":
            return False
        few = public.inputs[0].size <= MOST_FREE_INPUTS
        return few and is_linear_in_inputs(self.task.build_model(self.seed))

    def _further_inputs(self, count: int, rng: np.random.Generator) -> Tensor:
        assert self.task.public is not None
        rows = further_rows(self.task, count, _SMOOTHING, rng).astype(np.float32)
        return torch.from_numpy(rows).reshape(count, *self.task.public.inputs.shape[1:])

    def _prior_draw(self, generator: torch.Generator) -> Tensor | None:
        """(outputs, inputs) weights of a linear module, drawn as if no record had been seen; None for others.

        A penalty λ on weights fitted to n records corresponds to a normal prior of variance s²/(λ·n), where s² is
        the variance of a target around its prediction, or 1 if the loss is a log-likelihood. With a weak penalty
        such a draw would outweigh what the records say. It is therefore scaled down until its outputs vary at most
        twice as much as those of the buyer's own model.
        """
        if not self._training.is_linear or self.task.goal == "own":
            return None
        assert self.task.public is not None
        inputs, labels = self.task.public.tensors()
        deviation = (labels.shape[0] * self.own.strength) ** -0.5
        if self.task.goal == "regression":
            deviation *= self.own.held_out_spread
        module = self.task.build_model(self.seed)
        linear = trained_linear(module)
        drawn = deviation * torch.randn(linear.weight.shape, generator=generator)
        with torch.no_grad():
            linear.weight.copy_(drawn)
            if linear.bias is not None:
                linear.bias.zero_()
            usual = _spread_of(self.own.module(inputs))
            largest = max(_spread_of(module(inputs)), 1e-9)
        found: Tensor = drawn * min(1.0, _LARGEST_PRIOR * usual / largest)
        return found

    def _drawn_labels(
        self, truth: nn.Module, contrast: float, inputs: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Labels for these inputs as this world has them; a task with a loss of its own keeps `labels`.

        Args:
            contrast: by how much the truth's differences between records are stretched.
            labels: drawn labels get their type; with a loss of its own they are returned unchanged.
        """
        if self.task.goal == "own":
            return labels
        assert self.task.public is not None
        truth.eval()
        with torch.no_grad():
            outputs = truth(inputs)
            if contrast != 1.0:
                usual = truth(self.task.public.tensors()[0]).mean(dim=0)
                outputs = usual + contrast * (outputs - usual)
        if self.task.goal == "classification":
            if outputs.numel() == outputs.shape[0]:  # one output of a binary task is the logit of its second class
                outputs = torch.stack([torch.zeros_like(outputs.flatten()), outputs.flatten()], dim=1)
            drawn = torch.multinomial(torch.softmax(outputs.double(), 1), 1, generator=generator)[:, 0]
            return drawn.to(labels.dtype)
        shape = (outputs.shape[0], *labels.shape[1:])
        noise = torch.randn(shape, generator=generator)
        scattered: Tensor = outputs.reshape(shape) + self.own.held_out_spread * noise
        return scattered.to(labels.dtype)

    def _group_count(self) -> int:
        return max(1, len(self.task.classes)) if self.task.goal == "classification" else _TARGET_GROUPS

    def _groups(self, labels: Tensor) -> Tensor:
        """(rows,) which group a label belongs to: its class, or its fifth of the targets in rising order."""
        if self.task.goal == "classification":
            return labels.long()
        values = labels.double().reshape(labels.shape[0], -1).mean(dim=1)
        edges = torch.quantile(values, torch.arange(1, _TARGET_GROUPS, dtype=torch.float64) / _TARGET_GROUPS)
        return torch.bucketize(values, edges)


def explained(task: Task, outputs: NDArray[np.generic], labels: NDArray[np.generic]) -> Array:
    """(rows,) 1 − loss / mean loss of the best constant: what a model's outputs explain of each record.

    The mean is 0 for a model that knows the mix of labels only, and 1 for one without any loss.
    """
    if task.goal == "classification":
        seen = np.bincount(labels.astype(np.int64), minlength=len(task.classes)) / len(labels)
        constant = -float(seen[seen > 0] @ np.log(seen[seen > 0]))
        losses = task.loss(torch.from_numpy(outputs), torch.from_numpy(labels)).double().numpy()
    else:
        constant = float(labels.var())
        losses = (np.asarray(outputs, np.float64).reshape(len(labels)) - np.asarray(labels, np.float64)) ** 2
    return np.asarray(1.0 - losses / max(constant, 1e-12), dtype=np.float64)


def _spread_of(outputs: Tensor) -> float:
    """How much outputs differ between classes, or between records where there is one output."""
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return float((outputs - outputs.mean(dim=1, keepdim=True)).square().mean().sqrt())
    return float(outputs.std())


@dataclass(frozen=True, eq=False)
class FirstRound:
    """What the first auction of a run means for its training.

    Attributes:
        noise: deviation of the noise on Σ w_i·update_i of a round, in mean gradients of the length of a clip norm.
        weights: (clients,) the w_i; how long the sum itself is depends on sizes, see `StandIn.group_weights`.
        spent: money paid if everybody delivers.
    """

    noise: float
    weights: Array
    spent: float

    @property
    def sellers(self) -> int:
        """How many clients sell."""
        return int((self.weights > 0).sum())


@dataclass(frozen=True, eq=False)
class Tuned:
    """What public records chose, and the buyer's own model, which the choice needed."""

    rehearsal: Rehearsal
    own_model: OwnModel

    def applied(self, config: FederationConfig) -> FederationConfig:
        """The run with these settings."""
        found = self.rehearsal
        return config.replace(
            training=found.training,
            statistics=found.statistics,
            aggregation=found.aggregation or config.aggregation,
        )


def weightings(federation: Federation, fixed: Sequence[str] = ()) -> tuple[str, ...]:
    """The weights of updates worth trying in a run; the configured ones alone where there is nothing to choose.

    Under local trust the noise of an update does not depend on its seller's size. Weights that count large sellers
    for more have less noise, and neglect what small ones know. Under aggregate trust the sensitivity of the sum
    leaves no choice (w_i ∝ 1/σ_i), and for equal sizes both are the same.

    Args:
        fixed: settings that the caller chose; with "aggregation" among them, or with weights other than the usual
            ones, they stay.
    """
    config = federation.config
    kept = "aggregation" in fixed or config.aggregation != FederationConfig.aggregation
    if kept or config.trust == "aggregate" or np.ptp(federation.declared) == 0:
        return (config.aggregation,)
    return (config.aggregation, "precision")


def first_round(federation: Federation, aggregation: str | None = None) -> FirstRound | None:
    """The noise and the sellers of a run's first round, without training anybody; None if nobody sells.

    With persistent types and even spending, later rounds are like it.

    Args:
        aggregation: the weights of updates under local trust, instead of the configured ones.
    """
    config = federation.config
    state = RunState(0, ServerState.start(torch.zeros(0)), federation.wallets(), federation.pacing.total_micro, ())
    auction = federation.auctioneer.clear(federation.pacing.terms(()), SimulatedClients(federation, state))
    if not auction.awards:
        return None
    places = [federation.place[client] for client in auction.awards]
    batch = federation.pool.plan.expected_batch
    weights = np.zeros(config.clients)
    if config.trust == "aggregate":
        shared = federation.shared_sum(auction)
        weights[places] = shared.weights / shared.weights.sum()
        noise = shared.deviation(range(len(places))) / (config.training.clip_norm * batch)
    else:
        scheme = aggregation or config.aggregation
        found = seller_weights(auction, set(auction.awards), scheme, federation.objective)
        sigma = np.array([award.event.noise_multiplier for award in auction.awards.values()])
        weights[places] = found
        noise = float(np.sqrt(((found * sigma) ** 2).sum())) / batch
    spent = sum(award.payment_micro for award in auction.awards.values()) / 1e6
    return FirstRound(float(noise), weights, spent)


def free_whitening(config: FederationConfig, task: Task) -> Whitening | None:
    """The map by the moments of the public records; None where the run cannot use one."""
    if not config.task or task.public is None or len(task.public) < FEWEST_RECORDS:
        return None
    try:
        return Whitening(MomentsSale.of(config.replace(statistics="free"), task).free)
    except ConfigurationError:
        return None


def tuned_settings(
    config: FederationConfig,
    task: Task,
    asked: AskedPrices | None = None,
    *,
    fixed: Sequence[str] = (),
    mechanism: Mechanism | None = None,
    worlds: int = WORLDS,
    stand_in: StandIn | None = None,
    on_tried: Callable[[int], None] | None = None,
) -> Tuned | None:
    """Server rate, clip norm, averaging and weights of updates for this run, chosen on the task's public records.

    A linear model is rehearsed twice, on inputs as they are and on inputs that the moments of the public records
    whiten, and the better of the two is chosen; `Rehearsal.statistics` says which. If the caller fixes the rate or
    the clip norm, inputs stay as they are. `Rehearsal.aggregation` says which of the `weightings` did best.

    None where there are no public records to choose on, where nothing is sold, or where the run trains otherwise
    (several local steps, references without privacy, whitening that the caller asked for): then documented defaults
    stand.

    Args:
        fixed: settings that the caller chose; with "statistics" among them inputs stay as they are, with
            "aggregation" the weights of updates.
        worlds: how many made-up worlds the rehearsals take place in.
        stand_in: these worlds of this task, if they were made before; they do not depend on trust or money.
        on_tried: told how many settings have been tried so far.
    """
    public = task.public
    if public is None or len(public) < FEWEST_RECORDS or not config.privacy.uses_server_plan:
        return None
    if config.training.steps != 1 or config.statistics != "none":
        return None
    with one_thread(), Federation(config, task=task, asked=asked, mechanism=mechanism) as federation:
        if first_round(federation) is None:
            return None
        if stand_in is None:
            stand_in = StandIn(task, clients=config.clients, worlds=worlds, seed=config.seed)
        found = rehearsed(federation, stand_in, fixed=fixed, on_tried=on_tried)
        assert found is not None
    return Tuned(found, stand_in.own)


def rehearsed(
    federation: Federation,
    stand_in: StandIn,
    *,
    fixed: Sequence[str] = (),
    on_tried: Callable[[int], None] | None = None,
) -> Rehearsal | None:
    """The best rehearsal of a run: over weights of updates, and over inputs as they are and whitened.

    None if nobody sells.

    Args:
        fixed: as for `tuned_settings`.
    """
    config = federation.config
    schemes = weightings(federation, fixed)
    found = []
    for scheme in schemes:
        first = first_round(federation, scheme)
        if first is None:
            return None
        noise = first.noise if config.privacy.is_private else 0.0
        one = _better_inputs(config, stand_in, first.weights, noise, fixed, on_tried)
        found.append(replace(one, aggregation=scheme) if len(schemes) > 1 else one)
    return min(found, key=lambda one: one.loss_after)


def _better_inputs(
    config: FederationConfig,
    stand_in: StandIn,
    weights: Array,
    noise: float,
    fixed: Sequence[str],
    on_tried: Callable[[int], None] | None,
) -> Rehearsal:
    """The better of two rehearsals: with inputs as they are, and with inputs whitened by the public records.

    Args:
        weights, noise: of a `FirstRound`.
    """
    found = stand_in.rehearse(config.training, config.rounds, noise, weights, fixed=fixed, on_tried=on_tried)
    whitening = free_whitening(config, stand_in.task)
    if whitening is None or {"statistics", "server_rate", "clip_norm"} & {*fixed}:
        return found
    usual = whitened_training(config.training, fixed)
    other = stand_in.rehearse(
        usual, config.rounds, noise, weights, fixed=fixed, whitening=whitening, on_tried=on_tried
    )
    return min(found, other, key=lambda one: one.loss_after)
