"""Several workers begin with the tests that take longest, and leave none out; none depends on those before it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from tests.conftest import LONG, long_first

TESTS = Path(__file__).parents[1]
NAMES = [f"tests/unit/test_{at}.py::test_it" for at in range(50)] + [f"tests/{kind}_x" for kind in LONG]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_each_worker_begins_with_its_part_of_the_long_ones(workers):
    order = long_first(NAMES, NAMES, workers)
    assert sorted(order) == sorted(NAMES)
    start = 0
    for worker in range(workers):  # as xdist divides them
        stretch = order[start : start + (len(order) - start) // (workers - worker)]
        start += len(stretch)
        long = [name.startswith("tests/unit/") for name in stretch]
        assert long == sorted(long), "a long test behind a short one"
        assert abs(long.count(False) - len(LONG) / workers) < 1


def test_few_tests_are_all_run():
    some = [f"tests/{kind}" for kind in LONG[:3]]
    assert sorted(long_first(some, some, 4)) == sorted(some)


@pytest.mark.parametrize("kind", LONG)
def test_every_long_test_exists(kind):
    file, _, name = kind.partition("::")
    assert f"def {name}" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("time", ["first", "second"])
def test_what_is_drawn_does_not_depend_on_the_tests_before(time):
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random()  # noqa: NPY002
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(0)))


def test_examples_are_the_same_in_every_run_and_have_no_deadline():
    assert settings().derandomize
    assert settings().deadline is None
