"""Tasks from arrays: every kind of array, own models, losses and scores, and what a task says of itself."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import privmarket as pm
from privmarket.tasks import Task, load_task, model_names

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(60, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64)
CLIENTS = RNG.permutation(np.repeat(["north", "south", "St. Mary"], 20))


class Items(Dataset):
    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, at):
        return torch.from_numpy(INPUTS[at]), int(LABELS[at])


FORMS = {
    "numpy": (INPUTS, LABELS),
    "float64": (INPUTS.astype(np.float64), LABELS.astype(np.int32)),
    "torch": (torch.from_numpy(INPUTS), torch.from_numpy(LABELS)),
    "bfloat16": (torch.from_numpy(INPUTS).bfloat16().float(), torch.from_numpy(LABELS)),
    "lists": (INPUTS.tolist(), LABELS.tolist()),
    "a column of labels": (INPUTS, LABELS[:, None]),
    "text labels": (INPUTS, np.array(["0", "1"])[LABELS]),
    "a tensor data set": (TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS)), None),
    "a data set": (Items(), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_records_gives_the_same_task(form):
    inputs, labels = FORMS[form]
    task = Task.from_arrays(inputs, labels, clients=CLIENTS, classes=2)
    assert sorted(task.clients) == ["St. Mary", "north", "south"]
    assert task.clients[0] == CLIENTS[0], "in the order in which they appear"
    for name in task.clients:
        records = task.records_of(name)
        np.testing.assert_allclose(records.inputs, INPUTS[name == CLIENTS], atol=0.02 if form == "bfloat16" else 0)
        np.testing.assert_array_equal(records.labels, LABELS[name == CLIENTS])
        assert records.inputs.dtype == np.float32


def test_half_precision_is_read():
    task = Task.from_arrays(torch.from_numpy(INPUTS).bfloat16(), LABELS, clients=CLIENTS, classes=2)
    assert task.private.inputs.dtype == np.float32


def test_public_labels_name_the_classes():
    task = Task.from_arrays(INPUTS, LABELS, clients=CLIENTS, public=(INPUTS[:8], LABELS[:8]))
    assert task.classes == ("0", "1")
    assert len(task.public) == 8
    bytes_of = np.array([0, 255], dtype=np.uint8)[LABELS][:, None]
    pictures = Task.from_arrays(bytes_of, LABELS, clients=CLIENTS, classes=["dark", "light"])
    assert pictures.private.inputs.dtype == np.float32
    assert pictures.predictions(np.array([[1.0, 0.0]])).tolist() == ["dark"]


def test_numbers_as_clients_and_persons():
    numbers = np.arange(60) % 5
    persons = np.arange(60) % 7
    task = Task.from_arrays(INPUTS, LABELS, clients=numbers, person=persons, classes=2)
    assert task.clients == ("0", "1", "2", "3", "4")
    assert task.unit == "person"
    assert task.units.tolist() == [7] * 5
    assert len(np.unique(task.private.persons)) == 35
    for rows in task.slices():
        assert (np.diff(task.private.persons[rows]) >= 0).all()


def test_own_model_loss_and_score():
    """A frozen body and a trained head, a loss of one value per record, a score where lower is better."""

    def build(inputs, outputs):
        body = nn.Linear(inputs[0], 8)
        body.requires_grad_(False)
        return nn.Sequential(body, nn.Tanh(), nn.Linear(8, outputs))

    def absolute(outputs, labels):
        return (outputs[:, 0] - labels).abs()

    def median_error(outputs, labels):
        return float(np.median(np.abs(outputs - labels)))

    task = Task.from_arrays(
        INPUTS,
        INPUTS[:, 1] * 10 + 50,
        clients=CLIENTS,
        model=build,
        loss=absolute,
        score=pm.tasks.Score("median error", median_error, higher_is_better=False),
        test=(INPUTS, INPUTS[:, 1] * 10 + 50),
    )
    assert task.goal == "regression"
    assert task.target.spread == 1.0, "an own loss gets the labels as they are"
    assert task.parameters == 9
    assert list(task.public_facts()["model"]["frozen"]) == ["0.weight", "0.bias"]
    scores = task.evaluate_model(task.build_model())
    assert list(scores) == ["median error", "r2", "mae", "rmse"]
    assert scores["median error"] == pytest.approx(50, abs=15)


def test_a_goal_of_its_own():
    def loss(outputs, labels):
        return (outputs - labels).square().sum(dim=1)

    def distance(outputs, labels):
        return float(np.abs(outputs - labels).mean())

    task = Task.from_arrays(
        INPUTS,
        INPUTS[:, :2],
        clients=CLIENTS,
        goal="own",
        loss=loss,
        score=distance,
        model=lambda inputs: nn.Linear(inputs[0], 2),
    )
    assert task.private.labels.shape == (60, 2)
    outputs = task.outputs(task.build_model(), task.private.inputs)
    assert task.predictions(outputs) is outputs


def test_one_logit_for_two_classes():
    task = Task.from_arrays(
        INPUTS, LABELS, clients=CLIENTS, classes=["no", "yes"], model=lambda inputs: nn.Linear(inputs[0], 1)
    )
    logits = np.array([[-3.0], [2.0]], dtype=np.float32)
    assert task.predictions(logits).tolist() == ["no", "yes"]
    assert task.predictions(logits[:, 0]).tolist() == ["no", "yes"]
    values = task.loss(torch.from_numpy(logits), torch.tensor([0, 0]))
    np.testing.assert_allclose(values, np.log1p(np.exp(logits[:, 0])), rtol=1e-5)
    two = torch.stack([torch.zeros(2), torch.from_numpy(logits[:, 0])], dim=1)
    of_both = torch.nn.functional.cross_entropy(two, torch.tensor([0, 0]), reduction="none")
    np.testing.assert_allclose(of_both, values, rtol=1e-5)


def test_tokens_for_an_embedding_of_ones_own():
    tokens = RNG.integers(0, 30, (60, 5))
    task = Task.from_arrays(
        tokens,
        LABELS,
        clients=CLIENTS,
        classes=2,
        model=lambda: nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(20, 2)),
    )
    assert task.private.inputs.dtype == np.int64
    assert Task.from_arrays(tokens, LABELS, clients=CLIENTS, classes=2).private.inputs.dtype == np.float32


def test_no_named_model_mixes_records():
    """Outputs of a record do not depend on the records beside it, in training mode either."""
    for name in model_names():
        module = pm.tasks._models._MODELS[name]((3, 8, 8) if name == "cnn" else (6,), 3)
        few = torch.randint(0, 50, (5, 6)) if name in ("embedding", "transformer") else torch.randn(5, 6)
        few = torch.randn(5, 3, 8, 8) if name == "cnn" else few
        module.train()
        together = module(few)
        alone = torch.cat([module(few[at : at + 1]) for at in range(5)])
        assert torch.allclose(together, alone, atol=1e-5), name
        assert not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in module.modules())


def test_a_digest_belongs_to_one_task():
    def task(**changes):
        given = {"inputs": INPUTS, "labels": LABELS, "clients": CLIENTS, "classes": 2, **changes}
        return Task.from_arrays(given.pop("inputs"), given.pop("labels"), **given)

    one = task()
    assert one.digest() == task().digest()
    assert len(one.digest()) == 64
    moved = INPUTS.copy()
    moved[5, 2] += 1e-3
    others = {
        "a record": task(inputs=moved),
        "a label": task(labels=np.where(np.arange(60) == 3, 1 - LABELS, LABELS)),
        "a client's name": task(clients=np.where(CLIENTS == "north", "nord", CLIENTS)),
        "the classes": task(classes=["no", "yes"], labels=np.array(["no", "yes"])[LABELS]),
        "the model": task(model="mlp"),
        "the score": task(score="accuracy"),
        "public records": task(public=(INPUTS[:3], LABELS[:3])),
        "test records": task(test=(INPUTS[:9], LABELS[:9])),
        "the unit": task(person=np.arange(60)),
        "the loss": task(
            loss=lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, reduction="none") * 2
        ),
        "the name": task(name="other"),
    }
    digests = {what: other.digest() for what, other in others.items()}
    assert len({one.digest(), *digests.values()}) == len(others) + 1


def test_a_task_can_be_sent_to_another_process():
    task = pm.task("digits", clients=5)
    again = pickle.loads(pickle.dumps(task))
    assert again.digest() == task.digest()


def test_models_are_built_alike_from_a_seed():
    task = Task.from_arrays(INPUTS, LABELS, clients=CLIENTS, classes=2, model="mlp")
    first = task.build_model(1)[1].weight
    assert torch.equal(first, task.build_model(1)[1].weight)
    assert not torch.equal(first, task.build_model(2)[1].weight)


def test_a_task_says_what_it_is():
    task = Task.from_arrays(INPUTS, LABELS, clients=CLIENTS, classes=["no", "yes"], name="toy")
    assert repr(task) == "Task('toy', classification, 3 clients, 60 private, 0 public, 0 test records)"
    assert task.describe() == [
        "task: toy, classification into no, yes",
        "clients: 3, with 20 to 20 records each (declared)",
        "public: none; test: none",
        "inputs: 4",
        "model: 10 parameters",
        "score: AUC (higher is better)",
        "protected unit: one record",
    ]
    with pytest.raises(pm.PrivmarketError, match="has no test records"):
        task.evaluate_model(task.build_model())
    with pytest.raises(pm.PrivmarketError, match=r"unknown client 'St\. Marys' \(did you mean 'St\. Mary'"):
        task.place("St. Marys")


def test_tasks_by_their_name_in_python(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("CLASSES = 2\n", encoding="utf-8")
    (tmp_path / "own_task.py").write_text(
        "import numpy as np\nimport privmarket as pm\nfrom beside import CLASSES\n"
        "def make():\n"
        "    x = np.ones((4, 2), dtype=np.float32)\n"
        "    return pm.Task.from_arrays(x, np.array([0, 1, 0, 1]), clients=list('aabb'), classes=CLASSES)\n"
        "ready = make()\n",
        encoding="utf-8",
    )
    assert load_task(f"{tmp_path}/own_task.py:make").clients == ("a", "b")
    monkeypatch.chdir(tmp_path)
    assert load_task("own_task:ready").digest() == load_task("own_task.py:make").digest()


def test_a_model_from_a_file(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build(inputs, outputs):\n    return nn.Linear(inputs[0], outputs)\n",
        encoding="utf-8",
    )
    task = Task.from_arrays(INPUTS, LABELS, clients=CLIENTS, classes=2, model=f"{tmp_path}/net.py:build")
    assert task.parameters == 10
