"""The schema: what TOML it takes, what it refuses, and that it can be written out again."""

import tomllib

import pytest

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.tasks import Schema

GOOD = """
client = "hospital"
person = "patient"
missing_values = ["", "-9"]

[label]
column = "readmitted"
values = ["no", "yes"]

[columns.age]
kind = "number"
range = [0, 110]
missing = "flag"

[columns."blood type"]
kind = "category"
values = ["A", "B", "AB", "0"]
unknown = "zero"

[columns.urgent]
kind = "boolean"

[columns.admitted]
kind = "date"
range = ["01/01/2020", "31/12/2024"]
format = "%d/%m/%Y"

[columns.note]
kind = "length"
range = [0, 2000]

[columns.remark]
kind = "text"
buckets = 64

[columns.id]
kind = "ignore"
"""


def read(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    return Schema.read(path)


def test_every_kind_is_read_and_written_again(tmp_path):
    schema = read(tmp_path, GOOD)
    assert schema.columns["age"].range == (0.0, 110.0)
    assert schema.columns["blood type"].values == ("A", "B", "AB", "0")
    assert schema.columns["admitted"].range[1] - schema.columns["admitted"].range[0] == 1826  # five years, two leap
    assert schema.label.goal == "classification"
    assert schema.missing_values == ("", "-9")
    again = Schema.from_dict(schema.to_dict(), source=schema.source)
    assert again == schema
    assert Schema.from_dict(tomllib.loads(GOOD)).columns == schema.columns


def test_a_range_of_dates_may_be_in_iso_whatever_the_file_writes(tmp_path):
    schema = read(tmp_path, GOOD)
    for ends in ('["2020-01-01", "2024-12-31"]', "[2020-01-01, 2024-12-31]"):
        iso = read(tmp_path, GOOD.replace('["01/01/2020", "31/12/2024"]', ends))
        assert iso.columns == schema.columns
    neither = GOOD.replace("31/12/2024", "31.12.2024")
    with pytest.raises(ConfigurationError, match=r"'31\.12\.2024' is no date written as YYYY-MM-DD or as %d/%m/%Y"):
        read(tmp_path, neither)


WRONG = {
    "a key on top": ('clientt = "x"', r"clientt.*did you mean 'client'"),
    "a key of a column": (
        '[columns.a]\nkind = "number"\nrang = [0, 1]',
        r"\[columns\.a\]: 'rang'.*did you mean 'range'",
    ),
    "a key of another kind": (
        '[columns.a]\nkind = "number"\nvalues = ["x"]',
        r"values.*choose one of: kind, range",
    ),
    "a kind": ('[columns.a]\nkind = "numeric"', r"kind.*'numeric'.*did you mean 'number'"),
    "no kind": ("[columns.a]\nrange = [0, 1]", r"\[columns\.a\] has no kind"),
    "a missing rule": ('[columns.a]\nkind = "number"\nmissing = "drop"', r"'drop'.*refuse, flag, middle"),
    "an empty range": ('[columns.a]\nkind = "number"\nrange = [5, 5]', r"\[columns\.a\]\.range is \[5, 5\]"),
    "a range of text": ('[columns.a]\nkind = "number"\nrange = ["0", "1"]', r"'0' is no number"),
    "an infinite range": ('[columns.a]\nkind = "number"\nrange = [0, inf]', "both finite"),
    "a date": ('[columns.a]\nkind = "date"\nrange = ["yesterday", "today"]', r"'yesterday' is no date"),
    "one value": ('[columns.a]\nkind = "category"\nvalues = ["x"]', "says nothing"),
    "a value twice": ('[columns.a]\nkind = "category"\nvalues = ["x", "x"]', r"lists 'x' twice"),
    "three truths": ('[columns.a]\nkind = "boolean"\nvalues = ["a", "b", "c"]', "word for false"),
    "values as text": ('[columns.a]\nkind = "category"\nvalues = "xyz"', "give a list"),
    "one class": ('[label]\ncolumn = "y"\nvalues = ["x"]', "two classes"),
    "classes and a range": ('[label]\ncolumn = "y"\nvalues = ["x", "z"]\nrange = [0, 1]', "values and a range"),
    "a role that is an input": ('client = "a"\n[columns.a]\nkind = "ignore"', r"remove \[columns\.a\]"),
    "a column that is no table": ('[columns]\na = "number"', "not a table"),
    "tokens beside a number": (
        '[columns.a]\nkind = "tokens"\n[columns.b]\nkind = "number"\nrange = [0, 1]',
        "tokens must be the only input",
    ),
    "not TOML": ("[columns.blood type]", r"not TOML.*need quotes"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what, tmp_path):
    text, message = WRONG[what]
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        read(tmp_path, text)


def test_a_missing_file_and_a_wrong_encoding_are_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nothing\.toml: cannot be read"):
        Schema.read(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes('client = "Münster"'.encode("latin-1"))
    with pytest.raises(ConfigurationError, match="save it as UTF-8"):
        Schema.read(tmp_path / "latin.toml")
    assert issubclass(UnknownNameError, ConfigurationError)
