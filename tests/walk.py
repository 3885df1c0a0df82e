"""Counts the functions and modules of privmarket that one client's bid passes in one round.

`python -m tests.walk` prints the counts and the walk, in the simulation and on Flower's in-process grid;
`python -m tests.walk --write` puts the counts into docs/architecture.md. A round of three clients is traced with
`sys.setprofile` from its terms to its record, in the second round of a run, when caches are warm: what is counted
is what a reader has to follow. Comprehensions and lambdas count with the function they stand in.

`PARTS` names what the tree of 16 November 2026 (commit e7818cb) did not have, so that the rest can be compared
with `BEFORE`, which this file measured there. `THEN` is what was known of it when half of it became the aim.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Walk = dict[tuple[str, str], int]

# What was counted at commit e7818cb when the aim was set, by a program that is gone.
THEN = {"simulation": 114, "Flower": 183}
WHERE = {"simulation": "in a simulation", "Flower": "on Flower"}
# (functions, those of them that made floating-point noise) at commit e7818cb, by this file.
BEFORE = {"simulation": (115, 4), "Flower": (188, 4)}
# What came since: module → its functions, or all of them.
EVERY = ("",)
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "exact noise and its error bounds": {
        "privacy.release": EVERY,
        "privacy.integer_noise": EVERY,
        "privacy.noise": ("NoiseSource.cells", "NoiseSource.more_bytes"),
        "federated.local": ("NoisySum.of", "NoisySum.write"),
        "federated.gradients": ("summations", "conventional_products", "rounded_down"),
        "federated.layers": ("_add_product", "even_blocks"),
    },
    "a seller's policy, checks of a server's order": {
        "privacy.policy": EVERY,
        "flower.guard": EVERY,
        "flower.node_seller": ("Seller._check_terms",),
    },
}
PAGE = Path(__file__).parents[1] / "docs/architecture.md"
MARKS = "<!-- walk: written by `python -m tests.walk --write` -->", "<!-- end of walk -->"


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


def split(walk: Walk) -> dict[str, int]:
    """Functions of each part that came since, then of the rest, which the tree before had too."""
    found = {
        part: sum(
            module in homes and (homes[module] == EVERY or function in homes[module]) for module, function in walk
        )
        for part, homes in PARTS.items()
    }
    return {**found, "rest": len(walk) - sum(found.values())}


def table(walks: dict[str, Walk]) -> str:
    """The counts as the page shows them: all functions first, then like for like, then by package."""
    rows = [f"| functions on the way of a bid | {' | '.join(walks)} |", "|---" * (1 + len(walks)) + "|"]

    def add(words: str, figures: Iterable[object]) -> None:
        rows.append(f"| {words} | {' | '.join(map(str, figures))} |")

    parts = {title: split(walk) for title, walk in walks.items()}
    add("all (modules)", ("{} ({})".format(*counts(walk)) for walk in walks.values()))
    add("all in the tree before, as counted then", (THEN[title] for title in walks))
    add("as a share of that", (f"{len(walk) / THEN[title]:.0%}" for title, walk in walks.items()))
    for part in PARTS:
        add(f"new since: {part}", (parts[title][part] for title in walks))
    add("like for like: all without what is new", (parts[title]["rest"] for title in walks))
    before = {title: BEFORE[title][0] - BEFORE[title][1] for title in walks}
    add("the tree before, counted by this program", (BEFORE[title][0] for title in walks))
    add("the same without its noise", before.values())
    add("like for like, as a share of that", (f"{parts[title]['rest'] / before[title]:.0%}" for title in walks))
    for package in sorted({module.split(".")[0] for walk in walks.values() for module, _ in walk}):
        inside = [sum(module.split(".")[0] == package for module, _ in walk) for walk in walks.values()]
        add(f"of all, in `{package}`", inside)
    left = [f"{len(walk)} {WHERE[title]}, where it passed {THEN[title]}" for title, walk in walks.items()]
    return f"The functions that a bid passes: {'; '.join(left)}.\n\n" + "\n".join(rows)


def both() -> dict[str, Walk]:
    """The walks by title."""
    return {"simulation": simulation_walk(), "Flower": flower_walk()}


def on_page() -> str:
    """The counts that the page states."""
    return PAGE.read_text(encoding="utf-8").split(MARKS[0])[1].split(MARKS[1])[0].strip()


if __name__ == "__main__":
    walks = both()
    for title, walk in walks.items():
        print("{}: {} functions in {} modules".format(title, *counts(walk)))
        for module, function in walk:
            print(f"  {module}: {function}")
    print(table(walks))
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n{table(walks)}\n{MARKS[1]}{after}", encoding="utf-8")
