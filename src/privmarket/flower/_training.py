"""Private training of any `torch.nn.Module` that can be trained record by record, for the sales of one client.

A client releases what `privmarket.training` computes: global minus local weights after noisy steps on clipped sums,
divided by a public number, or a share of a secure sum. Before a client sells, `require_trainable`,
`require_records` and `require_noise` check whether this model can be trained on these records with that noise.

Records come as two arrays, a torch data set, or a `DataLoader` with any kind of batch (`records_of`). From a loader
only its data set is used, each record once; its order and batch size do not matter, because `train_privately` draws
its own batches. A sampler that may yield a record twice is refused, since that record would be protected half as
well as promised.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from privmarket.errors import ConfigurationError, DataError, PrivacyError
from privmarket.flower import _failures as failures, _trial as trial
from privmarket.flower._guard_open import open_reply
from privmarket.flower._seller import Job
from privmarket.flower._wire import Arrays
from privmarket.privacy._release import ReleaseGrid
from privmarket.training import (
    ClientRecords,
    Column,
    LocalPlan,
    Loss,
    ModelError,
    NoisySum,
    PrivateModel,
    by_person,
    one_thread,
    private_shares,
    private_updates,
    require_per_record,
    row_findings,
    usable_inputs,
)
from privmarket.training._gradients import random_labels, random_records

if TYPE_CHECKING:
    from flwr.app import Context, Message


def trainable_arrays(module: nn.Module) -> Arrays:
    """Copies of the module's trainable parameters by name, without frozen ones."""
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
                persons: the person of each record, whole numbers ≥ 0; needed if the job's unit is a person."""
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

    Behind a `GuardMod` nothing is sold: the site's policy sets training and noise, and what is released here
    leaves, whatever the app replies.

    Args:
        message: the message that the app was called with.
        context: its node's.
        model: holds the weights of the message; afterwards those that may be sent back.
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
        # Also with other weights than those of the message, since they change with the first noisy step.
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
    """A client's part of a secure sum: its clipped sum on `grid` with its share of the noise, int64.

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
    """A client's records in the form that the module takes.

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
        ModelError: with the layer's name, and what to use instead.
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
    """Warns in the client's own log about unusable values in its records; nothing of this leaves the client.

    Records with NaN, and labels that are not a class, add nothing to the sum. If all records are like that, the
    client sells noise, and its owner should know.
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
        except Exception:  # the user's module; its errors are reported elsewhere
            return
        wrong = int(((y < 0) | (y >= classes)).sum())
        if wrong:
            _log.warning(
                "%d of %d labels name none of the model's %d classes (0 to %d); such records add nothing",
                wrong,
                rows,
                classes,
                classes - 1,
            )


def require_records(inputs: Column, labels: Column, persons: Column | None, job: Job, loss: Loss | None) -> None:
    """Refuses records that cannot be trained on: unequal lengths, labels of another type, bad person numbers.

    Shapes and types are public. A missing or negative person number is not: such a refusal reveals it, and no ε
    accounts for it. Values of inputs and labels are never checked; a record that cannot be used adds nothing to the
    sum.

    Raises:
        PrivacyError, ConfigurationError: with the details, for the client's own log only.
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
        if persons is None:
            raise ConfigurationError(
                'unit = "person", and no persons',
                "give train_privately(…, persons=…), whose record each is; beside client_app(data=…) let data "
                "return (inputs, labels, persons)",
            )
        by_person(records)
    if loss is None and y.dtype.is_floating_point:
        raise PrivacyError(f"labels of {y.dtype}", "give whole numbers, or a loss for others")


def require_noise(job: Job, records: int, parameters: int) -> None:
    """Refuses a sale whose noise is beyond what can be drawn exactly.

    Raises:
        PrivacyError: ε is too small for this many weights.
    """
    NoisySum.of(job.noise_multiplier, job.noise, job_plan(job), records, parameters)


_BATCH = 256
_LABELS = ("label", "labels", "target", "targets", "y")
_INPUTS = ("img", "image", "images", "input", "inputs", "x", "features", "data", "pixel_values", "input_ids")


def records_of(data: Any, labels: Column | None = None) -> tuple[Tensor, Tensor]:
    """(inputs, labels) along the first axis, on the processor.

    Args:
        data: a `DataLoader`, a data set of records, or the inputs themselves.
        labels: if `data` are the inputs.

    Raises:
        DataError: there are no records, or inputs and labels of a batch cannot be told apart.
    """
    if labels is not None:
        return _plain(data), _plain(labels)
    if isinstance(data, DataLoader):
        batches: Iterable[Any] = _once(data)
    elif isinstance(data, Dataset):
        batches = DataLoader(data, batch_size=_BATCH)
    elif isinstance(data, tuple | list) and len(data) == 2:
        return _plain(data[0]), _plain(data[1])
    else:
        raise DataError(
            f"records of type {type(data).__name__}", "give a DataLoader, a data set, or inputs and labels"
        )
    pairs = [_split(batch) for batch in batches]
    if not pairs:
        raise DataError("the loader holds no records", "a client without records cannot sell")
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def columns_of(found: Any) -> tuple[Column, Column, Column | None]:
    """Inputs, labels, and persons or None, from the result of a client's own data function.

    Raises:
        DataError: it is neither a tuple of two or three columns nor a loader or data set.
    """
    if isinstance(found, tuple | list) and len(found) in (2, 3):
        return found[0], found[1], found[2] if len(found) == 3 else None
    inputs, labels = records_of(found)
    return inputs, labels, None


def _once(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader of the same records, each once and in order."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return loader
    sampler = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted(set(sampler.indices)))
    elif not isinstance(sampler, SequentialSampler | RandomSampler) or getattr(sampler, "replacement", False):
        raise DataError(
            f"a DataLoader with a {type(sampler).__name__}, which may name a record twice",
            "use shuffle=True, or give the data set itself",
        )
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        raise DataError(
            f"a DataLoader with a {type(loader.batch_sampler).__name__}",
            "give the data set itself, or plain batches",
        )
    return DataLoader(dataset, batch_size=loader.batch_size or _BATCH, collate_fn=loader.collate_fn, num_workers=0)


def _split(batch: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one batch: a pair, or a mapping with names that are common."""
    if isinstance(batch, Mapping):
        named = _by_name(batch)
        return _plain(named[0]), _plain(named[1])
    if isinstance(batch, Sequence) and len(batch) == 2:
        return _plain(batch[0]), _plain(batch[1])
    size = f" of {len(batch)}" if isinstance(batch, Sequence) else ""
    raise DataError(
        f"a batch that is a {type(batch).__name__}{size}",
        "let batches be (inputs, labels), or a mapping of the two",
    )


def _by_name(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    keys = list(batch)
    labels = [key for key in keys if key in _LABELS]
    inputs = [key for key in keys if key in _INPUTS]
    if len(labels) == 1 and not inputs and len(keys) == 2:
        inputs = [key for key in keys if key not in labels]
    if len(labels) != 1 or len(inputs) != 1:
        raise DataError(
            f"a batch with {', '.join(map(repr, keys))}: which are the inputs, which the labels?",
            "give them by name: train_privately(message, context, model, batch_inputs, batch_labels)",
        )
    return batch[inputs[0]], batch[labels[0]]


def _plain(column: Any) -> Tensor:
    return torch.as_tensor(column).detach().cpu()
