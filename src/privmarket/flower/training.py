"""Private training of any `torch.nn.Module` that can be trained record by record.

Stacks of layers that we know take the fast path of `federated.local`; every other module gets its per-example
gradients from Opacus, record by record clipped. Both release the same thing through `privacy.release`: global minus
local weights after noisy steps on clipped sums, divided by a public number.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket.errors import PrivacyError
from privmarket.federated.gradients import (
    clip_factors,
    conventional_products,
    group_factors,
    rounded_down,
    tiled,
)
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
from privmarket.flower import wire
from privmarket.flower.known_layers import fast_model
from privmarket.flower.node_seller import Job
from privmarket.flower.wire import Arrays
from privmarket.lazy import late
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import BLOCK_RECORDS, Grid

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from opacus import grad_sample
else:
    grad_sample = late("opacus.grad_sample")

# Per-example gradients of so many records are held at once; a Poisson sample goes in tiles of one size.
BLOCK_ROWS, SAMPLED_ROWS = BLOCK_RECORDS, 16

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


def train_privately(
    message: Message,
    context: Context,
    model: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    loss: Loss | None = None,
    persons: Any = None,
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
    require_trainable(model, inputs, labels, loss, weights := trainable_arrays(model), quick=True)
    update = private_module_update(model, weights, inputs, labels, job, loss, persons)
    load_arrays(model, {name: weights[name] - update[name] for name in weights})


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
        total = _step_sum(module, records, plan, job, loss or _cross_entropy)
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
    drawn: NDArray[np.int64] | None = None,
) -> Tensor:
    """Σ over records of each one's gradient, clipped to norm ≤ `clip_norm` over all parameters together.

    Records whose gradient is not finite count as nothing: else one record could decide whether there is a sum.

    Args:
        persons: whose record each is, equal numbers one after the other; then each person's sum is clipped.
        drawn: of a Poisson sample, the numbers of the drawn records, ascending: tiles and float64 sums.

    Returns:
        (trainable parameters,) float64, in the module's order. Private.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    people = _PersonSums(total, clip_norm)
    blocks = _blocks(labels.shape[0], persons, drawn)
    for rows, gradients in _per_record_gradients(module, parameters, inputs, labels, loss, blocks):
        energy = row_energy(gradients)
        bad = ~torch.isfinite(energy)
        if bad.any():
            gradients, energy = gradients.masked_fill_(bad[:, None], 0.0), energy.masked_fill(bad, 0.0)
        if persons is not None:
            people.add(persons[rows], gradients.double(), energy)
        elif drawn is None:
            total += gradients.t() @ clip_factors(energy, clip_norm)
        else:
            total += gradients.double().t() @ clip_factors(energy, clip_norm).double()
    people.finish()
    return total


class _PersonSums:
    """Adds up each person's gradients over blocks of records, and each person's clipped sum to a total."""

    def __init__(self, total: Tensor, clip_norm: float) -> None:
        self.total, self.clip_norm = total, clip_norm
        # The person whose records may go on in the next block: number, sum, energy and members so far.
        self.open: tuple[int, Tensor, Tensor, Tensor] | None = None

    def add(self, numbers: Tensor, gradients: Tensor, energy: Tensor) -> None:
        """Takes a block: (rows,) whose record each is, (rows, parameters) float64, (rows,) squared norms."""
        who, places, members = torch.unique_consecutive(numbers, return_inverse=True, return_counts=True)
        sums = torch.zeros(who.shape[0], self.total.shape[0], dtype=torch.float64).index_add_(0, places, gradients)
        energies = torch.zeros(who.shape[0], dtype=torch.float64).index_add_(0, places, energy)
        if self.open is not None and self.open[0] == int(who[0]):
            for mine, before in zip((sums, energies, members), self.open[1:], strict=True):
                mine[0] += before
        else:
            self.finish()
        self._close(sums[:-1], energies[:-1], members[:-1])
        self.open = int(who[-1]), sums[-1], energies[-1], members[-1]

    def finish(self) -> None:
        """There are no further records of the last person."""
        if self.open is not None:
            self._close(*(part[None] for part in self.open[1:]))
        self.open = None

    def _close(self, sums: Tensor, energy: Tensor, members: Tensor) -> None:
        factor = rounded_down(group_factors(sums.square().sum(1), energy, members, self.clip_norm))
        self.total += sums.t() @ factor.double()


def _blocks(
    records: int, persons: Tensor | None, drawn: NDArray[np.int64] | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Which records are computed at once, and which rows of those count.

    Of a Poisson sample each record stands at a place of its own in a tile, or each person in tiles of its own:
    where it stands does not depend on who else was drawn.
    """
    if drawn is None:
        for start in range(0, records, BLOCK_ROWS):
            rows = np.arange(start, min(start + BLOCK_ROWS, records))
            yield rows, np.arange(rows.size)
        return
    if persons is None:
        groups = [tiled(drawn, SAMPLED_ROWS)]
    else:
        starts = np.flatnonzero(np.diff(persons.numpy()[drawn], prepend=-1))
        filled = [
            np.resize(one, -(-one.size // SAMPLED_ROWS) * SAMPLED_ROWS) for one in np.split(drawn, starts[1:])
        ]
        groups = [
            (rows, np.arange(one.size)) for rows, one in zip(filled, np.split(drawn, starts[1:]), strict=True)
        ]
    for rows, places in groups:
        for start in range(0, rows.size, SAMPLED_ROWS):
            inside = places[(places >= start) & (places < start + SAMPLED_ROWS)]
            yield rows[start : start + SAMPLED_ROWS], inside - start


def _per_record_gradients(
    module: nn.Module,
    parameters: list[nn.Parameter],
    inputs: Tensor,
    labels: Tensor,
    loss: Loss,
    blocks: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers of records and their (records, trainable parameters) gradients, by the hooks of Opacus."""

    hooked = grad_sample.GradSampleModule(module, loss_reduction="sum", strict=False)
    try:
        for taken, counting in blocks:
            rows, places = torch.from_numpy(taken), torch.from_numpy(counting)
            hooked.zero_grad(set_to_none=True)
            with warnings.catch_warnings():
                # torch tells that a hook of Opacus fires on inputs without gradients, which is as it should be.
                warnings.simplefilter("ignore")
                loss(hooked(inputs[rows]), labels[rows]).sum().backward()  # type: ignore[no-untyped-call]
            gradients = torch.cat([_grad_sample(p, rows.shape[0]).flatten(1) for p in parameters], dim=1)
            yield rows[places], gradients[places]
    finally:
        hooked.to_standard_module()


def _step_sum(module: nn.Module, records: ClientRecords, plan: LocalPlan, job: Job, loss: Loss) -> Tensor:
    """One step's clipped sum, over all records or a Poisson sample of the units. Private."""
    persons, drawn = records.persons if plan.unit == "person" else None, None
    if plan.sampling_rate < 1.0:
        drawn = drawn_rows(job.noise, plan.sampling_rate, records.labels.shape[0], persons)
    return clipped_sum(module, records.images, records.labels, plan.clip_norm, loss, persons, drawn=drawn)


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


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


def _grad_sample(parameter: nn.Parameter, rows: int) -> Tensor:
    """(rows, *shape) per-example gradients of a parameter; a list of them where it is used more than once."""
    found: Any = getattr(parameter, "grad_sample", None)
    if found is None:
        return torch.zeros(rows, *parameter.shape)
    return torch.stack(found).sum(0) if isinstance(found, list) else found
