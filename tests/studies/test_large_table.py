"""The large table of the scale page: its shape, that it can be learned from, and how a command is watched."""

import csv

import numpy as np
import pytest

import privmarket as pm
from privmarket_studies import large_table


def test_sizes_add_up_and_some_clients_hold_one_row():
    sizes = large_table.client_sizes(np.random.default_rng(0), 100_000, 1_000)
    assert (int(sizes.sum()), sizes.size) == (100_000, 1_000)
    assert np.count_nonzero(sizes == 1) >= 10
    assert sizes.min() == 1
    assert sizes.max() > 10 * sizes.mean()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    large_table.make(folder, rows=900, clients=40, own=60, test=200)
    return folder


def test_the_table_is_what_it_says_and_the_same_again(small, tmp_path):
    large_table.make(tmp_path, rows=900, clients=40, own=60, test=200)
    for name in ("table.csv", "ours.csv", "test.csv", "table.toml"):
        assert (tmp_path / name).read_bytes() == (small / name).read_bytes()
    with (small / "table.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == large_table.header()
    assert {len(row) for row in rows} == {50}
    task = pm.Task.from_csv(
        small / "table.csv", schema=small / "table.toml", public=small / "ours.csv", test=small / "test.csv"
    )
    assert (len(task.clients), len(task.private), len(task.public), len(task.test)) == (40, 900, 60, 200)
    assert task.sizes.min() == 1


def test_a_command_is_timed_and_one_that_fails_is_no_figure(small, monkeypatch):
    monkeypatch.setitem(large_table.COMMANDS, "version", "--version")
    figures = large_table.measure(small, "version")
    assert figures["wall_seconds"] >= 0
    assert figures["peak_megabytes"] > 1
    monkeypatch.setitem(large_table.COMMANDS, "wrong", "federate --data nothing.csv")
    with pytest.raises(RuntimeError, match=r"nothing\.csv: no such file"):
        large_table.measure(small, "wrong")


def test_the_page_states_what_was_kept():
    figures: large_table.Figures = {
        "command": "privmarket federate …",
        "wall_seconds": 200.0,
        "processor_seconds": 150.0,
        "peak_megabytes": 900,
        "first_output_seconds": 2.1,
        "said": [],
        "python": "3.11.7",
        "load": 1.0,
    }
    page = large_table.page({"federate, aggregate trust": figures})
    assert "| federate, aggregate trust | 2.5 min | 0.9 GB | 2.1 s | `" in page
    assert large_table.page(large_table.read()) == large_table.PAGE.read_text(encoding="utf-8")
