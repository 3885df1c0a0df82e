"""Nothing about private records is used for free.

Two tasks that differ in one private record must agree in everything that does not pass a release: schema, scales,
categories, classes, sizes, model, initial weights, public and test records, warnings, every other record's inputs.
"""

import csv
import json

import numpy as np
import pytest

from privmarket.tasks import Schema, Task, _from_table as from_table

ROWS = 240
HEADER = ["site", "x", "kind", "flag", "y", "class", "person"]
ABOUT = {
    "x": {"kind": "number", "range": [0, 100], "missing": "flag"},
    "kind": {"kind": "category", "values": ["red", "green", "blue", "rare"], "missing": "flag", "unknown": "zero"},
    "flag": {"kind": "boolean", "values": ["no", "yes"], "missing": "flag"},
}


def table():
    rng = np.random.default_rng(5)
    rows = []
    for k in range(ROWS):
        x = round(float(rng.normal(50, 10)), 2)
        kind = str(rng.choice(["red", "green", "blue"]))
        y = round(2 * x + 5 * (kind == "red") + float(rng.normal(0, 5)), 2)
        rows.append(
            [
                f"site {k % 6}",
                str(x),
                kind,
                str(rng.choice(["no", "yes"])),
                str(y),
                "high" if y > 100 else "low",
                f"p{k // 12}",
            ]
        )
    return rows


# What one record may become: extremes of every column, other classes, and nothing at all.
CHANGES = {
    "a huge number": {"x": "99999999"},
    "a small number": {"x": "-1e30"},
    "a missing number": {"x": "NA"},
    "a rare category": {"kind": "rare"},
    "an unknown category": {"kind": "violet"},
    "a missing category": {"kind": ""},
    "another flag": {"flag": ""},
    "another class": {"class": "low", "y": "-1000000"},
    "the other class": {"class": "high", "y": "1000000"},
    "all of it": {"x": "0", "kind": "", "flag": "", "class": "high", "y": "0"},
}


def classification(path):
    columns = {**ABOUT, "y": {"kind": "ignore"}, "person": {"kind": "ignore"}}
    return Task.from_csv(
        path,
        label="class",
        client="site",
        public_share=0.15,
        test_share=0.2,
        schema=Schema.from_dict({"columns": columns}),
        model="mlp",
        name="task",
    )


def scaled_by_public_records(path):
    """No scale in the schema: the public records give it, and what missing cells mean is said."""
    columns = {
        "x": {"kind": "number", "missing": "flag"},
        "kind": {"kind": "category", "missing": "flag"},
        "flag": {"kind": "boolean", "missing": "flag"},
        "y": {"kind": "ignore"},
        "person": {"kind": "ignore"},
    }
    return Task.from_csv(
        path,
        label="class",
        client="site",
        public_share=0.15,
        test_share=0.2,
        schema=Schema.from_dict({"columns": columns}),
        name="task",
    )


def regression(path):
    columns = {**ABOUT, "class": {"kind": "ignore"}}
    return Task.from_csv(
        path,
        label="y",
        client="site",
        person="person",
        public_share=0.15,
        test_share=0.2,
        schema=Schema.from_dict({"columns": columns}),
        goal="regression",
        name="task",
    )


def with_no_public_records(path):
    about = {
        "label": {"column": "y", "range": [0, 300]},
        "columns": {**ABOUT, "class": {"kind": "ignore"}, "person": {"kind": "ignore"}},
    }
    return Task.from_csv(path, client="site", schema=Schema.from_dict(about), name="task")


MAKERS = {
    "classification": classification,
    "scaled by public records": scaled_by_public_records,
    "regression": regression,
    "no public records": with_no_public_records,
}


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([HEADER, *rows])
    return path


def a_private_row(task, rows):
    """The number of a row of the file that is private: its x is not among the public or test records."""
    put_aside = [records.inputs for records in (task.public, task.test) if records is not None]
    seen = set() if not put_aside else {float(one) for one in np.concatenate(put_aside)[:, 0]}
    column = task.pipeline.columns[0]
    for number, row in enumerate(rows):
        x = (float(row[1]) - column.centre) / column.spread
        if not any(abs(x - one) < 1e-6 for one in seen):
            return number
    raise AssertionError("every row was put aside")


def differences(one, other):
    """What two tasks differ in, of all that is used or shown without a release."""
    facts = {key: json.dumps(value, sort_keys=True) for key, value in one.public_facts().items()}
    others = {key: json.dumps(value, sort_keys=True) for key, value in other.public_facts().items()}
    found = [key for key in facts if facts[key] != others[key]]
    found += [] if one.describe() == other.describe() else ["describe"]
    found += [] if repr(one) == repr(other) else ["repr"]
    found += [] if one.clients == other.clients and (one.sizes == other.sizes).all() else ["sizes"]
    if one.private.inputs.shape != other.private.inputs.shape:
        return [*found, "shape of private records"]
    moved = (one.private.inputs != other.private.inputs).any(axis=1) | (one.private.labels != other.private.labels)
    found += [] if moved.sum() <= 1 else [f"{moved.sum()} private records"]
    return found


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", MAKERS)
def test_one_private_record_changes_nothing_else(kind, change, tmp_path):
    rows = table()
    before = MAKERS[kind](write(tmp_path / "a.csv", rows))
    at = a_private_row(before, rows)
    changed = [list(row) for row in rows]
    for column, value in CHANGES[change].items():
        changed[at][HEADER.index(column)] = value
    after = MAKERS[kind](write(tmp_path / "b.csv", changed))
    assert differences(before, after) == []
    same = (before.private.inputs == after.private.inputs).all()
    if CHANGES[change].keys() & {"x", "kind"}:
        assert not same, "the change was felt where it may be"
        assert before.digest() != after.digest()


def test_a_scaler_fitted_on_private_rows_is_caught(tmp_path, monkeypatch):
    """The subject that is broken on purpose: it scales and lists categories by all rows of the file."""
    gathered = from_table._gathered

    def everything(table, columns, _chosen):
        return gathered(table, columns, None)

    monkeypatch.setattr(from_table, "_gathered", everything)
    rows = table()
    before = scaled_by_public_records(write(tmp_path / "a.csv", rows))
    caught = {}
    for change, cells in CHANGES.items():
        changed = [list(row) for row in rows]
        for column, value in cells.items():
            changed[7][HEADER.index(column)] = value
        after = scaled_by_public_records(write(tmp_path / "b.csv", changed))
        caught[change] = differences(before, after)
    assert "pipeline" in caught["a huge number"]
    assert any("private records" in one for one in caught["a huge number"])
    assert "pipeline" in caught["a rare category"]
    assert "model" in caught["a rare category"], "even the model's shape gives it away"


def test_classes_read_off_private_labels_are_caught(tmp_path):
    """Another broken subject: arrays whose classes are listed from the private labels."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(40, 3)).astype(np.float32)
    clients = np.repeat(["a", "b"], 20)
    labels = np.tile([0, 1], 20)
    other = labels.copy()
    other[11] = 2

    def leaky(own):
        return Task.from_arrays(inputs, own, clients=clients, classes=np.unique(own).tolist())

    assert {"classes", "model"} <= set(differences(leaky(labels), leaky(other)))

    def sound(own):
        return Task.from_arrays(inputs, own, clients=clients, classes=3)

    assert differences(sound(labels), sound(other)) == []


def test_features_that_mix_records_are_refused():
    """Scaling by the mean of a batch of private records would be a release of its own."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(3, 1, size=(40, 3)).astype(np.float32)
    clients = np.repeat(["a", "b"], 20)
    labels = np.tile([0, 1], 20)
    with pytest.raises(Exception, match="depend on the records beside it"):
        Task.from_arrays(inputs, labels, clients=clients, classes=2, features=lambda x: x - x.mean(dim=0))
    task = Task.from_arrays(
        inputs, labels, clients=clients, classes=2, features=lambda x: x - x.mean(dim=1)[:, None]
    )
    np.testing.assert_allclose(task.private.inputs.mean(axis=1), 0, atol=1e-6)
