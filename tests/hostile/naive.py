"""The algorithm that was here before the release kernel, frozen: a subject on which every attack must succeed.

float32 products over all rows, sums added to float32 weights, float32 normals added after that, norms in float32,
no check for numbers that are not finite, child streams that survive a fork. Never import this outside tests.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch

from privmarket.flower import _wire as wire
from privmarket.privacy._noise import NoiseSource


def clipped_sum(weights, inputs, labels, clip, *, block=4096, into=None, scale=1.0):
    """Σ clipped gradients of a linear model, (inputs, classes), in float32, added to `into`."""
    total = torch.zeros_like(weights) if into is None else into
    one_hot = torch.nn.functional.one_hot(labels, weights.shape[1])
    slopes = [
        torch.softmax(inputs[a : a + block] @ weights, dim=1) - one_hot[a : a + block]
        for a in range(0, len(labels), block)
    ]
    for at, slope in enumerate(slopes):
        rows = inputs[at * block : at * block + len(slope)]
        squared = torch.linalg.vector_norm(rows, dim=1).square() * torch.linalg.vector_norm(slope, dim=1).square()
        factor = (clip * (1 - 1e-6) * torch.rsqrt(squared.clamp_min(1e-30))).clamp_max(1.0)
        total += rows.t() @ (slope * (factor * scale)[:, None])
    return total


def clipped_person(total: torch.Tensor, clip: float) -> float:
    """A person's summed gradient clipped by its own computed norm, whatever cancelled in it."""
    return float(total * min(1.0, clip / max(float(total.norm()), 1e-300)))


def running_sum(contributions: np.ndarray) -> float:
    """A float32 total to which one record after the other is added."""
    return float(np.add.accumulate(contributions.astype(np.float32), dtype=np.float32)[-1])


def one_step(weights, inputs, labels, clip, sigma, source):
    """The clipped sum plus float32 normals."""
    total = clipped_sum(weights, inputs, labels, clip)
    source.add(total, sigma * clip)
    return total


def several_steps(weights, inputs, labels, clip, sigma, source, rate, steps):
    """Gradient sums onto the weights, noise onto that; what is released is the difference."""
    mine = weights.clone()
    for _ in range(steps):
        clipped_sum(mine, inputs, labels, clip, into=mine, scale=-rate)
        source.add(mine, rate * sigma * clip)
    return weights - mine


def child(source: NoiseSource, *labels):
    """A child stream that does not know to which process it belongs."""
    return NoiseSource(source._key, "child", *labels)


def uniform(words: np.ndarray) -> np.ndarray:
    """(k + ½)·2^−32 in float32, which rounds to 1 for the largest k."""
    return (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)


def table_digest(noise: np.ndarray, epsilon: np.ndarray) -> str:
    """A digest of a noise table's figures that forgets for which schedule they hold."""
    return hashlib.sha256(noise.tobytes() + epsilon.tobytes()).hexdigest()


def hooked_sum(module, inputs, labels, clip, loss):
    """Clips the rows that the hooks of Opacus hold, as many as there are records, and asks not whose they are."""
    from opacus.grad_sample import GradSampleModule  # takes seconds

    hooked = GradSampleModule(module, loss_reduction="sum", strict=False)
    try:
        loss(hooked(inputs), labels).sum().backward()
        rows = torch.cat([p.grad_sample.flatten(1)[: len(labels)] for p in module.parameters()], dim=1)
        return (rows * (clip / rows.norm(dim=1).clamp_min(clip))[:, None]).sum(0)
    finally:
        hooked.to_standard_module()


def masked_in_turn(module, inputs, labels, clip, loss, drawn, seed):
    """Gradients of the drawn records, clipped, masks of dropout drawn for one after the other."""
    torch.manual_seed(seed)
    parameters, total = list(module.parameters()), 0.0
    for row in drawn:
        lost = loss(module(inputs[row : row + 1]), labels[row : row + 1]).sum()
        gradient = torch.cat([one.flatten() for one in torch.autograd.grad(lost, parameters)])
        total = total + gradient * (clip / float(gradient.norm().clamp_min(clip)))
    return total


def answer_by_blank_records(module, inputs, labels, loss):
    """Leaves out records that raise an error, unless blank records raise one, too: then the module is to blame."""
    try:
        loss(module(inputs), labels)
    except Exception:
        try:
            loss(module(torch.zeros_like(inputs)), labels)
        except Exception:
            return "failed"
    return None


def norms_as_a_stack(module, inputs, labels):
    """Each record's gradient norm for a plain stack of the module's layers, whatever else the module does."""
    rows, kept = inputs, []
    with torch.no_grad():
        for part in module:
            kept.append(rows)
            linear = isinstance(part, torch.nn.Linear)
            rows = torch.nn.functional.linear(rows, part.weight, part.bias) if linear else torch.tanh(rows)
        slope = torch.softmax(rows, 1) - torch.nn.functional.one_hot(labels, rows.shape[1])
        squared, after = 0.0, rows
        for part, before in zip(reversed(module), reversed(kept), strict=True):
            if isinstance(part, torch.nn.Linear):
                squared = squared + (before.square().sum(1) + 1) * slope.square().sum(1)
                slope = slope @ part.weight
            else:
                slope = slope * (1 - after.square())
            after = before
    return torch.sqrt(squared)


def fresh_folder(context, client):
    """A wallet where the run's configuration says, which the buyer writes."""
    return Path(str(context.run_config["wallets"])) / f"client-{client}.jsonl"


def note_as_it_comes(seller, content, context):
    """Writes a receipt into the wallet's file as the server sent it."""
    if wire.NAMES[wire.Receipt] in content:
        receipt = wire.take(content, wire.Receipt)
        with seller._wallet(context) as wallet:
            wallet.paid(f"{receipt.run}/{receipt.number}", receipt.paid_micro, receipt.fault)
