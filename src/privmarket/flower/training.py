"""Private training of any `torch.nn.Module` that can be trained record by record, for the sales of one client.

What leaves is what `privmarket.training` releases: global minus local weights after noisy steps on clipped sums,
divided by a public number, or a share of a secure sum.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privmarket.errors import PrivacyError
from privmarket.federated.workers import one_thread
from privmarket.flower import wire
from privmarket.flower.node_seller import Job
from privmarket.flower.training_checks import client_records, job_plan, require_trainable
from privmarket.flower.wire import Arrays
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import ReleaseGrid
from privmarket.training import (
    ClientRecords,
    Column,
    Loss,
    PrivateModel,
    cross_entropy,
    private_shares,
    private_updates,
    require_per_record,
)

if TYPE_CHECKING:
    from flwr.app import Context, Message

_LOG = logging.getLogger(__name__)  # the client's own


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
    require_per_record(module)
    records = client_records(module, inputs, labels, persons)
    model = PrivateModel(module, loss)
    flat = model.flat(weights)
    model.load(flat)
    plan = job_plan(job)
    _note_labels(model, flat, records)
    with one_thread():
        update = private_updates(model, flat, records, plan, [job.noise_multiplier], [job.noise])[0]
    return model.arrays(update)


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
        grid: this client's grid in the sum, see `secagg.SharedSum`.
    """
    require_per_record(module)
    records = client_records(module, inputs, labels, persons)
    model = PrivateModel(module, loss)
    flat = model.flat(weights)
    model.load(flat)
    _note_labels(model, flat, records)
    with one_thread():
        integers = private_shares(model, flat, records, job_plan(job), [grid], [job.noise])[0]
    return model.arrays(torch.from_numpy(integers))


def _note_labels(model: PrivateModel, flat: Tensor, records: ClientRecords) -> None:
    """Tells the client's own log how many labels name no class; such records add nothing."""
    if model.loss is not cross_entropy or records.labels.dtype.is_floating_point:
        return
    try:
        outputs = model.outputs(flat, torch.zeros_like(records.inputs[:1]))
    except Exception:  # the module is the user's code and may raise anything
        return
    if outputs.ndim < 2:
        return
    wrong = int(((records.labels < 0) | (records.labels >= outputs.shape[1])).sum())
    if wrong:
        _LOG.warning("%d records whose labels name no class add nothing", wrong)
