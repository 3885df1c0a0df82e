"""Counts the functions and modules of privmarket that one client's bid passes in one round.

`python -m tests.walk` prints the counts and the walk, in the simulation and on Flower's in-process grid. A round of
three clients is traced with `sys.setprofile` from its terms to its record, in the second round of a run, when
caches are warm: what is counted is what a reader has to follow. Comprehensions and lambdas count with the function
they stand in.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Walk = dict[tuple[str, str], int]


@contextmanager
def traced(walk: Walk) -> Iterator[None]:
    """Adds (module, function) → order of first call, for functions of privmarket called inside."""
    import privmarket

    home = str(Path(privmarket.__file__).parent) + "/"
    known: dict[CodeType, tuple[str, str] | None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call":
            if code not in known:
                inside = code.co_filename.startswith(home) and "<" not in code.co_name
                name = code.co_filename.removeprefix(home).removesuffix(".py").replace("/", ".")
                known[code] = (name, code.co_qualname) if inside else None
            place = known[code]
            if place is not None:
                walk.setdefault(place, len(walk))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def _config() -> Any:
    from privmarket.federated.config import FederationConfig, Training

    return FederationConfig(
        clients=3, rounds=3, budget=8.0, evaluate_every=3, seed=3, training=Training(model="logistic")
    )


def simulation_walk() -> Walk:
    """A round of the simulation."""
    from privmarket.federated.simulation import Federation

    walk: Walk = {}
    with Federation(_config()) as federation:
        state = federation.step(federation.start())
        with traced(walk):
            federation.step(state)
    return walk


def flower_walk() -> Walk:
    """A round of the same run on Flower's in-process grid, with wallets in files."""
    from privmarket.flower import federation_client, federation_server, run_in_process
    from privmarket.flower.server import MarketRun

    walk: Walk = {}
    step: Callable[[MarketRun, int], None] = MarketRun.step

    def second(self: MarketRun, number: int) -> None:
        if number != 1:
            return step(self, number)
        with traced(walk):
            return step(self, number)

    MarketRun.step = second  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_in_process(federation_server(_config()), federation_client(_config(), folder), 3)
    finally:
        MarketRun.step = step  # type: ignore[method-assign]
    return walk


def counts(walk: Walk) -> tuple[int, int]:
    """(functions, modules)."""
    return len(walk), len({module for module, _ in walk})


if __name__ == "__main__":
    for title, walk in (("simulation", simulation_walk()), ("Flower", flower_walk())):
        functions, modules = counts(walk)
        print(f"{title}: {functions} functions in {modules} modules")
        for module, function in walk:
            print(f"  {module}: {function}")
