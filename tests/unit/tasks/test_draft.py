"""`privmarket data describe`: a draft of a schema that marks what it took from the records."""

import subprocess
import sys
import tomllib
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.errors import DataError, PrivmarketError
from privmarket.tasks import Schema, Task, draft_schema

HEADER = "site,age,ward type,urgent,day,note,id,empty,always,0or1,price,sick"
MARK = "taken from this file: public only if you say so"


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    lines = [HEADER]
    for k in range(80):
        ward = '"a, b"' if k % 3 else "c"
        age = "" if k == 5 else str(20 + k % 60)
        note = f"the patient was seen {k} times and went home"
        day = f"2024-0{1 + k % 9}-{10 + k % 18}"
        price = f"{rng.normal(100, 5):.3f}"
        lines.append(
            f"s{k % 4},{age},{ward},{'yes' if k % 2 else 'no'},{day},{note},ID-{k:05},,x,{k % 2},{price},{k % 3}"
        )
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_draft_is_a_schema_that_fits_its_file(table):
    text = draft_schema(table, label="sick", client="site")
    schema = Schema.from_dict(tomllib.loads(text), source="draft")
    kinds = {name: one.kind for name, one in schema.columns.items()}
    assert kinds == {
        "age": "number",
        "ward type": "category",
        "urgent": "category",
        "day": "date",
        "note": "text",
        "id": "ignore",
        "empty": "ignore",
        "always": "ignore",
        "0or1": "boolean",
        "price": "number",
    }
    assert schema.columns["age"].range == (20, 79)
    assert schema.columns["age"].missing == "flag"
    assert schema.columns["ward type"].values == ("a, b", "c")
    assert schema.label.values == ("0", "1", "2")
    task = Task.from_csv(table, schema=schema, test_share=0.2)
    assert len(task.clients) == 4
    assert task.warnings
    assert "public only if you say so" in task.warnings[0]
    confirmed = text.replace('taken_from = "t.csv"\n', "")
    assert Task.from_csv(table, schema=Schema.from_dict(tomllib.loads(confirmed))).warnings == ()


def test_every_range_and_value_is_marked(table):
    """Whatever the draft says about the records carries the mark; a line without it is caught."""
    text = draft_schema(table, label="sick", client="site")

    def unmarked(lines):
        return [line for line in lines if line.startswith(("range", "values", "missing")) and MARK not in line]

    assert unmarked(text.splitlines()) == []
    assert text.count(MARK) == 8
    assert unmarked([*text.splitlines(), "range = [0, 1]"]) == ["range = [0, 1]"]


def test_roles_may_be_left_open_and_goals_given(table):
    text = draft_schema(table)
    assert '# client = "…"' in text
    assert '# column = "…"' in text
    tomllib.loads(text)
    text = draft_schema(table, label="sick", goal="regression")
    assert tomllib.loads(text)["label"]["range"] == [0, 2]
    assert tomllib.loads(draft_schema(table, label="price"))["label"]["range"][0] > 50
    with pytest.raises(DataError, match="more than 50 different values"):
        draft_schema(table, label="price", goal="classification")
    with pytest.raises(DataError, match="more than 20 different texts"):
        draft_schema(table, label="id")


def test_other_files_give_the_same_draft(table, tmp_path):
    frame = pd.read_csv(table, dtype={"sick": str})
    frame.to_parquet(tmp_path / "t.parquet")
    wanted = tomllib.loads(draft_schema(table, label="sick", client="site"))
    found = tomllib.loads(draft_schema(tmp_path / "t.parquet", label="sick", client="site"))
    assert found["columns"] == wanted["columns"]
    folder = tmp_path / "sites"
    folder.mkdir()
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    found = tomllib.loads(draft_schema(folder, label="sick"))
    assert "client" not in found
    assert set(found["columns"]) == set(wanted["columns"])


def test_the_command_prints_the_draft_and_says_to_check_it(table):
    done = CliRunner().invoke(app, ["data", "describe", str(table), "--label", "sick", "--client", "site"])
    assert done.exit_code == 0, done.output
    assert done.stdout == draft_schema(table, label="sick", client="site")
    assert "8 lines were taken from t.csv: check each of them" in done.stderr


def test_wrong_columns_are_named(table, tmp_path):
    with pytest.raises(PrivmarketError, match=r"no column 'sik' for the label .did you mean 'sick'"):
        draft_schema(table, label="sik")
    (tmp_path / "none.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(DataError, match="no records below the header"):
        draft_schema(tmp_path / "none.csv")


def test_a_draft_needs_neither_torch_nor_pandas(table):
    """A schema is written where no model is trained; a client that bids needs no torch either."""
    code = (
        "import sys, privmarket as pm; "
        f"pm.tasks.draft_schema({str(table)!r}, label='sick'); pm.tasks.load_dataset; "
        "pm.tasks.dirichlet_partition; pm.tasks.Schema; pm.tasks.Task; pm.tasks.task; "
        "print([name for name in ('torch', 'pandas', 'sklearn', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("form", ["", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d"])
def test_dates_are_known_by_how_they_are_written(tmp_path, form):
    """The draft finds the format and the range, and so do public records without a schema."""
    first = datetime(2023, 1, 1, 13, 45)
    days = [first + timedelta(days=k) for k in range(120)]
    rows = [f"s{k % 3};{day.strftime(form or '%Y-%m-%d')};{k % 2}" for k, day in enumerate(days)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["site;day;sick", *rows]) + "\n", encoding="utf-8")
    schema = Schema.from_dict(tomllib.loads(draft_schema(path, label="sick", client="site")))
    day = schema.columns["day"]
    assert (day.kind, day.format) == ("date", form)
    assert day.range == (first.toordinal(), first.toordinal() + 119)
    guessed = Task.from_csv(path, label="sick", client="site", public_share=0.4, seed=1).pipeline.columns[0].about
    assert (guessed.kind, guessed.format) == ("date", form)


def test_a_date_that_may_be_read_in_two_ways_is_pointed_out(tmp_path):
    rows = [f"s{k % 3},0{1 + k % 9}/0{1 + k % 7}/2023,{k % 2}" for k in range(60)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["site,day,sick", *rows]) + "\n", encoding="utf-8")
    text = draft_schema(path, label="sick", client="site")
    assert 'format = "%d/%m/%Y"' in text
    assert "# every date would fit %m/%d/%Y as well: check which is meant" in text
    mixed = path.read_text("utf-8") + "s0,2023-01-01,1\n"
    path.write_text(mixed, encoding="utf-8")
    assert 'kind = "date"' not in draft_schema(path, label="sick", client="site")


def test_a_column_of_numbers_with_an_odd_cell_says_how_many_and_which(tmp_path):
    path = tmp_path / "odd.csv"
    rows = [f"s{k % 2};{k},{k % 10};{'no' if k % 3 else 'yes'}" for k in range(80)]
    rows[40] = "s0;12.34;yes"
    path.write_text("who;spend;left\n" + "\n".join(rows) + "\n", encoding="utf-8")
    text = draft_schema(path, label="left", client="who")
    assert Schema.from_dict(tomllib.loads(text), source="draft").columns["spend"].range == (0, 79.9)
    assert "# 79 of 80 cells are numbers; the first that is not: '12.34' in line 42. Mend it" in text
    path.write_text(path.read_text(encoding="utf-8").replace("12.34", "1.234,5"), encoding="utf-8")
    assert "cells are numbers" not in draft_schema(path, label="left", client="who")
