"""Private training of any `torch.nn.Module` that can be trained record by record, for the sales of one client.

What leaves is what `privmarket.training` releases: global minus local weights after noisy steps on clipped sums,
divided by a public number, or a share of a secure sum.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from privmarket.errors import PrivacyError
from privmarket.flower import _trial as trial
from privmarket.flower._guard_open import open_reply
from privmarket.flower._loaders import records_of
from privmarket.flower._node_seller import Job
from privmarket.flower._training_checks import (
    client_records,
    job_plan,
    note_values,
    require_noise,
    require_records,
    require_trainable,
)
from privmarket.flower._wire import Arrays
from privmarket.privacy._release import ReleaseGrid
from privmarket.training import (
    Column,
    Loss,
    PrivateModel,
    one_thread,
    private_shares,
    private_updates,
    require_per_record,
)

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
    require_per_record(module)
    records = client_records(module, inputs, labels, persons)
    model = PrivateModel(module, loss)
    flat = model.flat(weights)
    model.load(flat)
    plan = job_plan(job)
    with one_thread():
        update = private_updates(model, flat, records, plan, [job.noise_multiplier], [job.noise])[0]
    return model.arrays(update)


def train_privately(
    message: Message,
    context: Context,
    model: nn.Module,
    data: Column | DataLoader[Any] | Dataset[Any],
    labels: Column | None = None,
    *,
    loss: Loss | None = None,
    persons: Column | None = None,
) -> None:
    """Trains a model for the sale in a message, with its noise; for apps behind `WalletMod(noise="records")`.

    Before any ε is reserved the mod calls the app once for a trial. The trial ends in this function: shapes, types,
    the loss and one batch of made-up records of the same shape are tried, and nothing is trained.

    Behind a `GuardMod` nothing is sold: the site's policy says how to train and how much noise there is, and what
    leaves is what is released here, whatever the app replies.

    Args:
        message: the message that the app was called with.
        context: its node's.
        model: holds the weights that the message brought; afterwards those that may be sent back.
        data: the app's `DataLoader` or data set as it is, batches (inputs, labels) or mappings of the two; or the
            inputs along the first axis, beside `labels`.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        persons: whose record each is, whole numbers ≥ 0; needed where the job's unit is a person.

    Raises:
        WireError: the message carries no sale, or passed no `WalletMod`.
    """
    guarded = open_reply()
    if guarded is not None:
        inputs, targets = records_of(data, labels)
        guarded.train(model, inputs, targets, loss, persons)
        return
    job = trial.job_of(message, context)
    inputs, targets = records_of(data, labels)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    model.to("cpu")
    try:
        weights = trainable_arrays(model)
        if trial.is_trial(message):
            note_values(inputs, targets, loss, model)
            require_trainable(model, inputs, targets, loss, weights)
            require_records(inputs, targets, persons, job, loss)
            require_noise(job, int(targets.shape[0]), sum(array.size for array in weights.values()))
            raise trial.Passed
        # Also with other weights than those that came: after the first noisy step it has others.
        require_trainable(model, inputs, targets, loss, weights)
        update = private_module_update(model, weights, inputs, targets, job, loss, persons)
        load_arrays(model, {name: weights[name] - update[name] for name in weights})
        trial.note_release(message, trainable_arrays(model))
    finally:
        model.to(device)


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
    with one_thread():
        integers = private_shares(model, flat, records, job_plan(job), [grid], [job.noise])[0]
    return model.arrays(torch.from_numpy(integers))
