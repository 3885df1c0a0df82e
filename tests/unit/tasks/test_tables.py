"""Tasks from files: what is read, how cells become inputs, and which rows are put aside."""

import csv

import numpy as np
import pandas as pd
import pytest

from privmarket.errors import DataError
from privmarket.tasks import Pipeline, Schema, Task, declared_size, read_table

SCHEMA = {
    "client": "site",
    "label": {"column": "sick", "values": ["no", "yes"]},
    "columns": {
        "age": {"kind": "number", "range": [0, 100], "missing": "flag"},
        "ward": {"kind": "category", "values": ["A", "B", "C"], "missing": "flag"},
        "urgent": {"kind": "boolean", "values": ["no", "yes"]},
        "day": {"kind": "date", "range": ["2020-01-01", "2020-01-11"]},
        "note": {"kind": "length", "range": [0, 10]},
    },
}
HEADER = ["site", "age", "ward", "urgent", "day", "note", "sick"]
ROWS = [
    ["east", "50", "A", "no", "2020-01-06", "12345", "no"],
    ["west", "100", "C", "yes", "2020-01-01", "", "yes"],
    ["east", "NA", "", "Yes", "2020-01-11", "0123456789 and more", "no"],
    ["west", "-5", "B", "no", "2021-01-01", "x", "yes"],
]


def write(path, header, rows, separator=","):
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=separator).writerows([header, *rows])
    return path


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "small.csv", HEADER, ROWS)


EXPECTED = {  # age, age is missing, ward A, B, C, ward is missing, urgent, day, note
    ("east", 0): [0, 0, 1, 0, 0, 0, -1, 0, 0],
    ("east", 1): [0, 1, 0, 0, 0, 1, 1, 1, 1],
    ("west", 0): [1, 0, 0, 0, 1, 0, 1, -1, -1],
    ("west", 1): [-1, 0, 0, 1, 0, 0, -1, 1, -0.8],
}


def test_every_kind_is_scaled_by_its_public_range(small):
    """Values beyond the range are moved to its nearer end; the middle stands in for what is missing."""
    task = Task.from_csv(small, schema=Schema.from_dict(SCHEMA))
    assert task.clients == ("east", "west")
    assert task.pipeline.inputs[:2] == ("age", "age is missing")
    for (client, row), wanted in EXPECTED.items():
        np.testing.assert_allclose(task.records_of(client).inputs[row], wanted, atol=1e-6)
    assert task.private.labels.tolist() == [0, 0, 1, 1]
    assert task.test is None
    assert task.public is None


@pytest.mark.parametrize("form", ["tsv", "semicolons", "quotes", "parquet", "folder"])
def test_the_same_table_in_other_files_gives_the_same_records(form, small, tmp_path):
    """Tabs; semicolons with decimal commas; quoted cells with line breaks; Parquet; a file per client."""
    wanted = Task.from_csv(small, schema=Schema.from_dict(SCHEMA))
    about = SCHEMA
    if form == "tsv":
        path = write(tmp_path / "t.tsv", HEADER, ROWS, "\t")
    elif form == "semicolons":
        rows = [
            [f"{cell},0" if cell.isdigit() and at == 1 else cell for at, cell in enumerate(row)] for row in ROWS
        ]
        path = write(tmp_path / "s.csv", HEADER, rows, ";")
    elif form == "quotes":
        rows = [[*row[:5], row[5].replace("and", "a\nd"), row[6]] for row in ROWS]
        path = write(tmp_path / "q.csv", HEADER, rows)
    elif form == "parquet":
        frame = pd.DataFrame(ROWS, columns=HEADER)
        frame["age"] = pd.to_numeric(frame["age"], errors="coerce")
        frame["day"] = pd.to_datetime(frame["day"])
        path = tmp_path / "p.parquet"
        frame.to_parquet(path)
    else:
        path = tmp_path / "sites"
        path.mkdir()
        for site in ("east", "west"):
            write(path / f"{site}.csv", HEADER[1:], [row[1:] for row in ROWS if row[0] == site])
        about = {key: value for key, value in SCHEMA.items() if key != "client"}
    task = Task.from_csv(path, schema=Schema.from_dict(about))
    assert task.clients == wanted.clients
    np.testing.assert_allclose(task.private.inputs, wanted.private.inputs)
    np.testing.assert_array_equal(task.private.labels, wanted.private.labels)


def test_a_pandas_frame_is_read_as_a_file_is(small):
    frame = pd.read_csv(small, keep_default_na=False, na_values=["NA"])
    columns = ["age", "ward", "urgent", "day", "note"]
    about = {"columns": SCHEMA["columns"]}
    task = Task.from_arrays(
        frame[columns],
        frame["sick"],
        clients=frame["site"],
        classes=["no", "yes"],
        schema=Schema.from_dict(about),
    )
    wanted = Task.from_csv(small, schema=Schema.from_dict(SCHEMA))
    np.testing.assert_allclose(task.private.inputs, wanted.private.inputs)
    np.testing.assert_array_equal(task.private.labels, wanted.private.labels)


def many(tmp_path, rows=400, seed=0):
    """A table of numbers, a category and two labels, of 8 clients of different sizes."""
    rng = np.random.default_rng(seed)
    sites = rng.choice([f"site {k}" for k in range(8)], rows, p=np.arange(1, 9) / 36)
    x = rng.normal(50, 10, rows).round(2)
    kind = rng.choice(["red", "green", "blue"], rows)
    y = (2 * x + 5 * (kind == "red") + rng.normal(0, 5, rows)).round(2)
    person = rng.integers(0, 60, rows)
    table = [[sites[k], x[k], kind[k], y[k], "high" if y[k] > 100 else "low", f"p{person[k]}"] for k in range(rows)]
    return write(tmp_path / "many.csv", ["site", "x", "kind", "y", "class", "person"], table)


def test_shares_are_put_aside_and_scale_the_rest(tmp_path):
    """No schema: kinds, scale, categories and classes are those of the public rows."""
    path = many(tmp_path)
    ignore = Schema.from_dict({"columns": {"y": {"kind": "ignore"}, "person": {"kind": "ignore"}}})
    task = Task.from_csv(
        path, label="class", client="site", public_share=0.1, test_share=0.25, schema=ignore, seed=3
    )
    assert (len(task.private), len(task.public), len(task.test)) == (260, 40, 100)
    assert task.classes == ("high", "low")
    np.testing.assert_allclose(task.public.inputs[:, 0].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(task.public.inputs[:, 0].std(), 1, rtol=1e-4)
    again = Task.from_csv(
        path, label="class", client="site", public_share=0.1, test_share=0.25, schema=ignore, seed=3
    )
    assert again.digest() == task.digest()
    other = Task.from_csv(
        path, label="class", client="site", public_share=0.1, test_share=0.25, schema=ignore, seed=4
    )
    assert other.digest() != task.digest()


def test_every_client_keeps_a_record(tmp_path):
    rows = [[f"c{k}", k, "ab"[k % 2]] for k in range(50)] + [["big", k, "ab"[k % 2]] for k in range(50)]
    path = write(tmp_path / "t.csv", ["client", "x", "y"], rows)
    about = Schema.from_dict({"columns": {"x": {"kind": "number", "range": [0, 50]}}})
    task = Task.from_csv(path, label="y", client="client", public_share=0.2, test_share=0.28, schema=about)
    assert len(task.clients) == 51
    assert task.sizes.min() == 1
    assert (len(task.public), len(task.test)) == (20, 28)


def test_all_rows_of_a_person_go_the_same_way_and_stand_together(tmp_path):
    path = many(tmp_path)
    about = Schema.from_dict({"columns": {"y": {"kind": "ignore"}}})
    task = Task.from_csv(
        path, label="class", client="site", person="person", public_share=0.1, test_share=0.2, schema=about
    )
    assert task.unit == "person"
    raw = [(row["site"], row["person"], row["class"]) for row in csv.DictReader(path.open(encoding="utf-8"))]
    groups = {}
    for site, person, _ in raw:
        groups[site, person] = groups.get((site, person), 0) + 1
    sizes = sorted(np.unique(task.private.persons, return_counts=True)[1].tolist())
    assert sum(sizes) == len(task.private)
    changes = np.flatnonzero(np.diff(task.private.persons)) + 1
    assert len(changes) + 1 == len(sizes), "rows of a person are neighbours"
    assert len(sizes) < len(groups), "whole persons were put aside"
    by_client = [len(np.unique(task.private.persons[rows])) for rows in task.slices()]
    assert task.units.tolist() == by_client
    assert sum(by_client) == len(sizes), "a number belongs to one client"


def test_files_of_public_and_test_records(tmp_path):
    path = many(tmp_path)
    own = write(tmp_path / "own.csv", ["kind", "x", "class"], [["red", 40, "low"], ["blue", 60, "high"]] * 5)
    new = write(tmp_path / "new.csv", ["class", "kind", "x"], [["low", "violet", 50]] * 3 + [["high", "red", 50]])
    about = Schema.from_dict({"columns": {"y": {"kind": "ignore"}, "person": {"kind": "ignore"}}})
    task = Task.from_csv(path, label="class", client="site", public=own, test=new, schema=about)
    assert len(task.private) == 400
    assert task.pipeline.inputs == ("x", "kind=blue", "kind=red")
    np.testing.assert_allclose(task.public.inputs[:2], [[-1, 0, 1], [1, 1, 0]])
    np.testing.assert_allclose(task.test.inputs[0], [0, 0, 0])  # a colour that the public records do not show
    columns = {one.name: one.scaled_by for one in task.pipeline.columns}
    assert columns == {"x": "public records", "kind": "public records"}


def test_a_regression_is_trained_on_a_scale_and_scored_in_its_unit(tmp_path):
    path = many(tmp_path)
    about = Schema.from_dict({"columns": {"class": {"kind": "ignore"}, "person": {"kind": "ignore"}}})
    task = Task.from_csv(
        path, label="y", client="site", goal="regression", public_share=0.2, test_share=0.2, schema=about
    )
    assert abs(float(task.public.labels.mean())) < 1e-5
    assert float(task.public.labels.std()) == pytest.approx(1, rel=1e-4)
    truth = task.target.restored(task.test.labels)
    assert truth.mean() > 60
    assert task.evaluate(task.test.labels, task.test) == {"r2": 1.0, "mae": 0.0, "rmse": 0.0}
    one_spread_off = task.evaluate(task.test.labels[:, None] + 1, task.test)
    assert one_spread_off["mae"] == pytest.approx(task.target.spread, rel=1e-5)
    np.testing.assert_allclose(task.predictions(task.test.labels), truth)


def test_labels_beyond_the_public_range_are_moved_for_training_only(tmp_path):
    rows = [["a", 1, 5], ["b", 2, 500], ["b", 2, -3]]
    path = write(tmp_path / "t.csv", ["c", "x", "y"], rows)
    new = write(tmp_path / "n.csv", ["x", "y"], [[1, 500], [2, 1]])
    about = {"label": {"column": "y", "range": [0, 10]}, "columns": {"x": {"kind": "number", "range": [0, 2]}}}
    task = Task.from_csv(path, client="c", test=new, schema=Schema.from_dict(about))
    np.testing.assert_allclose(task.private.labels, [0, 1, -1])
    np.testing.assert_allclose(task.target.restored(task.test.labels), [500, 1], rtol=1e-6)


def test_a_pipeline_can_be_kept_and_reads_new_rows(small, tmp_path):
    task = Task.from_csv(small, schema=Schema.from_dict(SCHEMA))
    kept = Pipeline.from_json(task.pipeline.to_json())
    assert kept == task.pipeline
    new = write(tmp_path / "new.csv", HEADER[:-1], [row[:-1] for row in ROWS])
    by_client = np.concatenate([task.records_of(name).inputs for name in ("east", "west")])
    np.testing.assert_array_equal(kept.encode_file(new), by_client[[0, 2, 1, 3]])


def test_texts_become_words_in_buckets_or_tokens(tmp_path):
    rows = [
        ["a", "red red fox", "no"],
        ["b", "", "yes"],
        ["b", "Red fox!", "no"],
        ["a", "a fox saw the red fox", "yes"],
    ]
    path = write(tmp_path / "t.csv", ["who", "text", "y"], rows)
    label = {"column": "y", "values": ["no", "yes"]}
    bag = {"label": label, "columns": {"text": {"kind": "text", "buckets": 32, "missing": "middle"}}}
    task = Task.from_csv(path, client="who", schema=Schema.from_dict(bag))
    first, _last, empty, short = task.private.inputs
    assert np.linalg.norm(first) == pytest.approx(1)
    assert sorted(first[first > 0].tolist()) == pytest.approx([1 / 5**0.5, 2 / 5**0.5])
    assert not empty.any()
    assert np.flatnonzero(short).tolist() == np.flatnonzero(first).tolist(), (
        "letters are lowered, marks are left out"
    )
    tokens = {
        "label": label,
        "columns": {"text": {"kind": "tokens", "buckets": 50, "length": 4, "missing": "middle"}},
    }
    task = Task.from_csv(path, client="who", schema=Schema.from_dict(tokens))
    assert task.private.inputs.dtype == np.int64
    red, again, fox, end = task.private.inputs[0].tolist()
    assert red == again != fox
    assert end == 0
    assert task.private.inputs.max() < 50
    assert type(task.build_model()[0]).__name__ == "Tokens"
    small_transformer = task.replace(model="transformer")
    assert small_transformer.outputs(small_transformer.build_model(), task.private.inputs).shape == (4, 2)


def test_row_numbers_without_a_name_are_left_out(tmp_path):
    path = write(tmp_path / "r.csv", ["", "who", "x"], [["1", "a", "2"], ["2", "b", "3"]])
    assert read_table(path).columns == ("who", "x")


@pytest.mark.parametrize(("held", "declared"), [(1, 1), (99, 99), (100, 100), (147, 150), (1203, 1300), (990, 990)])
def test_a_declared_size_has_two_digits(held, declared):
    assert declared_size(held) == declared


def test_with_public_records_no_schema_is_needed(tmp_path):
    """Numbers, days, categories, yes and no are told apart by the public records; missing cells get a flag."""
    rng = np.random.default_rng(2)
    rows = []
    for k in range(100):
        knots = "" if k % 4 == 0 else str(rng.integers(0, 300))
        day = f"2001-{1 + k % 12:02}-{1 + k % 28:02}"
        rows.append(
            [f"c{k % 3}", day, rng.choice(["dawn", "dusk", "noon"]), knots, ("yes", "no")[k % 2], k % 5 > 2]
        )
    path = write(tmp_path / "t.csv", ["who", "day", "time", "knots", "known", "hit"], rows)
    task = Task.from_csv(path, label="hit", client="who", public_share=0.3)
    kinds = {one.name: (one.about.kind, one.about.missing, one.scaled_by) for one in task.pipeline.columns}
    assert kinds == {
        "day": ("date", "refuse", "public records"),
        "time": ("category", "refuse", "public records"),
        "knots": ("number", "flag", "public records"),
        "known": ("boolean", "refuse", "public records"),
    }
    assert task.classes == ("False", "True")
    assert "scaled by the public records: day, time, knots, known" in task.describe()


def test_progress_is_told(tmp_path):
    told = []
    path = many(tmp_path, rows=5000)
    ignore = Schema.from_dict({"columns": {"y": {"kind": "ignore"}, "person": {"kind": "ignore"}}})
    Task.from_csv(
        path,
        label="class",
        client="site",
        public_share=0.1,
        schema=ignore,
        progress=lambda *told_: told.append(told_),
    )
    assert told[:3] == [(2000, 0), (4000, 0), (5000, 0)]
    assert told[-1] == (5000, 5000)


# --- how numbers are written


def read_numbers(path, *cells, separator=";", other="7"):
    """The column x of a file with these cells, beside a column of other numbers."""
    rows = [[f"s{i % 2}", cell, other, "ab"[i % 2]] for i, cell in enumerate(cells)]
    file = write(path / "numbers.csv", ["who", "x", "z", "y"], rows, separator)
    schema = {
        "client": "who",
        "label": {"column": "y", "values": ["a", "b"]},
        "columns": {name: {"kind": "number", "range": [-10_000, 10_000]} for name in "xz"},
    }
    task = Task.from_csv(file, schema=Schema.from_dict(schema, source="s.toml"))
    held = dict(zip(task.clients, (iter(task.private.inputs[rows, 0]) for rows in task.slices()), strict=True))
    return [round(1e4 * float(next(held[f"s{i % 2}"])), 1) for i in range(len(cells))]


def test_decimal_commas_where_columns_are_separated_otherwise(tmp_path):
    written = ["1,5", "-2,25e1", "1.234,5", "1.234.567", "7"]
    assert read_numbers(tmp_path, *written) == [1.5, -22.5, 1234.5, 10_000.0, 7.0], "the range ends at 10,000"
    assert read_numbers(tmp_path, "1.5", "2.5", "1.183", "1e3") == [1.5, 2.5, 1.2, 1000.0]
    assert read_numbers(tmp_path, "1.5", "2.5", separator=",") == [1.5, 2.5]


@pytest.mark.parametrize("cell", ["1.183", "38.95", "1.23,4", "12.34.56,7"])
def test_two_ways_of_writing_numbers_in_a_file_are_refused(tmp_path, cell):
    """1.183 beside a decimal comma, even one in another column, may be one thousand or one."""
    for cells, other in ((["1,5", cell], "7"), (["1", cell], "0,5")):
        with pytest.raises(DataError, match=r"numbers\.csv, line 3, column 'x': ") as said:
            read_numbers(tmp_path, *cells, other=other)
        if cell in ("1.183", "38.95"):
            first = "'1,5' in line 2, column 'x'" if other == "7" else "'0,5' in line 2, column 'z'"
            assert f"has a decimal point, and {first} a comma" in str(said.value)
