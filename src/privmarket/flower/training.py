"""Private training of any `torch.nn.Module` that can be trained record by record.

Stacks of layers that we know take the fast path of `federated.local`; every other module gets its per-example
gradients from Opacus, record by record clipped. Both release the same thing through `privacy.release`: global minus
local weights after noisy steps on clipped sums, divided by a public number.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket.errors import PrivacyError
from privmarket.federated.gradients import clip_factors, conventional_products
from privmarket.federated.layers import row_energy
from privmarket.federated.local import (
    ClientRecords,
    LocalPlan,
    NoisySum,
    by_person,
    drawn_rows,
    private_shares,
    private_updates,
)
from privmarket.federated.model_check import require_per_record, row_findings
from privmarket.federated.workers import one_thread
from privmarket.flower.known_layers import fast_model
from privmarket.flower.wire import Arrays
from privmarket.privacy.release import BLOCK_RECORDS, Grid

if TYPE_CHECKING:
    from privmarket.flower.client import Job

# Per-example gradients of so many records are held at once; a Poisson sample goes in tiles of one size, so that no
# record's gradient depends on how many others were drawn.
BLOCK_ROWS, SAMPLED_ROWS = BLOCK_RECORDS, 32

Loss = Callable[[Tensor, Tensor], Tensor]


def trainable_arrays(module: nn.Module) -> Arrays:
    """The module's trainable parameters by name, copied; what is frozen stays where it is."""
    return {n: p.detach().numpy().copy() for n, p in module.named_parameters() if p.requires_grad}


def load_arrays(module: nn.Module, arrays: Arrays) -> None:
    """Sets the module's trainable parameters."""
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
    inputs: Any,
    labels: Any,
    job: Job,
    loss: Loss | None = None,
    persons: Any = None,
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
            flat, records = fast.pack(weights), replace(records, images=records.images.float())
            return fast.unpack(
                private_updates(fast.model, flat, records, plan, [job.noise_multiplier], [job.noise])[0]
            )
        load_arrays(module, weights)
        return _general_update(module, records, plan, job, loss or _cross_entropy)


def private_module_share(
    module: nn.Module,
    weights: Arrays,
    inputs: Any,
    labels: Any,
    job: Job,
    grid: Grid,
    loss: Loss | None = None,
    persons: Any = None,
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
            flat, records = fast.pack(weights), replace(records, images=records.images.float())
            integers = private_shares(fast.model, flat, records, plan, [grid], [job.noise])[0]
            return fast.unpack(torch.from_numpy(integers))
        load_arrays(module, weights)
        if plan.unit == "person":
            records = by_person(records)
        for part in module.modules():
            if any(p.requires_grad for p in part.parameters(recurse=False)):
                part.training = True
        whose, sampled = records.persons if plan.unit == "person" else None, plan.sampling_rate < 1.0
        x, y = records.images, records.labels
        if sampled:
            rows = torch.from_numpy(drawn_rows(job.noise, plan.sampling_rate, y.shape[0], whose))
            x, y, whose = x[rows], y[rows], None if whose is None else whose[rows]
        total = clipped_sum(module, x, y, plan.clip_norm, loss or _cross_entropy, whose, sampled=sampled)
        integers = grid.noisy_integers(total.numpy(), job.noise)
        moving = {name: p for name, p in module.named_parameters() if p.requires_grad}
        return _named(torch.from_numpy(integers), moving)


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


def require_trainable(
    module: nn.Module, inputs: Any, labels: Any, loss: Loss | None, weights: Arrays, *, quick: bool = False
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


def require_records(module: nn.Module, inputs: Any, labels: Any, persons: Any, job: Job, loss: Loss | None) -> None:
    """Refuses records that training would stumble over: unequal lengths, labels out of range, persons with gaps.

    Raises:
        PrivacyError, ConfigurationError: what is wrong; for the client's own log only.
    """
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if x.shape[0] != y.shape[0]:
        raise PrivacyError(f"{x.shape[0]} inputs and {y.shape[0]} labels", "give one label per record")
    records = ClientRecords(x, y, [x.shape[0]], None if persons is None else torch.as_tensor(persons))
    if job.unit == "person":
        by_person(records)
    if loss is None and y.shape[0]:
        with torch.no_grad():
            classes = copy.deepcopy(module).eval()(torch.zeros_like(x[:1])).shape[1]
        if y.dtype.is_floating_point or not (int(y.min()) >= 0 and int(y.max()) < classes):
            raise PrivacyError(f"labels of {y.dtype} outside 0 to {classes - 1}", "check them, or give a loss")


def require_noise(job: Job, records: int, parameters: int) -> None:
    """Refuses a sale whose noise is beyond what can be drawn exactly.

    Raises:
        PrivacyError: so little ε on so many weights.
    """
    NoisySum.of(job.noise_multiplier, job.noise, job_plan(job), records, parameters)


def clipped_sum(
    module: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    clip_norm: float,
    loss: Loss,
    persons: Tensor | None = None,
    *,
    sampled: bool = False,
) -> Tensor:
    """Σ over records of each one's gradient, clipped to norm ≤ `clip_norm` over all parameters together.

    Records whose gradient is not finite count as nothing: else one record could decide whether there is a sum.

    Args:
        persons: whose record each is, equal numbers one after the other; then each person's sum is clipped.
        sampled: whether the records were drawn: tiles of fixed size and float64 sums, as the page says.

    Returns:
        (trainable parameters,) float64, in the module's order. Private.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    carried: tuple[int, Tensor] | None = None  # a person whose records go on in the next block

    def add(contributions: Tensor) -> None:
        energy = contributions.square().sum(1)
        total.add_(contributions.t() @ clip_factors(energy, clip_norm).double())

    for rows, gradients in _per_record_gradients(module, parameters, inputs, labels, loss, sampled):
        energy = row_energy(gradients)
        bad = ~torch.isfinite(energy)
        if bad.any():
            gradients, energy = gradients.masked_fill_(bad[:, None], 0.0), energy.masked_fill(bad, 0.0)
        if persons is None:
            factor = clip_factors(energy, clip_norm)
            total += gradients.double().t() @ factor.double() if sampled else gradients.t() @ factor
            continue
        numbers, places = torch.unique_consecutive(persons[rows], return_inverse=True)
        sums = torch.zeros(numbers.shape[0], total.shape[0], dtype=torch.float64)
        sums.index_add_(0, places, gradients.double())
        if carried is not None:
            if carried[0] == int(numbers[0]):
                sums[0] += carried[1]
            else:
                add(carried[1][None])
        add(sums[:-1])
        carried = int(numbers[-1]), sums[-1]
    if carried is not None:
        add(carried[1][None])
    return total


def _per_record_gradients(
    module: nn.Module, parameters: list[nn.Parameter], inputs: Tensor, labels: Tensor, loss: Loss, sampled: bool
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows and their (rows, trainable parameters) gradients, by the hooks of Opacus."""
    from opacus.grad_sample import GradSampleModule

    hooked = GradSampleModule(module, loss_reduction="sum", strict=False)
    step = SAMPLED_ROWS if sampled else BLOCK_ROWS
    try:
        for start in range(0, inputs.shape[0], step):
            x, y = inputs[start : start + step], labels[start : start + step]
            rows = x.shape[0]
            if sampled and rows < step:
                x, y = (torch.cat([t, t.new_zeros(step - rows, *t.shape[1:])]) for t in (x, y))
            hooked.zero_grad(set_to_none=True)
            with warnings.catch_warnings():
                # torch tells that a hook of Opacus fires on inputs without gradients, which is as it should be.
                warnings.simplefilter("ignore")
                loss(hooked(x), y).sum().backward()  # type: ignore[no-untyped-call]
            per_record = [_grad_sample(p, x.shape[0]).flatten(1)[:rows] for p in parameters]
            yield slice(start, start + rows), torch.cat(per_record, dim=1)
    finally:
        hooked.to_standard_module()


def _general_update(module: nn.Module, records: ClientRecords, plan: LocalPlan, job: Job, loss: Loss) -> Arrays:
    """Noisy steps by the hooks of Opacus."""
    rate = plan.learning_rate / plan.expected_batch
    before = trainable_arrays(module)
    moving = {name: p for name, p in module.named_parameters() if p.requires_grad}
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in before.values()]))
    noisy = NoisySum.of(job.noise_multiplier, job.noise, plan, records.labels.shape[0], flat.shape[0])
    for part in module.modules():
        # Layers that are trained must be in training mode for Opacus; others stay as their owner set them.
        if any(p.requires_grad for p in part.parameters(recurse=False)):
            part.training = True
    persons = records.persons if plan.unit == "person" else None
    for _ in range(plan.steps):
        sampled = plan.sampling_rate < 1.0
        x, y, whose = records.images, records.labels, persons
        if sampled:
            rows = torch.from_numpy(drawn_rows(job.noise, plan.sampling_rate, y.shape[0], persons))
            x, y, whose = x[rows], y[rows], None if persons is None else persons[rows]
        total = clipped_sum(module, x, y, plan.clip_norm, loss, whose, sampled=sampled)
        noisy.write(flat, total, -rate)
        load_arrays(module, _named(flat, moving))
    after = _named(flat, moving)
    return {name: before[name] - after[name] for name in before}


def _named(flat: Tensor, parameters: dict[str, nn.Parameter]) -> Arrays:
    """The flat vector as the named arrays of the parameters, views of it."""
    parts = torch.split(flat, [p.numel() for p in parameters.values()])
    return {name: part.view(p.shape).numpy() for part, (name, p) in zip(parts, parameters.items(), strict=True)}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


def _grad_sample(parameter: nn.Parameter, rows: int) -> Tensor:
    """(rows, *shape) per-example gradients of a parameter; a list of them where it is used more than once."""
    found: Any = getattr(parameter, "grad_sample", None)
    if found is None:
        return torch.zeros(rows, *parameter.shape)
    return torch.stack(found).sum(0) if isinstance(found, list) else found
