"""What a client looks at before it sells: can this model be trained on these records, with that noise?"""

from __future__ import annotations

import copy
import logging

import torch
from torch import nn

from privmarket.errors import PrivacyError
from privmarket.flower import _failures as failures
from privmarket.flower._node_seller import Job
from privmarket.flower._wire import Arrays
from privmarket.training import (
    ClientRecords,
    Column,
    LocalPlan,
    Loss,
    ModelError,
    NoisySum,
    by_person,
    one_thread,
    require_per_record,
    row_findings,
    usable_inputs,
)
from privmarket.training._gradients import random_labels, random_records

_log = logging.getLogger(failures.LOGGER)
_TRIED_ROWS = 5


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
    if not quick:
        _try_batch(module, x, labels, loss)
    with one_thread():
        if quick:
            found = row_findings(module, x, labels, loss=loss, weights=weights, random_weights=False)
            if not found:
                return
        require_per_record(module, x, labels, loss=loss, weights=weights)


def _try_batch(module: nn.Module, inputs: torch.Tensor, labels: Column, loss: Loss | None) -> None:
    """One forward pass and one loss on random records of the same shape, for errors that name the user's own line.

    Raises:
        ModelError: the module or the loss fails, with the line of the owner's code that failed.
    """
    subject = copy.deepcopy(module).train()
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), one_thread():
        try:
            outputs = subject(random_records(inputs, _TRIED_ROWS, generator))
        except Exception as error:  # the module is the user's code and may raise anything
            shape = tuple(inputs.shape[1:])
            raise ModelError(
                f"the model does not take records of shape {shape}, {inputs.dtype}: "
                f"{type(error).__name__}: {error}",
                "make model and records fit",
            ) from error
        if loss is None or not isinstance(outputs, torch.Tensor):
            return
        try:
            loss(outputs, random_labels(outputs, torch.as_tensor(labels), generator))
        except Exception as error:
            raise ModelError(
                f"the loss fails on outputs of shape {tuple(outputs.shape)} and labels of "
                f"{torch.as_tensor(labels).dtype}: {type(error).__name__}: {error}",
                "let it take (outputs, labels) and return one loss per record",
            ) from error


def note_values(inputs: Column, labels: Column, loss: Loss | None, module: nn.Module) -> None:
    """Tells the client's own log what is odd about the values of its records; nothing of this leaves the client.

    Records that are no numbers, and labels that name no class, add nothing to the sum. A client of which all
    records are of that kind sells noise, and its owner should know.
    """
    x = torch.as_tensor(inputs)
    y = torch.as_tensor(labels)
    rows = int(x.shape[0])
    if x.is_floating_point() and rows:
        broken = int((~torch.isfinite(x.reshape(rows, -1)).all(dim=1)).sum())
        if broken:
            _log.warning("%d of %d records hold NaN or infinite numbers and add nothing", broken, rows)
    if loss is None and not y.is_floating_point() and y.ndim == 1 and rows:
        try:
            with torch.no_grad(), one_thread():
                outputs = copy.deepcopy(module).eval()(usable_inputs(module, torch.zeros_like(x[:1])))
            classes = int(outputs.shape[1])
        except Exception:  # the module is the user's; what is wrong with it is said elsewhere
            return
        wrong = int(((y < 0) | (y >= classes)).sum())
        if wrong:
            _log.warning(
                "%d of %d labels name none of the model's %d classes (0 to %d); such records add nothing",
                *(wrong, rows, classes, classes - 1),
            )


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
    if not x.shape[0]:
        raise PrivacyError(
            "no records", "a client without records cannot sell: look at what its data function returns"
        )
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
