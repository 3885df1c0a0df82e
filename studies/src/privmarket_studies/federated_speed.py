"""How fast a private round is, beside Opacus on the same work and beside our own round without privacy.

The work: 100 clients with 600 records of 784 numbers each, an MLP 784-128-64-10, Poisson batches of 32 expected
records, one pass (19 steps), clipping to 1, noise multiplier 1. Everything computes in one thread, and processor
time is what counts. The contenders take turns, so that a busy machine slows all of them alike; the median turn of
each counts, and how far separate runs in fresh processes lie apart is stated. With a checkout of an older tree its
rounds take turns with ours, of one full-batch step and of several sampled ones.

Beside that, one full-batch step of each client, exact sums and noise included, over a plain backward pass on the
same rows and beside Opacus' ghost clipping: the same MLP, a CNN of two convolutions on images of 32 × 32 × 3, and
a transformer block of width 64 on 32 tokens. There the best turn of each contender counts, and of several lengths
of the plain pass the fastest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privmarket
from privmarket._lazy import late
from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._accountant import RdpAccountants
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid
from privmarket.training import (
    FULL_BATCH_CHUNK,
    SMALL_BATCH_CHUNK,
    ClientRecords,
    LocalPlan,
    PrivateModel,
    build_model,
    build_network,
    one_thread,
    plain_updates,
    private_updates,
)

# Opacus may be missing; its rows are left out then.
grad_sample, optimizers = late("opacus.grad_sample"), late("opacus.optimizers")
ghost_module = late("opacus.grad_sample.grad_sample_module_fast_gradient_clipping")
ghost_optimizer = late("opacus.optimizers.optimizer_fast_gradient_clipping")
ghost_loss = late("opacus.utils.fast_gradient_clipping_utils")

_BATCH, _CLIP, _NOISE, _RATE = 32, 1.0, 1.0, 0.1
_SHAPE = (1, 28, 28)
# Networks of the full-batch steps, and the shapes of their records.
STEPS = {"mlp": (1, 28, 28), "cnn": (3, 32, 32), "transformer": (32, 64)}
_PASSES = (120, 600, 2000)
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
        steps: network → contender → seconds of a full-batch step of all clients, turn by turn.
    """

    clients: int
    records: int
    turns: dict[str, list[float]]
    growth: dict[int, float]
    accounting_seconds: float
    draws_per_second: float
    steps: dict[str, dict[str, list[float]]] = field(default_factory=dict)

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
        for name, contenders in self.steps.items():
            best = {contender: min(each) for contender, each in contenders.items()}
            plain = min(best[contender] for contender in best if contender.startswith("backward"))
            found[f"{name} step over backward"] = best["private"] / plain
            if "opacus ghost clipping" in best:
                found[f"opacus ghost clipping over {name} step"] = best["opacus ghost clipping"] / best["private"]
        return found

    def to_dict(self) -> dict[str, object]:
        """Plain data, with the ratios."""
        return {**asdict(self), "seconds": self.seconds, "ratios": self.ratios}


@dataclass(frozen=True, eq=False)
class _Work:
    """Random records of `clients` clients, for all contenders alike."""

    model: PrivateModel
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
    steps: tuple[str, ...] = tuple(STEPS),
    progress: Callable[[str], None] = lambda _: None,
) -> SpeedReport:
    """Times every contender `turns` times, in turn; `before` is the checkout of an older tree."""
    work = _work(clients, records)
    # A process makes the tables of the integer noise once, in a fraction of a second; it is no part of a round.
    integer_noise.digit_tables()
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
        stepped = {}
        for name in steps:
            progress(f"full-batch step: {name}")
            stepped[name] = full_batch(name, clients, records, turns=turns, opacus=opacus)
    return SpeedReport(clients, records, taken, grown, accounting_seconds(100, 200), draws_per_second(), stepped)


class TransformerBlock(nn.Module):
    """Attention and a feed-forward layer on tokens of width 64, each behind a norm, and a head on their mean."""

    def __init__(self, width: int = 64, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.joint = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, tokens, width) → (rows, classes)."""
        rows, count, width = tokens.shape
        joint = self.joint(self.norms[0](tokens)).view(rows, count, 3, self.heads, width // self.heads)
        query, key, value = joint.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(rows, count, width)
        tokens = tokens + self.mixed(mixed)
        tokens = tokens + self.narrow(F.gelu(self.wide(self.norms[1](tokens))))
        logits: Tensor = self.head(self.norms[2](tokens).mean(1))
        return logits


def full_batch(
    name: str, clients: int, records: int, *, turns: int = 3, opacus: bool = True
) -> dict[str, list[float]]:
    """Processor seconds of one full-batch step of all clients, contender by contender, turn by turn."""
    generator = torch.Generator().manual_seed(0)
    shape = STEPS[name]
    inputs = torch.randn(records, *shape, generator=generator)  # every client holds the same, to save memory
    labels = torch.randint(0, 10, (records,), generator=generator)

    def build() -> nn.Module:
        return TransformerBlock() if name == "transformer" else build_network(name, shape, 10)

    module = build()
    model = PrivateModel(module)
    weights = model.built_weights()
    plan = LocalPlan(1, 1.0, _CLIP, _RATE, float(records))
    chunk = min(FULL_BATCH_CHUNK, clients)
    many = ClientRecords(inputs.repeat(chunk, *[1] * len(shape)), labels.repeat(chunk), [records] * chunk)

    def private() -> None:
        for _ in range(0, clients, chunk):
            sources = [NoiseSource.from_system() for _ in range(chunk)]
            private_updates(model, weights, many, plan, [_NOISE] * chunk, sources)

    def backward(rows: int) -> None:
        for _ in range(0, clients, chunk):
            for start in range(0, chunk * records, rows):
                part = slice(start, start + rows)
                module.zero_grad()
                losses = F.cross_entropy(module(many.inputs[part]), many.labels[part], reduction="sum")
                torch.autograd.backward(losses)

    def ghost() -> None:
        for client in range(clients):
            part = slice(client % chunk * records, (client % chunk + 1) * records)
            wrapped, optimizer, loss = _ghost_clipping(build(), records)
            optimizer.zero_grad()
            loss(wrapped(many.inputs[part]), many.labels[part]).backward()
            optimizer.step()

    contenders: dict[str, Callable[[], None]] = {"private": private}
    contenders |= {f"backward, {rows} rows": partial(backward, rows) for rows in _PASSES}
    if opacus:
        contenders["opacus ghost clipping"] = ghost
    taken: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(turns):
        for contender, work in contenders.items():
            start = time.process_time()
            work()
            taken[contender].append(time.process_time() - start)
    return taken


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
    seconds = 0.0
    for _ in range(2):  # the curves of the noise grid are computed once per process: the second turn counts
        start = time.perf_counter()
        accountants = RdpAccountants(clients)
        for entry in events:
            accountants.compose(entry)
        accountants.get_epsilon(1e-5)
        seconds = time.perf_counter() - start
    return seconds


def _seconds(contender: Callable[[_Work], None], work: _Work) -> float:
    # Processor time of this one thread: on a shared machine the clock on the wall measures the neighbours.
    start = time.process_time()
    contender(work)
    return time.process_time() - start


def _work(clients: int, records: int) -> _Work:
    generator = torch.Generator().manual_seed(0)
    model = build_model("mlp", _SHAPE, 10)
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
    for client in range(work.clients):
        module, optimizer, loss = _ghost_clipping(_network(), _BATCH)
        for images, labels in _poisson_batches(work, client):
            optimizer.zero_grad()
            loss(module(images), labels).backward()
            optimizer.step()


def _ghost_clipping(network: nn.Module, batch: int) -> tuple[Any, Any, Any]:
    """Opacus's module, optimizer and loss for ghost clipping."""
    warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
    module = ghost_module.GradSampleModuleFastGradientClipping(
        network, max_grad_norm=_CLIP, use_ghost_clipping=True
    )
    optimizer = ghost_optimizer.DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=_RATE),
        noise_multiplier=_NOISE,
        max_grad_norm=_CLIP,
        expected_batch_size=batch,
    )
    loss = ghost_loss.DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss(), "mean")
    return module, optimizer, loss
