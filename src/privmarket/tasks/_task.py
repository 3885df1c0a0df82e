"""A task: what is learned from whose records, and what the buyer had before.

Three kinds of records are kept apart. *Private* records are the sellers'; they are used only through releases that
somebody sold. *Public* records are the buyer's own, perhaps none; they may be used for anything. *Test* records are
looked at once. Public and test records are not charged to any wallet.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from privmarket._counted import counted
from privmarket._lazy import late
from privmarket.errors import ConfigurationError, DataError, PrivmarketError, UnknownNameError
from privmarket.tasks._from_arrays import Features, records_of_arrays
from privmarket.tasks._from_table import Progress, declared_by, records_of_files, records_of_own_file
from privmarket.tasks._pipeline import Pipeline, TargetScale, class_logits
from privmarket.tasks._records import Positions, Records, TaskRecords, declared_size
from privmarket.tasks._schema import Schema
from privmarket.tasks._scores import Score, ScoreLike, chosen_scores

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from privmarket import training
    from privmarket.tasks import _models as models
else:
    torch = late("torch")
    training = late("privmarket.training")
    models = late("privmarket.tasks._models")

GOALS = ("classification", "regression", "own")
UNITS = ("record", "person")
Unit = Literal["record", "person"]
Loss = Callable[["Tensor", "Tensor"], "Tensor"]
_BLOCK_ROWS = 2000
_TRIED_ROWS = 3
# Draws of the test records from which a standard error is computed: it is then right within about 5 %.
_BOOTSTRAP_DRAWS = 200
_BOOTSTRAP = 31  # a random stream of its own


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """What is learned from whose records.

    Make one with `Task.from_csv`, `Task.from_arrays` or `privmarket.task`, or with `Task.from_own_records` where
    the sellers' records are not on this machine.

    Attributes:
        name: of the task, in reports.
        clients: names of the clients, in the order of their records.
        sizes: (clients,) how many private records each holds.
        private: the clients' records, client after client; rows of one person stand together. Of a task
            `from_own_records` only their number is known.
        public: the buyer's own records, or None.
        test: records on which the finished model is measured, or None.
        model: makes a fresh model; only parameters with `requires_grad` are trained and sent.
        loss: `(outputs, labels) -> (rows,)`, one value per record.
        scores: the first one is the headline.
        goal: "classification", "regression", or "own" if only `loss` and `scores` define it.
        classes: names of the classes, in the order of the outputs; empty if there are none.
        unit: what is protected: one "record", or all records of a "person" at one client.
        pipeline: how rows of a table become inputs; None if the inputs came as arrays.
        target: how the label of a regression is scaled.
        warnings: lines for the user who runs the task.
    """

    name: str
    clients: tuple[str, ...]
    sizes: Positions
    private: Records
    public: Records | None
    test: Records | None
    model: Callable[[], nn.Module]
    loss: Loss
    scores: tuple[Score, ...]
    goal: str = "classification"
    classes: tuple[str, ...] = ()
    unit: Unit = "record"
    pipeline: Pipeline | None = None
    target: TargetScale = field(default_factory=TargetScale)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise UnknownNameError.among("goal", self.goal, GOALS)
        if self.unit not in UNITS:
            raise UnknownNameError.among("unit", self.unit, UNITS)
        if not self.scores:
            raise ConfigurationError("the task has no score", "give score=…, a function of (outputs, labels)")
        if not self.clients or len(set(self.clients)) != len(self.clients):
            raise DataError(f"clients are {list(self.clients)[:4]}", "give at least one, of different names")
        if len(self.sizes) != len(self.clients) or int(self.sizes.sum()) != len(self.private):
            raise DataError("sizes and private records do not fit", "give the number of records of every client")
        if not len(self.private):
            raise DataError("no client has any records", "use fewer clients or a larger data set")
        if (self.unit == "person") != (self.private.persons is not None):
            raise ConfigurationError(
                f"unit is {self.unit!r}", "give the person of every private record, or of none"
            )
        self._try_model()

    # ---- where tasks come from

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        label: str | None = None,
        client: str | None = None,
        person: str | None = None,
        public: str | Path | None = None,
        public_share: float | None = None,
        test: str | Path | None = None,
        test_share: float | None = None,
        schema: str | Path | Schema | None = None,
        goal: str | None = None,
        model: str | Callable[..., nn.Module] | None = None,
        loss: Loss | None = None,
        score: ScoreLike | Sequence[ScoreLike] | None = None,
        name: str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Task:
        """A task from a table in a file: CSV, TSV, Parquet, or a folder with a file per client.

        Every other column is an input, unless the schema says `kind = "ignore"`. How columns are scaled, which
        categories and which classes there are is read from the schema or from the public records, never from
        private ones; a column for which neither says anything is refused.

        Args:
            path: the file. In a folder, a file's name without its ending is the client's name.
            label: the column to predict; may stand in the schema.
            client: the column that names the data holder; may stand in the schema; left out for a folder.
            person: the column that names the person; then all rows of a person at one client are protected
                together.
            public: a file of the buyer's own records, with the same inputs and label.
            public_share: instead, a share of the rows, drawn with the seed. These rows stand for records that the
                buyer owns: no wallet is charged for them, and nothing protects them.
            test: a file of records to measure the finished model on.
            test_share: instead, a share of the rows, drawn with the seed; no wallet is charged for them either.
                Every client keeps at least one row, and all rows of a person stay together.
            schema: a TOML file or a `Schema`: kinds, public ranges and values; see `privmarket data describe`.
            goal: "classification" or "regression", where neither schema nor public labels decide.
            model: "linear" (the default), "mlp", "embedding", "transformer", `file.py:build`, or a function that
                makes a module; it may take `inputs`, the shape of a record, and `outputs`, how many numbers to
                give.
            loss: `(outputs, labels) -> (rows,)`; cross-entropy or squared error if left out. Labels of a regression
                are on the scale of training.
            score: the headline score: a name, a `Score`, a function, or a list of them.
            name: of the task; the file's name if left out.
            seed: of the rows that are put aside.
            progress: called with the number of rows that are read, and of all rows (0 while that is not known).
        """
        records = records_of_files(
            path,
            label=label,
            client=client,
            person=person,
            public=public,
            public_share=public_share,
            test=test,
            test_share=test_share,
            schema=schema,
            goal=goal,
            seed=seed,
            progress=progress,
        )
        return cls.from_records(name or Path(path).stem, records, model=model, loss=loss, score=score)

    @classmethod
    def from_arrays(
        cls,
        inputs: object,
        labels: object = None,
        *,
        clients: object,
        public: object = None,
        test: object = None,
        model: str | Callable[..., nn.Module] | None = None,
        loss: Loss | None = None,
        score: ScoreLike | Sequence[ScoreLike] | None = None,
        features: Features | None = None,
        person: object = None,
        classes: int | Sequence[object] | None = None,
        label_range: tuple[float, float] | None = None,
        goal: str | None = None,
        schema: str | Path | Schema | None = None,
        name: str = "task",
    ) -> Task:
        """A task from arrays: NumPy, torch, a pandas frame, or a torch `Dataset`.

        Inputs are taken as they are, so scale them by public numbers only. A pandas frame is read as a file would
        be, by the schema or the public records.

        Args:
            inputs: (records, ...) of all clients in any order; or a data set of (input, label), with no `labels`.
            labels: (records,) classes (whole numbers or text) or values (numbers with a point).
            clients: (records,) the client of each record; names or numbers.
            public: `(inputs, labels)` of the buyer's own records, or a data set.
            test: `(inputs, labels)` to measure the finished model on, or a data set.
            model: a function that makes a module, or a name as in `from_csv`; "linear" if left out.
            loss: `(outputs, labels) -> (rows,)`; cross-entropy or squared error if left out.
            score: the headline score: a name, a `Score`, a function, or a list of them.
            features: a fixed function of one record, called with several rows at a time, applied to all records.
                One whose result for a record depends on the other rows is refused.
            person: (records,) the person of each record; then all rows of a person at one client are protected
                together.
            classes: how many classes (0, 1, …) or their names; public labels decide if left out. Labels are names,
                or whole numbers from 0 that count the names.
            label_range: public (low, high) of a regression's label; public labels decide if left out.
            goal: "classification", "regression" or "own"; by the type of the labels if left out.
            schema: for a pandas frame: a TOML file or a `Schema`.
            name: of the task.
        """
        known = Schema.read(schema) if isinstance(schema, str | Path) else schema
        records = records_of_arrays(
            inputs,
            labels,
            clients=clients,
            public=public,
            test=test,
            features=features,
            person=person,
            classes=classes,
            label_range=label_range,
            goal=goal,
            schema=known,
            own_loss=loss is not None,
        )
        return cls.from_records(name, records, model=model, loss=loss, score=score)

    @classmethod
    def from_own_records(
        cls,
        own: object,
        *,
        records: int | Mapping[str, int] | str | Path,
        clients: int | Sequence[str] | None = None,
        label: str | None = None,
        test: object = None,
        schema: str | Path | Schema | None = None,
        goal: str | None = None,
        model: str | Callable[..., nn.Module] | None = None,
        loss: Loss | None = None,
        score: ScoreLike | Sequence[ScoreLike] | None = None,
        classes: int | Sequence[object] | None = None,
        label_range: tuple[float, float] | None = None,
        name: str | None = None,
    ) -> Task:
        """A task of a buyer who has its own records and none of the sellers'.

        Of the sellers only names and numbers of records are known. `privmarket.plan` says what can be said
        without their records, and `privmarket.flower.server_app` trains on the machines where they are;
        `privmarket.federate`, which simulates every client here, refuses such a task.

        Args:
            own: the buyer's own records: a file, or arrays as (inputs, labels).
            records: how many records a client declares: one number for all, client → number, or a CSV file with the
                columns client and records.
            clients: how many there are, or their names; left out where `records` names them.
            label, test, schema, goal, model, loss, score, name: as in `from_csv`. The client's column of the schema
                is not looked for.
            classes, label_range: as in `from_arrays`.
        """
        sizes = declared_by(clients, records)
        total = sum(sizes.values())
        if isinstance(own, str | Path):
            if classes is not None or label_range is not None:
                given = "classes" if classes is not None else "label_range"
                raise ConfigurationError(f"{given} beside a file", "say it in the schema, under [label]")
            known = records_of_own_file(own, label=label, test=test, schema=schema, goal=goal)
            name = name or Path(own).stem
        else:
            if label is not None or schema is not None or not isinstance(own, tuple) or len(own) != 2:
                raise ConfigurationError(
                    f"own records are {type(own).__name__}",
                    "give a file, or (inputs, labels) without label or schema",
                )
            rows = len(own[0])
            known = records_of_arrays(
                *own,
                clients=np.arange(rows) % 2,  # replaced below, as are the records that stand for theirs
                public=own,
                test=test,
                features=None,
                person=None,
                classes=classes,
                label_range=label_range,
                goal=goal,
                schema=None,
                own_loss=loss is not None,
            )
        assert known.public is not None
        declared = np.fromiter(sizes.values(), dtype=np.int64)
        known = replace(known, clients=tuple(sizes), sizes=declared, private=Records.declared(total, known.public))
        return cls.from_records(name or "own-records", known, model=model, loss=loss, score=score)

    def without_private_records(self) -> Task:
        """The same task as a buyer knows it who holds none of the sellers' records, see `from_own_records`.

        Clients keep their names and the numbers of records that they declare.

        Raises:
            ConfigurationError: persons are protected: nobody declares how many records theirs are.
        """
        if self.unit != "record":
            raise ConfigurationError(
                f"a plan without private records for the unit {self.unit!r}",
                "nobody declares how many records a person has: plan for records",
            )
        private = Records.declared(int(self.declared_sizes.sum()), self.private)
        return replace(self, sizes=self.declared_sizes, private=private)

    @classmethod
    def from_records(
        cls,
        name: str,
        records: TaskRecords,
        *,
        model: str | Callable[..., nn.Module] | None = None,
        loss: Loss | None = None,
        score: ScoreLike | Sequence[ScoreLike] | None = None,
    ) -> Task:
        """A task on records that are read already, with model, loss and scores filled in."""
        classes = len(records.classes)
        if model is None:
            model = "embedding" if _buckets(records.pipeline) else "linear"
        if isinstance(model, str) and model in ("linear", "mlp", "cnn") and records.pipeline is None:
            records = _as_floats(records)
        builder = models.model_builder(
            model, records.private.inputs.shape[1:], max(1, classes), buckets=_buckets(records.pipeline)
        )
        if loss is None:
            # A named model of a classification gives a number per class; another one is tried.
            one_output = not isinstance(model, str) and models.gives_one_output(builder, records.private.inputs)
            loss = models.usual_loss(records.goal, one_output=one_output)
        return cls(
            name,
            records.clients,
            np.asarray(records.sizes, dtype=np.int64),
            records.private,
            records.public,
            records.test,
            builder,
            loss,
            chosen_scores(score, records.goal, classes),
            records.goal,
            records.classes,
            "person" if records.unit == "person" else "record",
            records.pipeline,
            records.target,
            records.warnings,
        )

    def replace(
        self,
        *,
        model: str | Callable[..., nn.Module] | None = None,
        score: ScoreLike | Sequence[ScoreLike] | None = None,
        **changes: object,
    ) -> Task:
        """A copy with some attributes changed, checked again; `model` and `score` may be names."""
        if model is not None:
            changes["model"] = models.model_builder(
                model, self.private.inputs.shape[1:], max(1, len(self.classes)), buckets=_buckets(self.pipeline)
            )
        if score is not None:
            changes["scores"] = chosen_scores(score, self.goal, len(self.classes))
        return replace(self, **changes)  # type: ignore[arg-type]

    # ---- records

    @property
    def score(self) -> Score:
        """The headline score."""
        return self.scores[0]

    @property
    def is_binary(self) -> bool:
        """Whether this is a classification with two classes; the second one is the positive one."""
        return len(self.classes) == 2

    @property
    def has_private_records(self) -> bool:
        """Whether the sellers' records are here, so that a run can be simulated."""
        return self.private.are_here

    def require_private_records(self, what: str) -> None:
        """Refuses what needs the sellers' records where only their number is known.

        Args:
            what: for the message, such as "a simulated run".

        Raises:
            DataError: see above.
        """
        if not self.has_private_records:
            raise DataError(
                f"{what} needs the sellers' records, and {self.name} knows only how many they declare",
                "plan with it, and train where the records are: pm.flower.server_app(task=…)",
            )

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.clients)}

    def place(self, client: str) -> int:
        """Where a client stands in `clients`."""
        if client not in self._places:
            raise UnknownNameError.among("client", client, self.clients)
        return self._places[client]

    def slices(self) -> list[slice]:
        """The rows of each client in `private`."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes.tolist(), strict=True)]

    def records_of(self, client: str) -> Records:
        """The private records of one client."""
        return self.private[self.slices()[self.place(client)]]

    @cached_property
    def units(self) -> Positions:
        """(clients,) how many records each client holds, or how many persons where persons are protected."""
        if self.private.persons is None:
            return self.sizes
        held = [len(np.unique(self.private.persons[rows])) for rows in self.slices()]
        return np.array(held, dtype=np.int64)

    @cached_property
    def declared_sizes(self) -> Positions:
        """(clients,) the public number of records (or persons) of each client: rounded up, see `declared_size`."""
        return np.array([declared_size(one) for one in self.units.tolist()], dtype=np.int64)

    # ---- models

    def build_model(self, seed: int = 0) -> nn.Module:
        """A fresh model whose initial weights depend on the seed alone; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.model()
        if not isinstance(module, torch.nn.Module):
            raise ConfigurationError(
                f"the model's function returned {type(module).__name__}", "let it return a torch.nn.Module"
            )
        return module

    def outputs(self, module: nn.Module, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        """(rows, ...) the module's outputs for these inputs, in evaluation mode, a block at a time."""
        was_training = module.training
        module.eval()
        blocks = []
        with torch.no_grad():
            for start in range(0, len(inputs), _BLOCK_ROWS):
                rows = np.ascontiguousarray(inputs[start : start + _BLOCK_ROWS])
                blocks.append(module(torch.from_numpy(rows)).numpy())
        module.train(was_training)
        return np.concatenate(blocks)

    def evaluate(self, outputs: NDArray[np.generic], records: Records) -> dict[str, float]:
        """Every score of the task for a model's outputs on these records, in the unit of the data.

        A score that cannot be computed for these records (AUC if a class is missing) is NaN; for the headline that
        is an error.
        """
        given, labels = self._as_scored(outputs, records)
        found: dict[str, float] = {}
        for score in self.scores:
            try:
                found[score.name] = float(score.value(given, labels))
            except DataError:
                if score is self.score:
                    raise
                found[score.name] = math.nan
            except PrivmarketError:
                raise
            except Exception as error:  # the score is the user's code and may raise anything
                raise DataError(
                    f"the score {score.name!r} failed: {type(error).__name__}: {error}",
                    "it is called with (outputs, labels), NumPy arrays; of classes outputs are (rows, classes)",
                ) from error
        return found

    def _as_scored(
        self, outputs: NDArray[np.generic], records: Records
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Outputs and labels as scores take them: logits of every class, or values in the unit of the data."""
        if self.goal == "classification":
            return class_logits(outputs, len(self.classes)), records.labels
        if self.goal == "regression":
            return self.target.restored(outputs.reshape(len(outputs))), self.target.restored(records.labels)
        return outputs, records.labels

    def gain_error(self, before: NDArray[np.generic], after: NDArray[np.generic]) -> float | None:
        """Standard error of the gain in the headline score that comes from the choice of the test records.

        A bootstrap, paired over records: both models are measured on the same records, which are drawn anew with
        replacement, those of one person together. So it serves every score, also those that are no means.

        Args:
            before, after: (test records, ...) the outputs of two models.

        Returns:
            None where there are no test records, or too few for the score to be computed on a draw of them.
        """
        if self.test is None:
            return None
        labels: NDArray[np.generic]
        old, labels = self._as_scored(before, self.test)
        new, _ = self._as_scored(after, self.test)
        rows = len(self.test)
        persons = np.arange(rows) if self.test.persons is None else self.test.persons
        _, person = np.unique(persons, return_inverse=True)
        of_person = np.split(np.argsort(person, kind="stable"), np.cumsum(np.bincount(person))[:-1])
        rng = np.random.default_rng([rows, _BOOTSTRAP])
        gains = []
        for _ in range(_BOOTSTRAP_DRAWS):
            drawn = rng.integers(0, len(of_person), len(of_person))
            at = drawn if len(of_person) == rows else np.concatenate([of_person[one] for one in drawn])
            try:
                had, got = (self.score.value(outputs[at], labels[at]) for outputs in (old, new))
            except Exception:  # e.g. AUC of a draw without one of the classes, or the user's own score
                continue
            gains.append(self.score.gain(float(had), float(got)))
        if len(gains) < _BOOTSTRAP_DRAWS // 2 or not np.isfinite(gains).all():
            return None
        return float(np.std(gains, ddof=1))

    def evaluate_model(self, module: nn.Module, on: Literal["test", "public"] = "test") -> dict[str, float]:
        """Every score of the task for a module, on the test records or the public ones."""
        records = self.test if on == "test" else self.public
        if records is None:
            raise DataError(f"the task {self.name!r} has no {on} records", f"give {on}=… or {on}_share=…")
        return self.evaluate(self.outputs(module, records.inputs), records)

    def predictions(self, outputs: NDArray[np.generic]) -> NDArray[np.generic]:
        """(rows,) names of the most likely classes, or values in the unit of the data."""
        if self.goal == "classification":
            places = class_logits(outputs, len(self.classes)).argmax(axis=1)
            chosen: NDArray[np.generic] = np.array(self.classes)[places]
            return chosen
        if self.goal == "regression":
            return self.target.restored(outputs.reshape(len(outputs)))
        return outputs

    def _try_model(self) -> None:
        """Runs the model and the loss on rows of zeros, so that mistakes are found before anything is sold.

        Raises:
            ConfigurationError: a wrong shape.
            ModelError: records mix in the model, so that no client's release could be private.
        """
        module = self.build_model()
        rows = np.zeros((_TRIED_ROWS, *self.private.inputs.shape[1:]), dtype=self.private.inputs.dtype)
        labels = np.zeros((_TRIED_ROWS, *self.private.labels.shape[1:]), dtype=self.private.labels.dtype)
        module.eval()
        try:
            with torch.no_grad():
                outputs = module(torch.from_numpy(rows))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigurationError(
                f"the model cannot take inputs of shape {tuple(rows.shape[1:])} and type {rows.dtype}: "
                f"{str(error).splitlines()[0]}",
                "let the function that makes it take `inputs`, the shape of a record",
            ) from error
        if not isinstance(outputs, torch.Tensor):
            raise ConfigurationError(
                f"the model returns {type(outputs).__name__}", "let it return one tensor of (rows, outputs)"
            )
        self._check_shape(tuple(outputs.shape))
        if self.test is not None and self.goal != "own":
            # So a headline that cannot be computed is found before anything is bought.
            self.evaluate(np.zeros((len(self.test), *outputs.shape[1:]), dtype=np.float32), self.test)
        try:
            losses_of_rows = self.loss(outputs, torch.from_numpy(labels))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigurationError(
                f"the loss cannot take outputs of shape {tuple(outputs.shape)} and labels of shape {labels.shape}: "
                f"{str(error).splitlines()[0]}",
                "write loss(outputs, labels) for tensors with one row per record",
            ) from error
        shape = tuple(getattr(losses_of_rows, "shape", ("no tensor",)))
        if shape != (_TRIED_ROWS,):
            was = "a single number, a mean or a sum" if shape == () else f"the shape {shape}"
            raise ConfigurationError(
                f"the loss of {_TRIED_ROWS} records has {was}",
                "return one value per record, e.g. with reduction='none'",
            )
        # Only shapes and types of these records are used.
        training.require_per_record(module, torch.from_numpy(rows), torch.from_numpy(labels), loss=self.loss)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        classes = len(self.classes)
        if not shape or shape[0] != _TRIED_ROWS:
            wanted = False
        elif self.goal == "classification":
            alone = ((_TRIED_ROWS,), (_TRIED_ROWS, 1)) if self.is_binary else ()
            wanted = shape == (_TRIED_ROWS, classes) or shape in alone
        elif self.goal == "regression":
            wanted = shape in ((_TRIED_ROWS,), (_TRIED_ROWS, 1))
        else:
            wanted = True
        if not wanted:
            needed = f"({_TRIED_ROWS}, {classes})" if self.goal == "classification" else f"({_TRIED_ROWS}, 1)"
            raise ConfigurationError(
                f"the model returns the shape {shape} for {_TRIED_ROWS} records; a {self.goal} "
                f"{f'of {classes} classes ' if classes else ''}needs {needed}",
                "let the function that makes it take `outputs`, how many numbers to give",
            )

    # ---- what it is

    def public_facts(self) -> dict[str, object]:
        """Everything about the task that is used or shown without a release, as JSON data.

        Two tasks that differ only in private records have the same public facts.
        """
        return {
            "name": self.name,
            "clients": dict(zip(self.clients, self.declared_sizes.tolist(), strict=True)),
            "unit": self.unit,
            "goal": self.goal,
            "classes": list(self.classes),
            "scores": [{"name": score.name, "better": score.direction} for score in self.scores],
            "inputs": {"shape": list(self.private.inputs.shape[1:]), "type": str(self.private.inputs.dtype)},
            "pipeline": None if self.pipeline is None else self.pipeline.to_json(),
            "target": {"centre": self.target.centre, "spread": self.target.spread},
            "public": _records_digest(self.public),
            "test": _records_digest(self.test),
            "model": self._model_facts,
            "warnings": list(self.warnings),
        }

    @cached_property
    def _model_facts(self) -> dict[str, object]:
        module = self.build_model()
        weights = hashlib.sha256()
        for name, value in module.state_dict().items():
            weights.update(name.encode())
            weights.update(value.detach().cpu().contiguous().numpy().tobytes())
        return {
            "text": str(module),
            "parameters": {name: list(one.shape) for name, one in module.named_parameters() if one.requires_grad},
            "frozen": {name: list(one.shape) for name, one in module.named_parameters() if not one.requires_grad},
            "weights": weights.hexdigest(),
        }

    def digest(self) -> str:
        """Names this task: equal for equal records, clients, model, loss and scores, on every machine.

        It depends on private records, so it is not shown to others.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        about = {
            **self.public_facts(),
            "sizes": self.sizes.tolist(),
            "private": _records_digest(self.private),
            "loss": _code_of(self.loss),
            "scores": [[score.name, score.direction, _code_of(score.value)] for score in self.scores],
        }
        text = json.dumps(about, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parameters(self) -> int:
        """How many numbers of the model are trained and sent."""
        found = self._model_facts["parameters"]
        assert isinstance(found, dict)
        return sum(int(np.prod(shape)) for shape in found.values())

    def describe(self) -> list[str]:
        """A few lines about the task, from public facts only."""
        sizes = self.declared_sizes
        units = "record" if self.unit == "record" else "person"
        what = {"own": "a loss of its own", "regression": "regression"}.get(
            self.goal, f"classification into {', '.join(self.classes[:6])}{', …' if len(self.classes) > 6 else ''}"
        )
        public = "none" if self.public is None else counted(len(self.public), "record")
        test = "none" if self.test is None else counted(len(self.test), "record")
        frozen = self._model_facts["frozen"]
        lines = [
            f"task: {self.name}, {what}",
            f"clients: {len(self.clients):,}, with {sizes.min():,} to {sizes.max():,} {units}s each (declared)",
            f"public: {public}; test: {test}",
            f"inputs: {' × '.join(map(str, self.private.inputs.shape[1:])) or '1'}",
            f"model: {counted(self.parameters, 'parameter')}{', besides frozen ones' if frozen else ''}",
            f"score: {self.score.heading} ({self.score.direction} is better)",
            f"protected unit: one {self.unit}{' at one client' if self.unit == 'person' else ''}",
        ]
        if self.pipeline is not None:
            by_public = [one.name for one in self.pipeline.columns if one.scaled_by == "public records"]
            if by_public:
                shown = ", ".join(by_public[:6]) + (", …" if len(by_public) > 6 else "")
                lines.append(f"scaled by the public records: {shown}")
        return lines

    def __repr__(self) -> str:
        public = 0 if self.public is None else len(self.public)
        test = 0 if self.test is None else len(self.test)
        return (
            f"Task({self.name!r}, {self.goal}, {len(self.clients):,} clients, {len(self.private):,} "
            f"{'private' if self.has_private_records else 'declared'}, "
            f"{public:,} public, {test:,} test records)"
        )


def _buckets(pipeline: Pipeline | None) -> int | None:
    """How many different tokens there are, if the inputs are tokens."""
    if pipeline is None:
        return None
    return next((one.about.buckets for one in pipeline.columns if one.about.kind == "tokens"), None)


def _as_floats(records: TaskRecords) -> TaskRecords:
    """Whole numbers as inputs of a model of numbers, not of tokens."""

    def floats(some: Records | None) -> Records | None:
        if some is None or not some.are_here:
            return some
        return Records(some.inputs.astype(np.float32), some.labels, some.persons)

    public = floats(records.public)
    private = floats(records.private)
    assert private is not None
    if not private.are_here and public is not None:
        private = Records.declared(len(private), public)
    return replace(records, private=private, public=public, test=floats(records.test))


def _records_digest(records: Records | None) -> str | None:
    """A hash of the records, shapes and types included."""
    if records is None:
        return None
    made = hashlib.sha256()
    if not records.are_here:
        about = f"{len(records)} of {records.inputs.shape[1:]} {records.inputs.dtype.str}, declared"
        return hashlib.sha256(about.encode()).hexdigest()
    for part in (records.inputs, records.labels, records.persons):
        if part is not None:
            made.update(f"{part.shape} {part.dtype.str}".encode())
            made.update(np.ascontiguousarray(part).data)
    return made.hexdigest()


def _code_of(function: object) -> str:
    """Identifies a function across processes: its source if there is one, else its name."""
    if isinstance(function, partial):
        return f"{_code_of(function.func)} {function.args!r} {function.keywords!r}"
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()  # type: ignore[arg-type]
    except (OSError, TypeError):
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
