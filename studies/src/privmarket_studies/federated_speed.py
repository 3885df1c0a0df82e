"""How fast a private round is, beside Opacus on the same work and beside our own round without privacy.

The work: 100 clients with 600 records of 784 numbers each, an MLP 784-128-64-10, Poisson batches of 32 expected
records, one pass (19 steps), clipping to 1, noise multiplier 1. Everything computes in one thread, and processor
time is what counts. The contenders take turns, so that a busy machine slows all of them alike; the median turn of
each counts, and how far separate runs in fresh processes lie apart is stated. With a checkout of an older tree its
rounds take turns with ours, of one full-batch step and of several sampled ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import privmarket
from privmarket.federated.local import SMALL_BATCH_CHUNK, ClientRecords, LocalPlan, plain_updates, private_updates
from privmarket.federated.models import Model, mlp
from privmarket.federated.workers import one_thread
from privmarket.lazy import late
from privmarket.privacy import integer_noise
from privmarket.privacy.accountant import RdpAccountant
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import ReleaseGrid

# Opacus may be missing; its rows are left out then.
grad_sample, optimizers = late("opacus.grad_sample"), late("opacus.optimizers")
ghost_module = late("opacus.grad_sample.grad_sample_module_fast_gradient_clipping")
ghost_optimizer = late("opacus.optimizers.optimizer_fast_gradient_clipping")
ghost_loss = late("opacus.utils.fast_gradient_clipping_utils")

_BATCH, _CLIP, _NOISE, _RATE = 32, 1.0, 1.0, 0.1
_SHAPE = (1, 28, 28)
# The rounds that are timed against an older tree, see `federated_speed_worker`.
ROUNDS = ("one step", "several steps")


@dataclass(frozen=True)
class SpeedReport:
    """One run: processor seconds of every turn of each contender.

    Attributes:
        turns: contender → seconds for one round of all clients, turn by turn; "before, …" is the older tree.
        growth: clients → seconds of our private round.
        accounting_seconds: 100 clients × 200 rounds through the accountant.
        draws_per_second: exact releases of one coordinate on one thread, noise and rounding and all.
    """

    clients: int
    records: int
    turns: dict[str, list[float]]
    growth: dict[int, float]
    accounting_seconds: float
    draws_per_second: float

    @property
    def seconds(self) -> dict[str, float]:
        """contender → the median turn."""
        return {name: float(np.median(each)) for name, each in self.turns.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """What is promised: others over our private round, and our rounds over the older tree's."""
        seconds = self.seconds
        found = {name: seconds[name] / seconds["private"] for name in seconds if name.startswith("opacus")}
        found["private over non-private"] = seconds["private"] / seconds["non-private"]
        for kind in ROUNDS:
            if f"before, {kind}" in seconds:
                found[f"{kind} over before"] = seconds[f"now, {kind}"] / seconds[f"before, {kind}"]
        return found

    def to_dict(self) -> dict[str, object]:
        """Plain data, with the ratios."""
        return {**asdict(self), "seconds": self.seconds, "ratios": self.ratios}


@dataclass(frozen=True, eq=False)
class _Work:
    """Random records of `clients` clients, for all contenders alike."""

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
    growth: tuple[int, ...] = (5, 10, 20, 40),
    before: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> SpeedReport:
    """Times every contender `turns` times, in turn; `before` is the checkout of an older tree."""
    work = _work(clients, records)
    # A process makes the tables of the integer noise once, in a fraction of a second; it is no part of a round.
    integer_noise.tables()
    contenders: dict[str, Callable[[], float]] = {
        "private": lambda: _seconds(_private, work),
        "non-private": lambda: _seconds(_plain, work),
    }
    if opacus:
        contenders["opacus ghost clipping"] = lambda: _seconds(_opacus_ghost, work)
        contenders["opacus default"] = lambda: _seconds(_opacus_hooks, work)
    taken: dict[str, list[float]] = {}
    with one_thread(), ExitStack() as workers:
        if before is not None:
            here = Path(privmarket.__file__).parents[2]
            for name, tree in (("before", before), ("now", here)):
                ask = workers.enter_context(_tree(tree, clients, records))
                contenders |= {f"{name}, {kind}": partial(ask, kind) for kind in ROUNDS}
        for turn in range(turns):
            for name, contender in contenders.items():
                progress(f"turn {turn + 1} of {turns}: {name}")
                taken.setdefault(name, []).append(contender())
        progress("growth in clients")
        grown = {n: float(np.median([_seconds(_private, _work(n, records)) for _ in range(3)])) for n in growth}
    return SpeedReport(clients, records, taken, grown, accounting_seconds(100, 200), draws_per_second())


@contextmanager
def _tree(tree: Path, clients: int, records: int) -> Iterator[Callable[[str], float]]:
    """A process that times the rounds of one tree: the name of a round goes in, its seconds come out."""
    script = Path(__file__).with_name("federated_speed_worker.py")
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(clients), str(records)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        questions, answers = worker.stdin, worker.stdout

        def ask(kind: str) -> float:
            print(kind, file=questions, flush=True)
            return float(answers.readline())

        yield ask
        questions.close()


def draws_per_second(draws: int = 1 << 20, turns: int = 5) -> float:
    """Coordinates that one thread releases in a second: dither, rounding, exact noise; the median of some turns."""
    sums, grid, source = np.zeros(draws, dtype=np.float32), ReleaseGrid(1.0, 2), NoiseSource.from_system()
    out, taken = np.empty_like(sums), []
    for _ in range(turns):
        start = time.process_time()
        grid.noisy(sums, source, out)
        taken.append(time.process_time() - start)
    return draws / float(np.median(taken))


def accounting_seconds(clients: int, rounds: int) -> float:
    """Time to account for every client selling a different ε in every round."""
    rng = np.random.default_rng(0)
    sigmas = 2.0 ** (rng.integers(0, 128, (rounds, clients)) / 64.0)
    events = [[PrivacyEvent(float(s)) for s in row] for row in sigmas]
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
    """One round with Opacus's default: per-example gradients by hooks and its DPOptimizer."""
    warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
    for client in range(work.clients):
        module = grad_sample.GradSampleModule(_network())
        optimizer = optimizers.DPOptimizer(
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
    """One round with Opacus's fastest mode: ghost clipping with two backward passes."""
    warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
    for client in range(work.clients):
        module = ghost_module.GradSampleModuleFastGradientClipping(
            _network(), max_grad_norm=_CLIP, use_ghost_clipping=True
        )
        optimizer = ghost_optimizer.DPOptimizerFastGradientClipping(
            torch.optim.SGD(module.parameters(), lr=_RATE),
            noise_multiplier=_NOISE,
            max_grad_norm=_CLIP,
            expected_batch_size=_BATCH,
        )
        loss = ghost_loss.DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss(), "mean")
        for images, labels in _poisson_batches(work, client):
            optimizer.zero_grad()
            loss(module(images), labels).backward()
            optimizer.step()
