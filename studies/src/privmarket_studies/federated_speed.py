"""How fast a private round is, beside Opacus on the same work and beside our own round without privacy.

The work: 100 clients with 600 records of 784 numbers each, an MLP 784-128-64-10, Poisson batches of 32 expected
records, one pass (19 steps), clipping to 1, noise multiplier 1. Everything computes in one thread, and processor
time is what counts. The contenders take turns, so that a busy machine slows all of them alike, and the fastest
turn of each counts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privmarket.federated.local import SMALL_BATCH_CHUNK, ClientRecords, LocalPlan, plain_updates, private_updates
from privmarket.federated.models import Model, mlp
from privmarket.federated.workers import one_thread
from privmarket.privacy import integer_noise
from privmarket.privacy.accountant import RdpAccountant
from privmarket.privacy.events import release
from privmarket.privacy.noise import NoiseSource

_BATCH, _CLIP, _NOISE, _RATE = 32, 1.0, 1.0, 0.1
_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class SpeedReport:
    """Seconds of the fastest turn of each contender, and the ratios that are promised.

    Attributes:
        seconds: contender → seconds for one round of all clients.
        growth: clients → seconds of our private round.
        accounting_seconds: 100 clients × 200 rounds through the accountant.
    """

    clients: int
    records: int
    seconds: dict[str, float]
    growth: dict[int, float]
    accounting_seconds: float

    def ratio(self, reference: str) -> float:
        """How many times longer the reference takes than our private round."""
        return self.seconds[reference] / self.seconds["private"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the ratios."""
        ratios = {name: self.ratio(name) for name in self.seconds if name.startswith("opacus")}
        ratios["private over non-private"] = 1.0 / self.ratio("non-private")
        return {**asdict(self), "ratios": ratios}


@dataclass(frozen=True, eq=False)
class _Work:
    """Random records of `clients` clients."""

    model: Model
    weights: Tensor
    images: Tensor
    labels: Tensor
    clients: int
    records: int

    @property
    def steps(self) -> int:
        return -(-self.records // _BATCH)

    def chunks(self) -> list[tuple[int, ClientRecords]]:
        chunks = []
        for first in range(0, self.clients, SMALL_BATCH_CHUNK):
            count = min(SMALL_BATCH_CHUNK, self.clients - first)
            rows = slice(first * self.records, (first + count) * self.records)
            chunks.append((first, ClientRecords(self.images[rows], self.labels[rows], [self.records] * count)))
        return chunks


def measure(
    clients: int = 100,
    records: int = 600,
    *,
    turns: int = 3,
    opacus: bool = True,
    growth: tuple[int, ...] = (25, 50, 100, 200),
    progress: Callable[[str], None] = lambda _: None,
) -> SpeedReport:
    """Times every contender `turns` times, in turn."""
    work = _work(clients, records)
    # A process makes the tables of the integer noise once, in a fraction of a second; it is no part of a round.
    integer_noise.tables()
    contenders: dict[str, Callable[[_Work], None]] = {"private": _private, "non-private": _plain}
    if opacus:
        contenders |= {"opacus ghost clipping": _opacus_ghost, "opacus default": _opacus_hooks}
    fastest: dict[str, float] = {}
    with one_thread():
        for turn in range(turns):
            for name, contender in contenders.items():
                progress(f"turn {turn + 1} of {turns}: {name}")
                fastest[name] = min(fastest.get(name, np.inf), _seconds(contender, work))
        progress("growth in clients")
        grown = {n: min(_seconds(_private, _work(n, records)) for _ in range(2)) for n in growth}
    return SpeedReport(clients, records, fastest, grown, accounting_seconds(100, 200))


def accounting_seconds(clients: int, rounds: int) -> float:
    """Time to account for every client selling a different ε in every round."""
    rng = np.random.default_rng(0)
    sigmas = 2.0 ** (rng.integers(0, 128, (rounds, clients)) / 64.0)
    events = [[release(float(s)) for s in row] for row in sigmas]
    RdpAccountant(clients).compose(*events)  # the curves of the noise grid are computed once per process
    start = time.perf_counter()
    accountant = RdpAccountant(clients)
    accountant.compose(*events)
    accountant.epsilon(1e-5)
    return time.perf_counter() - start


def _seconds(contender: Callable[[_Work], None], work: _Work) -> float:
    # Processor time of this one thread: on a shared machine the clock on the wall measures the neighbours.
    start = time.process_time()
    contender(work)
    return time.process_time() - start


def _work(clients: int, records: int) -> _Work:
    generator = torch.Generator().manual_seed(0)
    model = mlp(_SHAPE, 10)
    return _Work(
        model,
        model.initial_weights(np.random.default_rng(0)),
        torch.randn(clients * records, *_SHAPE, generator=generator),
        torch.randint(0, 10, (clients * records,), generator=generator),
        clients,
        records,
    )


def _private(work: _Work) -> None:
    plan = LocalPlan(work.steps, _BATCH / work.records, _CLIP, _RATE, float(_BATCH))
    for _, chunk in work.chunks():
        sources = [NoiseSource.from_system() for _ in range(chunk.clients)]
        private_updates(work.model, work.weights, chunk, plan, [_NOISE] * chunk.clients, sources)


def _plain(work: _Work) -> None:
    for first, chunk in work.chunks():
        rngs = [np.random.default_rng([first, i]) for i in range(chunk.clients)]
        plain_updates(work.model, work.weights, chunk, batch=_BATCH, epochs=1, learning_rate=_RATE, rngs=rngs)


def _network() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def _poisson_batches(work: _Work, client: int) -> list[tuple[Tensor, Tensor]]:
    """Drawn straight from memory: no data loader slows Opacus down."""
    rows = slice(client * work.records, (client + 1) * work.records)
    images, labels = work.images[rows], work.labels[rows]
    picks = [torch.rand(work.records) < _BATCH / work.records for _ in range(work.steps)]
    return [(images[pick], labels[pick]) for pick in picks]


def _opacus_hooks(work: _Work) -> None:
    """Opacus as it comes: per-example gradients by hooks, DPOptimizer."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
    for client in range(work.clients):
        module = GradSampleModule(_network())
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=_RATE),
            noise_multiplier=_NOISE,
            max_grad_norm=_CLIP,
            expected_batch_size=_BATCH,
        )
        for images, labels in _poisson_batches(work, client):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(module(images), labels))
            optimizer.step()


def _opacus_ghost(work: _Work) -> None:
    """Opacus' fastest mode: ghost clipping with two backward passes."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
    for client in range(work.clients):
        module = GradSampleModuleFastGradientClipping(_network(), max_grad_norm=_CLIP, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(module.parameters(), lr=_RATE),
            noise_multiplier=_NOISE,
            max_grad_norm=_CLIP,
            expected_batch_size=_BATCH,
        )
        loss = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss(), "mean")
        for images, labels in _poisson_batches(work, client):
            optimizer.zero_grad()
            loss(module(images), labels).backward()
            optimizer.step()
