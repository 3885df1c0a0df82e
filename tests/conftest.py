"""Shared by all tests: small markets of every awkward kind, and in which order several workers run them."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from privmarket._counted import counted
from privmarket.market._bids import Bids

# Typer reads the signatures of all commands at every call: half of the cost of a command that refuses its input.
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)

# Every run tries the same examples, however slow the machine; `pytest --hypothesis-profile=default` tries new ones.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


def awkward_markets(rng: np.random.Generator, markets: int, clients: int) -> Bids:
    """(markets, clients) bids with ties, zeros, equal bids and very different scales mixed in."""
    v = rng.random((markets, clients))
    kind = rng.integers(6, size=(markets, 1))
    v = np.where(kind == 0, np.round(v * 4) / 4, v)  # ties and zeros
    v = np.where(kind == 1, v[:, :1], v)  # all equal
    v = np.where(kind == 2, v**6 * 100, v)  # skewed
    v = np.where(kind == 3, np.where(rng.random(v.shape) < 0.4, 0.0, v), v)  # many zeros
    epsilon = np.clip(np.where(kind % 2 == 0, rng.uniform(0.1, 5, v.shape), 1.0), 0.1, 5.0)
    epsilon = np.where(kind == 4, np.round(epsilon * 2) / 2 + 0.5, epsilon).clip(0.1, 5.0)
    return Bids(v, epsilon)


def awkward_budgets(rng: np.random.Generator, markets: int) -> np.ndarray:
    """(markets,) from next to nothing to more than everybody together asks."""
    return 10.0 ** rng.uniform(-3, 3, markets)


# Tests that wait for servers, browsers and deadlines, or compute long. Begun last, one of them would be all that is
# left to do; begun first, the others run meanwhile. Neighbours in this list run at the same time.
LONG = (
    "integration/test_flower_engines.py::test_a_deployed",
    "browser/test_dashboard.py::test_a_round",
    "integration/test_plan_command.py::test_plan_resumes",
    "reproduce/test_quick.py",
    "integration/test_federate_command.py::test_demo",
    "integration/test_flower_engines.py::test_ray",
    "studies/torture/test_broker_fuzz.py",
    "integration/test_flower_command.py::test_an_example",
    "integration/test_flower_engines.py::test_a_failed_run",
    "integration/test_broker_service.py",
    "studies/torture/test_broker_kill.py",
    "integration/test_notebooks.py",
    "integration/test_site.py",
    "integration/test_training_survives.py",
    "browser/test_dashboard.py",
)
Item = TypeVar("Item")


def long_first(items: Sequence[Item], names: Sequence[str], workers: int) -> list[Item]:
    """The items in an order in which each worker of xdist begins with its part of the long ones.

    xdist hands every worker a stretch of the list, all of one length; who is done takes from the end of another's.
    """
    kinds: dict[str, list[Item]] = {kind: [] for kind in LONG}
    rest: list[Item] = []
    for item, name in zip(items, names, strict=True):
        kind = next((kind for kind in LONG if name.removeprefix("tests/").startswith(kind)), None)
        (rest if kind is None else kinds[kind]).append(item)
    found = [group for group in kinds.values() if group]
    order: list[Item] = []
    for worker in range(workers):
        length = (len(items) - len(order)) // (workers - worker)
        mine = [item for group in found[worker::workers] for item in group]
        others = max(0, length - len(mine))
        order += [*mine, *rest[:others]]
        rest = rest[others:]
    return [*order, *rest]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first where several workers share the work."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = long_first(items, [item.nodeid for item in items], workers)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports leave no garbage: looking for it meanwhile is a fifth of the time that collecting takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Before the first test: the garbage collector is spared what was imported and collected, and looks less often.

    The server of `tests.forked` starts now, because the product would start it with less imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    if (forked := sys.modules.get("tests.forked")) is not None:
        forked.start_server()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Last of all, what was not tested on this machine: how many tests, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("not tested on this machine")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{counted(count, 'test')}: {reason}")


def pytest_runtest_setup() -> None:
    """Generators of the whole process begin anew: what a test draws does not depend on those that ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261115)
