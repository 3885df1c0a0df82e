"""What is wrong with a table, a model or a loss is said in one line with file, line, column and remedy."""

import numpy as np
import pytest
import torch
from torch import nn

from privmarket.errors import PrivmarketError
from privmarket.tasks import Schema, Task, load_task, read_table

LABEL = {"column": "y", "values": ["no", "yes"]}
X = {"x": {"kind": "number", "range": [0, 10]}}
GOOD = "who,x,y\na,1,no\nb,2,yes\na,3,yes\n"


def made(tmp_path, text, about=None, name="t.csv", **settings):
    path = tmp_path / name
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text, encoding="utf-8")
    schema = Schema.from_dict({"label": LABEL, "columns": X} if about is None else about, source="s.toml")
    given = {"label": "y", "client": "who", "schema": schema, **settings}
    return Task.from_csv(path, **given)


def test_the_good_table_is_good(tmp_path):
    assert made(tmp_path, GOOD).clients == ("a", "b")


# text of the file, what the message says, further settings
FILES = {
    "a wrong label column": (GOOD, r"t\.csv: no column 'yy' for the label \(did you mean 'y'\?", {"label": "yy"}),
    "a wrong client column": (GOOD, r"no column 'whom' for the client \(did you mean 'who'", {"client": "whom"}),
    "a wrong person column": (GOOD, r"no column 'p' for the person", {"person": "p"}),
    "no label": (GOOD, r"which column is the label\? .*--label", {"label": None, "schema": None}),
    "no client": (GOOD, r"which column names the client\? .*--client", {"client": None}),
    "label and client alike": (GOOD, "both the", {"client": "y"}),
    "one client": (GOOD.replace("\nb", "\na"), r"one client, 'a' \(name a column with at least two", {}),
    "names that differ in case": (
        GOOD + "A,3,no\n",
        r"line 5, column 'who': client 'A' looks like 'a' \(line 2\)",
        {},
    ),
    "names that differ in spaces": (GOOD + "b ,3,no\n", r"client 'b ' looks like 'b'", {}),
    "a client without a name": (GOOD + ",3,no\n", r"line 5, column 'who': no name", {}),
    "text in numbers": (GOOD + "a,many,no\n", r"line 5, column 'x': 'many' is no number", {}),
    "an infinity": (GOOD + "a,inf,no\n", r"line 5, column 'x': 'inf' \(give a finite number\)", {}),
    "NaN": (GOOD + "a,nan,no\n", r'line 5, column \'x\': no value .*\[columns\.x\] missing = "flag"', {}),
    "an empty cell": (GOOD + "a,,no\n", r"line 5, column 'x': no value", {}),
    "a class that the schema lacks": (
        GOOD + "a,3,maybe\n",
        r"line 5, column 'y': class 'maybe' is none of no, yes",
        {},
    ),
    "no label in a row": (GOOD + "a,3,\n", r"line 5, column 'y': no label", {}),
    "a row too short": (GOOD + "a,3\n", r"line 5: 2 fields where the header has 3", {}),
    "a row too long": (GOOD + "a,3,no,no\n", r"line 5: 4 fields where the header has 3", {}),
    "columns of one name": ("who,x,x,y\na,1,2,no\n", r"line 1: column 'x' appears twice \(columns 2 and 3\)", {}),
    "a column without a name": ("who,x,,y\na,1,2,no\n", r"line 1: column 3 has no name", {}),
    "an empty file": ("", r"t\.csv: the file is empty", {}),
    "a header alone": ("who,x,y\n", r"no records below the header", {}),
    "spaces between columns": ("who x y\na 1 no\n", r"only one column, 'who x y' \(separate columns by commas", {}),
    "broken quotes": ('who,x,y\na,"1,no\n', r"not a CSV file", {}),
    "a column without a scale": (
        "who,x,z,y\na,1,5,no\nb,1,5,yes\n",
        r"column 'z' has no public scale.*\[columns\.z\]",
        {},
    ),
    "a folder's option": (
        GOOD,
        r"public and public_share are both given",
        {"public": "t.csv", "public_share": 0.1},
    ),
    "a share of 1": (GOOD, r"public_share is 1", {"public_share": 1.0}),
    "shares of everything": (GOOD, r"leave no private records", {"public_share": 0.5, "test_share": 0.5}),
    "a share that is too small": (
        GOOD,
        r"public_share of 0\.01 of 3 records leaves no public record",
        {"public_share": 0.01},
    ),
    "an unknown goal": (GOOD, r"did you mean 'classification'", {"goal": "classificaton"}),
    "a goal against the schema": (GOOD, r"gives the label values", {"goal": "regression"}),
    "an unknown model": (GOOD, r"unknown model 'linea' \(did you mean 'linear'", {"model": "linea"}),
    "a model for images": (GOOD, r"a CNN takes images", {"model": "cnn"}),
    "a model for tokens": (GOOD, r"'embedding' for inputs that are no tokens", {"model": "embedding"}),
    "an unknown score": (GOOD, r"unknown score 'auk' \(did you mean 'auc'", {"score": "auk"}),
    "a score of regressions": (GOOD, r"score 'mae' does not fit", {"score": "mae"}),
}


@pytest.mark.parametrize("what", FILES)
def test_a_bad_file_is_refused_in_one_line(what, tmp_path, monkeypatch):
    text, message, settings = FILES[what]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrivmarketError, match=message) as caught:
        made(tmp_path, text, **settings)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_wrong_encodings_name_the_line(tmp_path):
    with pytest.raises(PrivmarketError, match=r"t\.csv, line 3: not UTF-8 text \(save the file as UTF-8\)"):
        made(tmp_path, "who,x,y\na,1,no\nMünster,2,yes\n".encode("latin-1"))
    with pytest.raises(PrivmarketError, match="not UTF-8"):
        made(tmp_path, GOOD.encode("utf-16"))


def test_a_schema_that_does_not_fit(tmp_path):
    about = {"label": LABEL, "columns": {**X, "weight": {"kind": "number", "range": [0, 1]}}}
    with pytest.raises(PrivmarketError, match=r"no column 'weight' for the schema s\.toml"):
        made(tmp_path, GOOD, about)
    about = {"label": LABEL, "columns": {"x": {"kind": "category", "values": ["1", "2"]}}}
    with pytest.raises(PrivmarketError, match=r"line 4, column 'x': '3' is none of 1, 2 \(mend it, or add it"):
        made(tmp_path, GOOD, about)
    about = {"label": LABEL, "columns": {"x": {"kind": "boolean", "values": ["1", "2"]}}}
    with pytest.raises(PrivmarketError, match=r"line 4, column 'x': '3' is none of 1, 2"):
        made(tmp_path, GOOD, about)
    about = {"label": LABEL, "columns": {"x": {"kind": "date", "range": ["2020-01-01", "2021-01-01"]}}}
    with pytest.raises(PrivmarketError, match=r"line 2, column 'x': '1' is no date written as YYYY-MM-DD"):
        made(tmp_path, GOOD, about)
    about = {"label": LABEL, "columns": {"x": {"kind": "ignore"}}}
    with pytest.raises(PrivmarketError, match="no column of inputs is left"):
        made(tmp_path, GOOD, about)
    about = {"label": LABEL, "columns": {"x": {"kind": "number"}}}
    with pytest.raises(PrivmarketError, match=r"add to the schema: \[columns\.x\] range = \[low, high\]"):
        made(tmp_path, GOOD, about)


def test_public_records_that_do_not_say_enough(tmp_path):
    own = tmp_path / "own.csv"

    def public(text):
        own.write_text(text, encoding="utf-8")
        return made(tmp_path, GOOD, {}, public=own)

    with pytest.raises(PrivmarketError, match=r"column 'x' holds 5 in all public records: nothing to scale it by"):
        public("x,y\n5,no\n5,yes\n")
    with pytest.raises(PrivmarketError, match=r"column 'x' is empty in all public records"):
        public("x,y\n,no\n,yes\n")
    with pytest.raises(PrivmarketError, match=r"show one class, 'no', of the label 'y' .*\[label\] values"):
        public("x,y\n5,no\n6,no\n")
    with pytest.raises(PrivmarketError, match=r"line 3, column 'y': class 'yes' is none of maybe, no"):
        public("x,y\n5,no\n6,maybe\n")
    with pytest.raises(PrivmarketError, match=r"no column 'x', which .* has .*\[columns\.x\] kind = \"ignore"):
        public("z,y\n5,no\n6,maybe\n")
    with pytest.raises(PrivmarketError, match=r"own\.csv: no public records"):
        public("x,y\n")
    with pytest.raises(PrivmarketError, match=r"holds numbers: classes or values\?"):
        public("x,y\n5,1\n6,2\n7,3\n")
    with pytest.raises(PrivmarketError, match=r"column 'x' has 12 different texts in 12 public records"):
        public("x,y\n" + "".join(f"name{k},{'yn'[k % 2]}\n" for k in range(12)))
    with pytest.raises(PrivmarketError, match=r"own\.csv, line 5, column 'x': 'high' is no number, as most"):
        public("x,y\n" + "".join(f"{'high' if k == 3 else k},{'yn'[k % 2]}\n" for k in range(12)))
    with pytest.raises(PrivmarketError, match=r"column 'x' holds red in all public records"):
        public("x,y\nred,no\nred,yes\n")


def test_a_label_without_public_facts(tmp_path):
    with pytest.raises(PrivmarketError, match=r"nothing says whether 'y' is a class or a number"):
        made(tmp_path, GOOD, {"columns": X})
    with pytest.raises(PrivmarketError, match=r"show no class of the label 'y'"):
        made(tmp_path, GOOD, {"columns": X}, goal="classification")
    with pytest.raises(PrivmarketError, match=r"the label 'y' has no public range"):
        made(tmp_path, GOOD, {"columns": X}, goal="regression")


def test_folders(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    schema = Schema.from_dict({"label": LABEL, "columns": X})
    with pytest.raises(PrivmarketError, match="no tables in this folder"):
        Task.from_csv(folder, schema=schema)
    (folder / "a.csv").write_text("x,y\n1,no\n", encoding="utf-8")
    (folder / "b.csv").write_text("x,z\n1,no\n", encoding="utf-8")
    with pytest.raises(PrivmarketError, match=r"b\.csv: no column 'y', which .*a\.csv has"):
        Task.from_csv(folder, schema=schema)
    (folder / "b.csv").write_text("x,y\n", encoding="utf-8")
    with pytest.raises(PrivmarketError, match=r"b\.csv: no records below the header \(remove the file"):
        Task.from_csv(folder, schema=schema)
    (folder / "b.csv").write_text("x,y\n1,yes\n", encoding="utf-8")
    assert Task.from_csv(folder, schema=schema).clients == ("a", "b")
    with pytest.raises(PrivmarketError, match="leave client out"):
        Task.from_csv(folder, client="x", schema=schema)
    (folder / "b.tsv").write_text("x\ty\n1\tyes\n", encoding="utf-8")
    with pytest.raises(PrivmarketError, match="two files are named 'b'"):
        Task.from_csv(folder, schema=schema)
    (folder / "b.tsv").rename(folder / "A .csv")
    with pytest.raises(PrivmarketError, match=r"looks like"):
        Task.from_csv(folder, schema=schema)


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(PrivmarketError, match=r"nothing\.csv: no such file"):
        read_table(tmp_path / "nothing.csv")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(PrivmarketError, match=r"\.xlsx is no kind of table.*\.csv, \.tsv, \.parquet"):
        read_table(tmp_path / "t.xlsx")
    (tmp_path / "t.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(PrivmarketError, match="not a Parquet file"):
        read_table(tmp_path / "t.parquet")


class Pair(nn.Module):
    def forward(self, rows):
        return rows, rows


class Centred(nn.Module):
    """Takes the mean of the other records off each: records mix, and the shapes are right."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, rows):
        return self.layer(rows - rows.mean(0, keepdim=True))


MODELS = {
    "records that mix": (lambda: Centred(), "changes the output of other records"),
    "batch normalisation": (
        lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)),
        "normalises every record by the others",
    ),
    "too few outputs": (
        lambda inputs: nn.Linear(inputs[0], 3),
        r"returns the shape \(3, 3\) for 3 records.*of 2 classes",
    ),
    "a sum over records": (lambda: nn.Flatten(0), r"returns the shape \(6,\)"),
    "other inputs": (lambda: nn.Linear(7, 2), r"cannot take inputs of shape \(2,\)"),
    "two results": (lambda: Pair(), "the model returns tuple"),
    "no module": (lambda: 3, "returned int"),
    "a module": (nn.Linear(2, 2), "model is a module"),
    "an argument": (lambda width: nn.Linear(2, width), "takes 'width', which nobody gives it"),
    "a number": (5, "model is 5"),
}
ARRAYS = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
CLASSES = np.tile([0, 1], 10)
WHO = np.repeat(["a", "b"], 10)


@pytest.mark.parametrize("what", MODELS)
def test_models_of_a_wrong_shape_are_refused(what):
    model, message = MODELS[what]
    with pytest.raises(PrivmarketError, match=message):
        Task.from_arrays(ARRAYS, CLASSES, clients=WHO, classes=2, model=model)


LOSSES = {
    "a mean": (lambda outputs, labels: nn.functional.cross_entropy(outputs, labels), "a mean or a sum"),
    "a matrix": (lambda outputs, labels: outputs, r"the shape \(3, 2\)"),
    "an error": (lambda outputs, labels: outputs @ labels, "the loss cannot take outputs"),
    "no tensor": (lambda outputs, labels: 1.0, "no tensor"),
}


@pytest.mark.parametrize("what", LOSSES)
def test_losses_that_are_no_value_per_record_are_refused(what):
    loss, message = LOSSES[what]
    with pytest.raises(PrivmarketError, match=message):
        Task.from_arrays(ARRAYS, CLASSES, clients=WHO, classes=2, loss=loss)


BAD_ARRAYS = {
    "one label less": ({"labels": CLASSES[1:]}, "20 inputs and 19 labels"),
    "one client less": ({"clients": WHO[1:]}, "20 records and clients of shape"),
    "one client": ({"clients": ["a"] * 20}, "one client, 'a'"),
    "clients alike": ({"clients": ["a"] * 10 + ["A "] * 10}, "looks like"),
    "a client without a name": ({"clients": ["a"] * 10 + [""] * 10}, "record 10 has no client"),
    "NaN": ({"inputs": np.where(np.arange(40).reshape(20, 2) == 7, np.nan, ARRAYS)}, "record 3 holds NaN"),
    "text": ({"inputs": ARRAYS.astype(str)}, "inputs hold text"),
    "no classes": ({"classes": None}, "nothing public says which classes"),
    "one class": ({"classes": 1}, "at least two different classes"),
    "another class": ({"labels": np.where(np.arange(20) == 4, 7, CLASSES)}, "private record 4: class '7' is none"),
    "a public class more": (
        {"classes": None, "public": (ARRAYS[:2], [0, 3])},
        "class '1' is none of 0, 3",
    ),
    "public of another shape": ({"public": (ARRAYS[:, :1], CLASSES)}, r"public inputs have shape \(1,\)"),
    "no public records": ({"public": (ARRAYS[:0], CLASSES[:0])}, "the public records are empty"),
    "public without labels": ({"public": 5}, "have no labels"),
    "a regression without a range": ({"labels": ARRAYS[:, 0], "classes": None}, "give label_range"),
    "a range upside down": ({"labels": ARRAYS[:, 0], "classes": None, "label_range": (1, 0)}, "label_range is"),
    "labels of NaN": (
        {"labels": np.full(20, np.nan), "classes": None, "label_range": (0, 1)},
        "labels hold text or NaN",
    ),
    "a schema without names": ({"schema": Schema()}, "schema= without named columns"),
    "persons missing": ({"person": [1, 2]}, "persons of shape"),
    "features that lose rows": ({"features": lambda x: x[:1]}, "features made 1 records of 4"),
}


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_bad_arrays_are_refused(what):
    change, message = BAD_ARRAYS[what]
    given = {"inputs": ARRAYS, "labels": CLASSES, "clients": WHO, "classes": 2, **change}
    with pytest.raises(PrivmarketError, match=message):
        Task.from_arrays(given.pop("inputs"), given.pop("labels"), **given)


def test_python_names_that_mean_no_task(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("task = 5\ndef broken(:\n", encoding="utf-8")
    with pytest.raises(PrivmarketError, match="cannot be imported"):
        load_task(f"{tmp_path}/mine.py:task")
    (tmp_path / "mine2.py").write_text("number = 5\n", encoding="utf-8")
    with pytest.raises(PrivmarketError, match="is a int, not a task"):
        load_task(f"{tmp_path}/mine2.py:number")
    with pytest.raises(PrivmarketError, match="did you mean 'number'"):
        load_task(f"{tmp_path}/mine2.py:numbr")
    with pytest.raises(PrivmarketError, match="names no task"):
        load_task("mine2")
    with pytest.raises(PrivmarketError, match="is no Python file"):
        load_task(f"{tmp_path}/none.py:task")


def test_scores_that_the_test_records_cannot_give(tmp_path):
    """AUC of a single class is refused when it is asked for, with the remedy."""
    new = tmp_path / "new.csv"
    new.write_text("x,y\n5,no\n6,no\n", encoding="utf-8")
    with pytest.raises(PrivmarketError, match=r"AUC needs records of every class.*score accuracy"):
        made(tmp_path, GOOD, test=new)
    task = made(tmp_path, GOOD, test=new, score="accuracy")
    scores = task.evaluate_model(task.build_model())
    assert np.isfinite(scores["accuracy"])
    assert np.isnan(scores["auc"]), "a score beside the headline is left open"


def test_global_chance_is_left_alone():
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    Task.from_arrays(ARRAYS, CLASSES, clients=WHO, classes=2).build_model(7)
    assert torch.rand(1) == before
