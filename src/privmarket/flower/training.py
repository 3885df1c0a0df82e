"""Private training of any `torch.nn.Module` that can be trained record by record.

Stacks of layers that we know take the fast path of `federated.local`; every other module gets its per-example
gradients from Opacus, record by record clipped. Both release the same thing through `privacy.release`: global minus
local weights after noisy steps on clipped sums, divided by a public number.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket.errors import PrivacyError
from privmarket.federated.gradients import conventional_products
from privmarket.federated.local import (
    ClientRecords,
    LocalPlan,
    NoisySum,
    by_person,
    drawn_rows,
    private_shares,
    private_updates,
)
from privmarket.federated.model_check import require_per_record
from privmarket.federated.record_gradients import Column, Loss, clipped_sum
from privmarket.federated.workers import one_thread
from privmarket.flower import wire
from privmarket.flower.known_layers import fast_model
from privmarket.flower.node_seller import Job
from privmarket.flower.training_checks import job_plan, require_trainable
from privmarket.flower.wire import Arrays
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import ReleaseGrid

if TYPE_CHECKING:
    from flwr.app import Context, Message


def trainable_arrays(module: nn.Module) -> Arrays:
    """The module's trainable parameters by name, copied; what is frozen stays where it is."""
    return {n: p.detach().numpy().copy() for n, p in module.named_parameters() if p.requires_grad}


def load_arrays(module: nn.Module, arrays: Arrays) -> None:
    """Copies named arrays into the module's trainable parameters."""
    mine = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if set(mine) != set(arrays):
        raise PrivacyError(
            f"weights for {sorted(arrays)[:4]} and a module with {sorted(mine)[:4]}",
            "server and client must build the same model",
        )
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(torch.from_numpy(np.array(arrays[name], dtype=np.float32)).reshape(parameter.shape))


def private_module_update(
    module: nn.Module,
    weights: Arrays,
    inputs: Column,
    labels: Column,
    job: Job,
    loss: Loss | None = None,
    persons: Column | None = None,
) -> Arrays:
    """What a client releases for a job: global minus local weights after the plan's noisy steps.

    Args:
        module: its trainable parameters are overwritten by `weights`.
        inputs, labels: the client's records along the first axis, tensors or arrays.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        persons: whose record each is, whole numbers ≥ 0; needed where the job's unit is a person.
    """
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if x.shape[0] != y.shape[0]:
        raise PrivacyError(f"{x.shape[0]} inputs and {y.shape[0]} labels", "give one label per record")
    plan = job_plan(job)
    require_per_record(module)
    whose = None if persons is None else torch.as_tensor(persons)
    records = ClientRecords(x, y, [x.shape[0]], whose)
    if plan.unit == "person":
        records = by_person(records)
    with one_thread(), conventional_products():
        fast = fast_model(module) if loss is None and y.dtype == torch.int64 else None
        if fast is not None:
            flat, records = fast.pack(weights), fast.usable(records)
            return fast.unpack(
                private_updates(fast.model, flat, records, plan, [job.noise_multiplier], [job.noise])[0]
            )
        load_arrays(module, weights)
        return _general_update(module, records, plan, job, loss or cross_entropy)


def train_privately(
    message: Message,
    context: Context,
    model: nn.Module,
    inputs: Column,
    labels: Column,
    *,
    loss: Loss | None = None,
    persons: Column | None = None,
) -> None:
    """Trains a model for the sale in a message, with its noise; for apps behind `WalletMod(noise="app")`.

    Args:
        message: the message that the app was called with.
        context: its node's.
        model: holds the weights that the message brought; afterwards those that may be sent back.
        inputs, labels, loss, persons: as for `private_module_update`.

    Raises:
        WireError: the message carries no sale, or passed no `WalletMod`.
    """
    sale, record = wire.take(message.content, wire.Sale), message.content.config_records.get(wire.JOB)
    if record is None:
        raise wire.WireError(f"a sale without {wire.JOB}", 'put WalletMod(noise="app") before this app')
    job = Job(
        sale, float(str(record["noise-multiplier"])), NoiseSource.from_system(), "", context, str(record["unit"])
    )
    # Also with other weights than those that came: after the first noisy step it has others.
    require_trainable(model, inputs, labels, loss, weights := trainable_arrays(model))
    update = private_module_update(model, weights, inputs, labels, job, loss, persons)
    load_arrays(model, {name: weights[name] - update[name] for name in weights})


def private_module_share(
    module: nn.Module,
    weights: Arrays,
    inputs: Column,
    labels: Column,
    job: Job,
    grid: ReleaseGrid,
    loss: Loss | None = None,
    persons: Column | None = None,
) -> Arrays:
    """What a client adds to a secure sum for a job: its clipped sum on `grid` with its share of the noise, int64.

    Args:
        module, weights, inputs, labels, loss, persons: as for `private_module_update`.
        grid: this client's grid in the sum, see `federated.shares`.
    """
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    plan = job_plan(job)
    require_per_record(module)
    whose = None if persons is None else torch.as_tensor(persons)
    records = ClientRecords(x, y, [x.shape[0]], whose)
    with one_thread(), conventional_products():
        fast = fast_model(module) if loss is None and y.dtype == torch.int64 else None
        if fast is not None:
            flat, records = fast.pack(weights), fast.usable(records)
            integers = private_shares(fast.model, flat, records, plan, [grid], [job.noise])[0]
            return fast.unpack(torch.from_numpy(integers))
        load_arrays(module, weights)
        if plan.unit == "person":
            records = by_person(records)
        for part in module.modules():
            if any(p.requires_grad for p in part.parameters(recurse=False)):
                part.training = True
        total = _step_sum(module, records, plan, job, loss or cross_entropy)
        integers = grid.noisy_integers(total.numpy(), job.noise)
        moving = {name: p for name, p in module.named_parameters() if p.requires_grad}
        return _named(torch.from_numpy(integers), moving)


def _step_sum(module: nn.Module, records: ClientRecords, plan: LocalPlan, job: Job, loss: Loss) -> Tensor:
    """One step's clipped sum over all records or a Poisson sample of the units: private until noise is added."""
    persons, drawn = records.persons if plan.unit == "person" else None, None
    if plan.sampling_rate < 1.0:
        drawn = drawn_rows(job.noise, plan.sampling_rate, records.labels.shape[0], persons)
    # Masks of dropout are new in every step; which one a record gets does not depend on the others.
    seed = int.from_bytes(job.noise.more_bytes(4).tobytes(), "little")
    images, labels = records.images, records.labels
    return clipped_sum(module, images, labels, plan.clip_norm, loss, persons, drawn=drawn, mask_seed=seed)


def _general_update(module: nn.Module, records: ClientRecords, plan: LocalPlan, job: Job, loss: Loss) -> Arrays:
    """Trains with per-record gradients from Opacus's hooks and returns global minus local weights."""
    rate = plan.learning_rate / plan.expected_batch
    before = trainable_arrays(module)
    moving = {name: p for name, p in module.named_parameters() if p.requires_grad}
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in before.values()]))
    noisy = NoisySum.of(job.noise_multiplier, job.noise, plan, records.labels.shape[0], flat.shape[0])
    for part in module.modules():
        # Layers that are trained must be in training mode for Opacus; others stay as their owner set them.
        if any(p.requires_grad for p in part.parameters(recurse=False)):
            part.training = True
    for _ in range(plan.steps):
        total = _step_sum(module, records, plan, job, loss)
        noisy.write(flat, total, -rate)
        load_arrays(module, _named(flat, moving))
    after = _named(flat, moving)
    return {name: before[name] - after[name] for name in before}


def _named(flat: Tensor, parameters: dict[str, nn.Parameter]) -> Arrays:
    """The flat vector as the named arrays of the parameters, views of it."""
    parts = torch.split(flat, [p.numel() for p in parameters.values()])
    return {name: part.view(p.shape).numpy() for part, (name, p) in zip(parts, parameters.items(), strict=True)}


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each record, (records,): the loss where no other is given."""
    return F.cross_entropy(outputs, labels, reduction="none")
