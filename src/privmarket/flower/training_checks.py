"""What a client looks at before it sells: can this model be trained on these records, with that noise?"""

from __future__ import annotations

import torch
from torch import nn

from privmarket.errors import PrivacyError
from privmarket.federated.workers import one_thread
from privmarket.flower.node_seller import Job
from privmarket.flower.wire import Arrays
from privmarket.training import (
    ClientRecords,
    Column,
    LocalPlan,
    Loss,
    NoisySum,
    by_person,
    require_per_record,
    row_findings,
    usable_inputs,
)


def job_plan(job: Job) -> LocalPlan:
    """The public training plan of a sale, with the seller's own unit."""
    sale = job.sale
    return LocalPlan(
        sale.family.steps,
        sale.family.sampling_rate,
        sale.clip_norm,
        sale.learning_rate,
        sale.expected_batch,
        unit=job.unit,
    )


def client_records(
    module: nn.Module, inputs: Column, labels: Column, persons: Column | None = None
) -> ClientRecords:
    """A client's records as the module takes them.

    Raises:
        PrivacyError: there are more or fewer labels than inputs.
    """
    x = usable_inputs(module, inputs)
    y = torch.as_tensor(labels)
    if x.shape[0] != y.shape[0]:
        raise PrivacyError(f"{x.shape[0]} inputs and {y.shape[0]} labels", "give one label per record")
    return ClientRecords(x, y, [x.shape[0]], None if persons is None else torch.as_tensor(persons))


def require_trainable(
    module: nn.Module, inputs: Column, labels: Column, loss: Loss | None, weights: Arrays, *, quick: bool = False
) -> None:
    """Refuses a module that mixes records, with these weights or others; see `training.require_per_record`.

    `quick` tries only the weights that were sent.

    Raises:
        ModelError: with the layer's name, and what to put there instead.
    """
    x = usable_inputs(module, inputs)
    with one_thread():
        if quick:
            found = row_findings(module, x, labels, loss=loss, weights=weights, random_weights=False)
            if not found:
                return
        require_per_record(module, x, labels, loss=loss, weights=weights)


def require_records(inputs: Column, labels: Column, persons: Column | None, job: Job, loss: Loss | None) -> None:
    """Refuses records that cannot be trained on: unequal lengths, labels of another type, bad person numbers.

    What follows from shapes and types is public. That a person number is missing or negative is not: such a refusal
    tells the server so, and no ε accounts for it. Values of inputs and labels are never looked at; a record that
    cannot be used adds nothing to the sum.

    Raises:
        PrivacyError, ConfigurationError: what is wrong; for the client's own log only.
    """
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if x.shape[0] != y.shape[0]:
        raise PrivacyError(f"{x.shape[0]} inputs and {y.shape[0]} labels", "give one label per record")
    records = ClientRecords(x, y, [x.shape[0]], None if persons is None else torch.as_tensor(persons))
    if job.unit == "person":
        by_person(records)
    if loss is None and y.dtype.is_floating_point:
        raise PrivacyError(f"labels of {y.dtype}", "give whole numbers, or a loss for others")


def require_noise(job: Job, records: int, parameters: int) -> None:
    """Refuses a sale whose noise is beyond what can be drawn exactly.

    Raises:
        PrivacyError: so little ε on so many weights.
    """
    NoisySum.of(job.noise_multiplier, job.noise, job_plan(job), records, parameters)
