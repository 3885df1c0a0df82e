"""One reply of a guarded site: what the app passes in, what it costs, and the numbers that leave.

A `GuardedReply` exists from the message to the reply. While the app's handler runs, `open_reply` returns it, so
that `train_privately` and `average_privately` pass the records' contributions to it instead of to the app's own
reply. What leaves is computed here, from the arrays that the server sent, the policy, and clipped numbers with
noise; the app's reply is only read.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict

from privmarket._lazy import late
from privmarket.errors import PrivacyError, WalletError
from privmarket.flower import _guard_misfit as misfits, _wire as wire
from privmarket.flower._guard_misfit import Misfit, array_forms
from privmarket.flower._guard_open import open_reply
from privmarket.flower._seller import Job, event_of
from privmarket.flower._wire import Arrays, Sale
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._policy import GUARDED, GuardedMetric, GuardPolicy, SellerPolicy
from privmarket.privacy._release import ReleaseGrid, covered_records, double_sum_inflation, sum_inflation
from privmarket.privacy._wallet_store import OpenWallet, WalletFile

if TYPE_CHECKING:
    from torch import nn

    from privmarket.flower import _training as training
    from privmarket.training import Column, Loss
else:
    training = late("privmarket.flower._training")


_log = logging.getLogger("privmarket.guard")
# Covers float64 rounding of a norm, a difference and a quotient, as a share of the sensitivity, with a wide margin.
_INFLATION = 2.0**-20
# Without noise a metric is rounded to steps of this share of its range, so that its last digits reveal nothing.
_STEPS_OF_A_METRIC = 1000


@dataclass(frozen=True)
class Charge:
    """A release that is charged to a wallet: its name there, its ε and its event."""

    name: str
    epsilon: float
    event: PrivacyEvent


@dataclass(eq=False)
class GuardedReply:
    """The content of one reply.

    Attributes:
        policy, wallet: of the site.
        client: its name.
        context: of the node, as the app sees it.
        kind: `train` or `evaluate`.
        sent: the arrays that the server sent, by name.
        metrics: the metrics that the policy allows with this kind of message.
        trainable: names of the arrays that training by records changes, as far as known from an earlier message.
        released: the arrays that leave, once they are made.
        charged: what was charged to the wallet so far.
        measured: metric → the values of single records that the app passed in.
        is_short: whether the wallet refused a charge although there was room before the app ran.
        misfit: why the app and the message cannot fit, whatever the records are.
    """

    policy: SellerPolicy
    wallet: WalletFile
    client: str
    context: Context
    kind: str
    sent: Arrays
    metrics: Mapping[str, GuardedMetric]
    trainable: Sequence[str] | None = None
    released: Arrays | None = None
    charged: list[Charge] = field(default_factory=list)
    measured: dict[str, np.ndarray] = field(default_factory=dict)
    is_short: bool = False
    misfit: Misfit | None = None

    @property
    def rules(self) -> GuardPolicy:
        """The policy's table for guarded sites."""
        return self.policy.guard

    def update_charge(self) -> Charge:
        """The charge for an update that is clipped as a whole."""
        return self._charge("", 1.0, 1, self.rules.epsilon)

    def records_charge(self) -> Charge:
        """The charge for an update that was trained record by record."""
        return self._charge("", self.rules.sampling_rate, self.rules.steps, self.rules.epsilon)

    def metric_charges(self) -> list[Charge]:
        """The charges for the metrics."""
        return [
            self._charge(f" {name}", 1.0, 1, metric.epsilon)
            for name, metric in self.metrics.items()
            if metric.is_priced
        ]

    def check_wallet(self) -> None:
        """Refuses, before the app is called, if the wallet does not hold everything that may leave.

        A refusal must not reveal which way of training the app uses, so each of them has to fit.

        Raises:
            WalletError: one does not fit.
        """
        metrics = self.metric_charges()
        ways = [metrics]
        if self.kind == "train":
            ways = []
            if self.rules.training != "records":
                ways.append([self.update_charge(), *metrics])
            if self.rules.training != "update":
                ways.append([self.records_charge(), *metrics])
        with self.wallet.open() as wallet:
            for charges in ways:
                _require_room(wallet, charges)

    def charge(self, charges: Sequence[Charge]) -> None:
        """Charges all of these to the wallet or, if they do not fit, none; on disk when this returns.

        Raises:
            WalletError: they do not fit.
        """
        if not charges:
            return
        with self.wallet.open() as wallet:
            try:
                _require_room(wallet, charges)
            except WalletError:
                self.is_short = True
                raise
            for one in charges:
                wallet.reserve(one.name, one.epsilon, one.event, unit=self.policy.unit)
        self.charged.extend(charges)

    def close(self, arrays: Arrays) -> None:
        """Records in the wallet that what was charged leaves now."""
        if not self.charged:
            return
        sha256 = wire.digest(arrays)
        with self.wallet.open() as wallet:
            for one in self.charged:
                wallet.released(one.name, sha256)

    def train(
        self, module: nn.Module, inputs: Column, labels: Column, loss: Loss | None, persons: Column | None
    ) -> None:
        """Trains a module record by record with the policy's noise; it starts at the weights that were sent.

        The module's own weights are overwritten: they may hold anything that an earlier training left there.

        Raises:
            Misfit: arrays, model or a missing `persons` do not fit, whatever the records are.
            PrivacyError: the policy does not allow it, or it was done before in this reply.
            ModelError, ConfigurationError: the model or the records cannot be used.
            WalletError: the wallet does not hold it any more.
        """
        if self.rules.training == "update":
            raise PrivacyError(
                'train_privately, and the site\'s policy says training = "update"',
                'leave out the call, or write training = "auto" into [guard]',
            )
        if self.kind != "train":
            raise PrivacyError("train_privately in answer to an evaluation", "train in the app's train function")
        if self.released is not None or self.charged:
            raise PrivacyError("train_privately twice in one message", "train once; steps are set in [guard]")
        try:
            names = misfits.fitted(module, self.sent)
            if self.policy.unit == "person" and persons is None:
                raise Misfit(
                    misfits.SETUP,
                    'unit = "person", and no persons',
                    "give train_privately(…, persons=…), whose record each is; beside GuardMod(model=…) let data "
                    "return (inputs, labels, persons)",
                )
        except Misfit as misfit:
            self.misfit = misfit
            raise
        self.misfit = None
        weights = training.trainable_arrays(module)
        charge = self.records_charge()
        job = self._job(charge.event.noise_multiplier)
        self._compare_count(int(np.shape(labels)[0]))
        training.require_trainable(module, inputs, labels, loss, weights)
        training.require_records(inputs, labels, persons, job, loss)
        self.charge([charge])
        update = training.private_module_update(module, weights, inputs, labels, job, loss, persons)
        released = {name: array.copy() for name, array in self.sent.items()}
        for name, step in update.items():
            array = self.sent[names[name]]
            released[names[name]] = (array - step.reshape(array.shape)).astype(array.dtype)
        self.trainable = [names[name] for name in update]
        self.released = released
        training.load_arrays(module, {name: weights[name] - update[name] for name in weights})

    def noise_of_records(self) -> Arrays:
        """The release of training by records if no record can be used: its noise alone, step by step."""
        rules = self.rules
        charge = self.records_charge()
        moving = [name for name in self.trainable or self.sent if self.sent[name].dtype.kind == "f"]
        size = sum(self.sent[name].size for name in moving)
        counted = covered_records(rules.examples)
        inflation = sum_inflation(counted) if self.policy.unit == "record" else double_sum_inflation(counted)
        grid = ReleaseGrid.for_release(charge.event.noise_multiplier, rules.clip_norm, size, inflation)
        source = NoiseSource.from_system()
        step = np.zeros(size, dtype=np.float32)
        nothing = np.zeros(size, dtype=np.float32)
        for _ in range(rules.steps):
            grid.noisy(nothing, source, step, rules.learning_rate / rules.expected_batch, add=True)
        return moved_by(self.sent, moving, -step)

    def noisy_update(self, trained: Arrays | None) -> Arrays:
        """The weights that were sent, plus the clipped change that the app made to them, plus noise.

        Args:
            trained: as the app returned them; None, or arrays of other names or shapes, count as no change.
        """
        return noisy_weights(
            self.sent,
            trained,
            self.rules.clip_norm,
            self.update_charge().event.noise_multiplier,
            NoiseSource.from_system(),
        )

    def metric_values(self, reply: RecordDict | None) -> dict[str, float]:
        """Metric → the number that leaves: a constant, or the app's own, clipped and with noise."""
        return {name: self._metric_value(name, metric, reply) for name, metric in self.metrics.items()}

    def _metric_value(self, name: str, metric: GuardedMetric, reply: RecordDict | None) -> float:
        """One metric.

        The mean of values that the app handed over record by record moves by half the range over the declared
        number of records when a record is blanked. A number that the app computed may move by the whole range.
        """
        if metric.value is not None:
            return metric.value
        middle = 0.5 * (metric.low + metric.high)
        half = 0.5 * (metric.high - metric.low)
        by_record = name in self.measured and self.policy.unit == "record" and self.rules.training != "update"
        if by_record:
            self._compare_count(self.measured[name].size)
            # If there are more records than declared, the first ones count, so that this is still a mean.
            values = self.measured[name][: self.rules.examples] - middle
            values = np.nan_to_num(values, nan=0.0, posinf=half, neginf=-half)
            total = math.fsum(np.clip(values, -half, half)) / self.rules.examples
            sensitivity = half / self.rules.examples
        else:
            found = _mean(self.measured[name]) if name in self.measured else reported(reply, name)
            if found is None and reply is not None:
                _log.warning(
                    "the policy declares %s, and the app's reply has no finite number of this name: noise around "
                    "the middle of its range leaves",
                    name,
                )
            total = 0.0 if found is None else min(max(found - middle, -half), half)
            sensitivity = 2.0 * half
        if not metric.is_priced:
            step = 2.0 * half / _STEPS_OF_A_METRIC
            return middle + step * round(min(max(total, -half), half) / step)
        event = event_of(ReleaseFamily(1.0, 1, self.policy.delta), metric.epsilon)
        grid = ReleaseGrid.for_release(event.noise_multiplier, sensitivity, 1, _INFLATION)
        out = np.zeros(1, dtype=np.float32)
        grid.noisy(np.array([total]), NoiseSource.from_system(), out)
        return middle + float(out[0])

    def _compare_count(self, records: int) -> None:
        """Logs for the site if the declared number of records is far from the true one."""
        declared = self.rules.examples
        if not 0.8 * records <= declared <= 1.25 * records:
            _log.warning(
                "[guard] examples = %d, and the app has %d records: sums are divided by the declared number",
                declared,
                records,
            )

    def _charge(self, what: str, sampling_rate: float, steps: int, epsilon: float) -> Charge:
        """A charge with a unique name: a second answer to the same message is another release."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        name = f"{GUARDED}{now} {self.kind}{what}, run {self.context.run_id}, {secrets.token_hex(4)}"
        return Charge(name, epsilon, event_of(ReleaseFamily(sampling_rate, steps, self.policy.delta), epsilon))

    def _job(self, noise_multiplier: float) -> Job:
        """The job for the training engine; nothing in it comes from the server."""
        rules = self.rules
        family = ReleaseFamily(rules.sampling_rate, rules.steps, self.policy.delta)
        sale = Sale(
            run="",
            number=0,
            epsilon=rules.epsilon,
            payment_micro=0,
            family=family,
            clip_norm=rules.clip_norm,
            learning_rate=rules.learning_rate,
            expected_batch=rules.expected_batch,
        )
        return Job(sale, noise_multiplier, NoiseSource.from_system(), self.client, self.context, self.policy.unit)


def average_privately(name: str, values: Column) -> None:
    """Passes in a metric record by record, so that its mean leaves with little noise.

    Behind a `GuardMod` whose policy prices the metric, the mean of the clipped values leaves with noise for one
    record, instead of the number that the app's reply has under this name. Without a guard nothing happens.

    Args:
        name: the metric's, as the policy's [guard.train] or [guard.evaluate] declares it.
        values: (records,) one number per record, e.g. whether the model was right.
    """
    reply = open_reply()
    if not isinstance(reply, GuardedReply):
        return
    detach = getattr(values, "detach", None)
    array = np.asarray(values if detach is None else detach().cpu().numpy(), dtype=np.float64)
    reply.measured[name] = array.reshape(-1)


def noisy_weights(
    sent: Arrays, trained: Arrays | None, clip_norm: float, noise_multiplier: float, source: NoiseSource
) -> Arrays:
    """The weights that a client may release: what it was sent, plus its clipped change, plus noise.

    One record may change everything that an app computes, so the clipped change moves by up to 2·clip_norm: that is
    the sensitivity to which the noise multiplier refers. The change is released by `privacy._release`. Arrays that
    do not hold floating-point numbers go back as they came.

    Args:
        trained: None, arrays of other names or shapes, or a change that is not finite count as no change, since
            that may depend on a single record.
    """
    moving = [name for name, array in sent.items() if array.dtype.kind == "f"]
    if not moving:
        return {name: array.copy() for name, array in sent.items()}
    change = np.zeros(sum(sent[name].size for name in moving))
    if trained is not None and array_forms(trained) == array_forms(sent):
        with np.errstate(invalid="ignore", over="ignore"):
            change = np.concatenate([trained[n].astype(np.float64).ravel() - sent[n].ravel() for n in moving])
            norm = float(np.linalg.norm(change))
        if np.isfinite(norm):
            change *= min(1.0, clip_norm * (1.0 - 2.0**-24) / max(norm, 1e-300))
        else:
            change = np.zeros(change.size)
    moved = change.astype(np.float32)
    if noise_multiplier:
        grid = ReleaseGrid.for_release(noise_multiplier, 2.0 * clip_norm, change.size, _INFLATION)
        grid.noisy(change, source, moved)
    return moved_by(sent, moving, moved)


def moved_by(sent: Arrays, moving: Sequence[str], step: np.ndarray) -> Arrays:
    """The arrays that were sent, those named `moving` changed by one flat vector."""
    released = {name: array.copy() for name, array in sent.items()}
    start = 0
    for name in moving:
        array = sent[name]
        released[name] = (array + step[start : start + array.size].reshape(array.shape)).astype(array.dtype)
        start += array.size
    return released


def reported(reply: RecordDict | None, name: str) -> float | None:
    """The number with this name in any record of an app's reply; None if there is no finite one."""
    if reply is None:
        return None
    records: list[MetricRecord | ConfigRecord] = [*reply.metric_records.values(), *reply.config_records.values()]
    try:
        for record in records:
            value = record.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = float(value)
                return number if math.isfinite(number) else None
    except Exception:  # objects of the app, which may fail when they are read
        _log.exception("a metric of the app cannot be read")
    return None


def _mean(values: np.ndarray) -> float | None:
    with np.errstate(all="ignore"):
        mean = float(np.mean(values)) if values.size else math.nan
    return mean if math.isfinite(mean) else None


def _require_room(wallet: OpenWallet, charges: Sequence[Charge]) -> None:
    """Refuses unless all charges fit together; charges nothing."""
    trial = copy(wallet.wallets)
    for one in charges:
        try:
            trial.spend([one.event])
        except WalletError as error:
            raise WalletError(
                f"ε = {one.epsilon:g} does not fit: {wallet.remaining_share:.1%} of the wallet is left",
                "releases of this size are refused from now on, smaller ones as long as they fit; a new lifetime "
                "needs new records",
            ) from error
