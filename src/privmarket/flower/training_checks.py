"""What a client looks at before it sells: can this model be trained on these records, with that noise?"""

from __future__ import annotations

import torch
from torch import nn

from privmarket.errors import PrivacyError
from privmarket.federated import model_check
from privmarket.federated.local import ClientRecords, LocalPlan, NoisySum, by_person
from privmarket.federated.model_check import require_per_record, row_findings
from privmarket.federated.record_gradients import Column, Loss
from privmarket.federated.workers import one_thread
from privmarket.flower.known_layers import fast_model
from privmarket.flower.node_seller import Job
from privmarket.flower.wire import Arrays


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


def require_supported(module: nn.Module) -> None:
    """Refuses a module that mixes records, before anyone has records: a server does so before the first bid.

    Stacks of layers that we know are not tried, so that Opacus, which takes seconds to import, is not needed.

    Raises:
        ModelError: with the layer's name, and what to put there instead.
    """
    if fast_model(module) is None:
        model_check.require_supported(module)


def require_trainable(
    module: nn.Module, inputs: Column, labels: Column, loss: Loss | None, weights: Arrays, *, quick: bool = False
) -> None:
    """Refuses a module that mixes records, with these weights or others; see `federated.model_check`.

    Stacks of layers that we know need no trial: they have no forward pass of their own. `quick` tries only the
    weights that were sent.

    Raises:
        ModelError: with the layer's name, and what to put there instead.
    """
    if loss is None and fast_model(module) is not None:
        return
    with one_thread():
        if quick:
            found = row_findings(module, inputs, labels, loss=loss, weights=weights, random_weights=False)
            if not found:
                return
        require_per_record(module, inputs, labels, loss=loss, weights=weights)


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
