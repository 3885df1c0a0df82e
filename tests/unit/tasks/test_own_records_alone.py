"""Tasks of a buyer who holds none of the sellers' records."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from privmarket.errors import ConfigurationError, DataError, PrivmarketError
from privmarket.tasks import Task, task as builtin

OURS = "age,plan,churn\n" + "".join(f"{20 + i % 50},{'ab'[i % 2]},{'yn'[i % 3 == 0]}\n" for i in range(60))
THEIRS = "shop,age,plan,churn\n" + "".join(f"s{i % 3},{20 + i % 50},{'ab'[i % 2]},y\n" for i in range(90))
SCHEMA = """client = "shop"
label = {column = "churn", values = ["n", "y"]}
[columns.age]
kind = "number"
range = [18, 100]
[columns.plan]
kind = "category"
values = ["a", "b"]
[columns.notes]
kind = "ignore"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {
        "ours.csv": OURS,
        "theirs.csv": THEIRS,
        "s.toml": SCHEMA,
        "sizes.csv": "client,records\nnorth,147\nsouth,9\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_own_records_are_read_as_beside_a_table_of_all_clients(folder):
    """The same inputs and labels as `from_csv` makes of the buyer's file; the client's column need not be there."""
    (folder / "s.toml").write_text(SCHEMA.replace('[columns.notes]\nkind = "ignore"\n', ""))
    alone = Task.from_own_records("ours.csv", schema="s.toml", records=30, clients=3)
    whole = Task.from_csv("theirs.csv", public="ours.csv", schema="s.toml")
    np.testing.assert_array_equal(alone.public.inputs, whole.public.inputs)
    np.testing.assert_array_equal(alone.public.labels, whole.public.labels)
    assert alone.classes == whole.classes
    assert alone.goal == whole.goal
    assert alone.pipeline == whole.pipeline
    known = whole.without_private_records()
    assert known.clients == ("s0", "s1", "s2")
    assert known.sizes.tolist() == [30, 30, 30]
    assert repr(known) == "Task('theirs', classification, 3 clients, 90 declared, 60 public, 0 test records)"


def test_columns_that_only_sellers_have_may_be_missing(folder):
    task = Task.from_own_records("ours.csv", schema="s.toml", records=30, clients=["a", "b"], test="ours.csv")
    assert task.clients == ("a", "b")
    assert len(task.test) == 60
    (folder / "s.toml").write_text(SCHEMA.replace('kind = "ignore"', 'kind = "number"\nrange = [0, 1]'))
    with pytest.raises(PrivmarketError, match="notes"):
        Task.from_own_records("ours.csv", schema="s.toml", records=30, clients=2)


def test_sizes_are_declared_one_by_one(folder):
    task = Task.from_own_records("ours.csv", schema="s.toml", records="sizes.csv")
    assert task.clients == ("north", "south")
    assert task.declared_sizes.tolist() == [150, 9]  # public numbers are rounded up
    assert Task.from_own_records("ours.csv", schema="s.toml", records={"x": 3, "y": 4}).sizes.tolist() == [3, 4]
    assert Task.from_own_records("ours.csv", schema="s.toml", records=5, clients=12).clients[0] == "client 01"


def test_nothing_is_known_of_private_records():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    task = Task.from_own_records((x, (x[:, 0] > 0).astype(np.int64)), records=10_000_000, clients=3)
    assert not task.has_private_records
    assert len(task.private) == 30_000_000
    assert task.private.inputs.base.nbytes <= 8  # no memory for so many records
    with pytest.raises(DataError, match="declared, and none of them is here"):
        task.records_of("client 1").tensors()
    other = Task.from_own_records((x, (x[:, 0] > 0).astype(np.int64)), records=5, clients=3)
    assert task.digest() != other.digest()
    small = pickle.loads(pickle.dumps(other))
    assert small.digest() == other.digest()
    assert not small.has_private_records


def test_built_in_tasks_without_their_private_records():
    task = builtin("breast-cancer", seed=1)
    known = task.without_private_records()
    assert known.sizes.tolist() == task.declared_sizes.tolist()
    assert not known.private.inputs.any()
    assert task.private.inputs.any()
    zeros = np.zeros((8, 2), dtype=np.float32)
    turns = np.arange(8) % 2
    persons = Task.from_arrays(zeros, turns, clients=turns, person=np.arange(8) // 2, classes=2)
    with pytest.raises(ConfigurationError, match="unit 'person'"):
        persons.without_private_records()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": 30}, "nothing says how many clients"),
        ({"records": 0, "clients": 3}, "records is 0"),
        ({"records": 30, "clients": 0}, "clients is 0"),
        ({"records": "sizes.csv", "clients": 3}, "clients is 3, and 2 declare"),
        ({"records": "sizes.csv", "clients": ["north", "west"]}, "'south' is none of the clients"),
        ({"records": {"north": 0}}, "'north' declares 0 records"),
        ({"records": "nowhere.csv"}, "nowhere.csv"),
        ({"records": "ours.csv"}, "no column 'client'"),
        ({"records": 30, "clients": 3, "label": "sick"}, "no column 'sick'"),
        ({"records": 30, "clients": 3, "classes": 2}, "classes beside a file"),
        ({"records": 30, "clients": 3, "own": [1, 2]}, "own records are list"),
    ],
)
def test_what_does_not_fit_is_refused(folder, changes, said):
    given = {"own": "ours.csv", "schema": "s.toml"} | changes
    with pytest.raises(PrivmarketError, match=said):
        Task.from_own_records(given.pop("own"), **given)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("west,many", "line 3, column 'records': 'many'"),
        ("north,5", "'north' is there twice"),
        (",5", "has no name"),
    ],
)
def test_a_file_of_sizes_names_the_line(folder, line, said):
    (folder / "sizes.csv").write_text(f"client,records\nnorth,147\n{line}\n")
    with pytest.raises(DataError, match=said):
        Task.from_own_records("ours.csv", schema="s.toml", records="sizes.csv")
