"""Private training of any `torch.nn.Module` that can be trained record by record.

Stacks of layers that we know take the fast path of `federated.local`; every other module gets its per-example
gradients from Opacus, record by record clipped. Both release the same thing: global minus local weights after
noisy steps on clipped sums, divided by a public number.

Implements: DP-SGD of [Abadi2016].
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket.errors import PrivacyError
from privmarket.federated.gradients import clip_factors
from privmarket.federated.local import ClientRecords, LocalPlan, private_updates
from privmarket.federated.workers import one_thread
from privmarket.flower.fast_path import fast_model
from privmarket.flower.wire import Arrays

if TYPE_CHECKING:
    from privmarket.flower.client import Job

# Per-example gradients of so many records are held at once.
BLOCK_ROWS = 128

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
    module: nn.Module, weights: Arrays, inputs: Any, labels: Any, job: Job, loss: Loss | None = None
) -> Arrays:
    """What a client releases for a job: global minus local weights after the plan's noisy steps.

    Args:
        module: its trainable parameters are overwritten by `weights`.
        inputs, labels: the client's records along the first axis, tensors or arrays.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
    """
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if x.shape[0] != y.shape[0]:
        raise PrivacyError(f"{x.shape[0]} inputs and {y.shape[0]} labels", "give one label per record")
    plan = job_plan(job)
    refuse_mixed_records(module)
    with one_thread():
        fast = fast_model(module) if loss is None and y.dtype == torch.int64 else None
        if fast is not None:
            records = ClientRecords(x.float(), y, [x.shape[0]])
            flat = fast.pack(weights)
            update = private_updates(fast.model, flat, records, plan, [job.noise_multiplier], [job.noise])
            # A record whose gradient overflows spoils this sum; the general path below leaves it out.
            if torch.isfinite(update).all():
                return fast.unpack(update[0])
        load_arrays(module, weights)
        return _general_update(module, x, y, plan, job, loss or _cross_entropy)


def job_plan(job: Job) -> LocalPlan:
    """The public training plan of a sale."""
    sale = job.sale
    return LocalPlan(
        sale.family.steps, sale.family.sampling_rate, sale.clip_norm, sale.learning_rate, sale.expected_batch
    )


def refuse_mixed_records(module: nn.Module) -> None:
    """Refuses modules in which one record's output depends on others: clipping per record would protect nobody.

    Raises:
        PrivacyError: with the layers' names, and what to put there instead.
    """
    from opacus.validators import ModuleValidator

    faults = ModuleValidator.validate(module, strict=False)
    if faults:
        first = str(faults[0]).splitlines()[0]
        raise PrivacyError(
            f"this module cannot be trained record by record: {first}",
            "replace BatchNorm by GroupNorm, or freeze it in eval mode; see opacus.validators.ModuleValidator.fix",
        )


def clipped_sum(module: nn.Module, inputs: Tensor, labels: Tensor, clip_norm: float, loss: Loss) -> list[Tensor]:
    """Σ over records of each one's gradient, clipped to norm ≤ `clip_norm` over all parameters together.

    Records whose gradient is not finite count as nothing: else one record could decide whether there is a sum.

    Returns:
        One tensor per trainable parameter, in the module's order.
    """
    from opacus.grad_sample import GradSampleModule

    parameters = [p for p in module.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in parameters]
    hooked = GradSampleModule(module, loss_reduction="sum", strict=False)
    try:
        with warnings.catch_warnings():
            # torch tells that a hook of Opacus fires on inputs without gradients, which is as it should be.
            warnings.simplefilter("ignore")
            for x, y in _blocks(inputs, labels):
                hooked.zero_grad(set_to_none=True)
                loss(hooked(x), y).sum().backward()  # type: ignore[no-untyped-call]
                per_record = [_grad_sample(p, x.shape[0]) for p in parameters]
                squared = torch.stack([g.flatten(1).square().sum(1) for g in per_record]).sum(0)
                factor = torch.where(torch.isfinite(squared), clip_factors(squared, clip_norm), 0.0)
                for total, g in zip(sums, per_record, strict=True):
                    total += torch.einsum("n,n...->...", factor, torch.nan_to_num(g, posinf=0.0, neginf=0.0))
    finally:
        hooked.to_standard_module()
    return sums


def _general_update(module: nn.Module, x: Tensor, y: Tensor, plan: LocalPlan, job: Job, loss: Loss) -> Arrays:
    """Noisy steps by the hooks of Opacus."""
    rate = plan.learning_rate / plan.expected_batch
    before = trainable_arrays(module)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    parameters = dict(module.named_parameters())
    module.train()
    for _ in range(plan.steps):
        drawn = np.ones(x.shape[0], dtype=bool)
        if plan.sampling_rate < 1.0:
            drawn = job.noise.bernoulli(plan.sampling_rate, x.shape[0])
        rows = torch.from_numpy(np.flatnonzero(drawn))
        sums = clipped_sum(module, x[rows], y[rows], plan.clip_norm, loss)
        with torch.no_grad():
            for name, total in zip(names, sums, strict=True):
                noisy = total.contiguous()
                if job.noise_multiplier:
                    job.noise.add(noisy, job.noise_multiplier * plan.clip_norm)
                parameters[name].sub_(noisy, alpha=rate)
    after = trainable_arrays(module)
    return {name: before[name] - after[name] for name in names}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


def _blocks(inputs: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, inputs.shape[0], BLOCK_ROWS):
        yield inputs[start : start + BLOCK_ROWS], labels[start : start + BLOCK_ROWS]


def _grad_sample(parameter: nn.Parameter, rows: int) -> Tensor:
    """(rows, *shape) per-example gradients of a parameter; a list of them where it is used more than once."""
    found: Any = getattr(parameter, "grad_sample", None)
    if found is None:
        return torch.zeros(rows, *parameter.shape)
    return torch.stack(found).sum(0) if isinstance(found, list) else found
