"""The options with which `federate`, `plan` and `attack` are given a task, declared once."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from privmarket._lazy import late
from privmarket._named import object_named
from privmarket._settings import check_settings, setting
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from privmarket.tasks import _task as tasks
    from privmarket.tasks._task import Task
else:  # reading a task loads torch and perhaps pandas; a command's help must not
    tasks = late("privmarket.tasks._task")


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """A table with its options, or a Python object; with neither, a built-in data set is meant.

    It can be sent to another process and makes the same task there.
    """

    data: str | None = setting(
        None, "Your own table instead of --dataset: .csv, .tsv, .parquet, or a folder with a file per client."
    )
    task: str | None = setting(None, "Your own task instead of --dataset: file.py:name or module:name.")
    label: str | None = setting(None, "Column of --data to predict.")
    client: str | None = setting(None, "Column of --data that names the data holder.")
    person: str | None = setting(None, "Column of --data that names a person, whose rows are protected together.")
    public: str | None = setting(
        None, "Your own records: a file like --data, or with --dataset how many of the kept-back records."
    )
    public_share: float | None = setting(
        None, "Or: treat this share of the rows of --data as your own records.", above=0, below=1
    )
    test: str | None = setting(None, "Records to measure the model on: a file like --data.")
    test_share: float | None = setting(
        None, "Or: put this share of the rows of --data aside to measure on; 0.2 unless given.", above=0, below=1
    )
    schema: str | None = setting(
        None, "TOML file with public ranges and categories; see `privmarket data describe`."
    )
    goal: str | None = setting(
        None,
        "classification or regression, where the label does not tell.",
        choices=("classification", "regression"),
    )
    model: str | None = setting(None, "linear, mlp, … or your own: file.py:build.")
    score: str | None = setting(None, "Headline score: accuracy, balanced-accuracy, auc, log-loss, r2, mae, rmse.")
    bids: str | None = setting(
        None,
        "What each client asks: a CSV with client, valuation, epsilon and perhaps wallet, instead of --scenario.",
    )
    split_seed: int = setting(0, "Seed of the rows that are put aside.", at_least=0)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def is_given(self) -> bool:
        """Whether a table or a Python object was named."""
        return self.data is not None or self.task is not None

    def load(self, progress: Callable[[int, int], None] | None = None) -> Task:
        """Reads the table, or imports the object.

        Args:
            progress: called with the number of rows that are read, and of all rows (0 while that is not known).

        Raises:
            ConfigurationError: options do not fit together.
        """
        if self.task is not None:
            of_tables = [name for name in _OF_TABLES if getattr(self, name) is not None]
            if self.data is not None or of_tables:
                other = "data" if self.data is not None else of_tables[0]
                raise ConfigurationError(
                    f"--task and --{other.replace('_', '-')} exclude each other", "let the task in the file say it"
                )
            return load_task(self.task)
        if self.data is None:
            raise ConfigurationError("there is no table", "give --data FILE with --label and --client")
        share = 0.2 if self.test is None and self.test_share is None else self.test_share
        return tasks.Task.from_csv(
            self.data,
            label=self.label,
            client=self.client,
            person=self.person,
            public=self.public,
            public_share=self.public_share,
            test=self.test,
            test_share=share,
            schema=self.schema,
            goal=self.goal,
            model=self.model,
            score=self.score,
            seed=self.split_seed,
            progress=progress,
        )

    def require_none_of_a_table(self) -> None:
        """Refuses options of tables where a built-in data set is used.

        Raises:
            ConfigurationError: names the option.
        """
        for name in _OF_TABLES:
            if getattr(self, name) is not None and name not in ("public", "model", "score"):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} without --data", "name your table: --data FILE --label COLUMN …"
                )

    def words(self) -> list[str]:
        """The options as they would be typed."""
        typed = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                typed.append(f"--{one.name.replace('_', '-')} {shlex.quote(str(value))}")
        return typed


SOURCE_OPTIONS = tuple(one.name for one in fields(TaskSource))
"""The options that commands take."""

# All options but those that also make sense if the records do not come from a table.
_OF_TABLES = tuple(name for name in SOURCE_OPTIONS if name not in ("data", "task", "bids", "split_seed"))


def load_task(name: str) -> Task:
    """The task that `path/to/file.py:name` or `package.module:name` means.

    The object is a `Task`, or a function without arguments that returns one. Its code is run.
    """
    found = object_named("task", name)
    if not isinstance(found, tasks.Task) and callable(found):
        found = found()
    if not isinstance(found, tasks.Task):
        raise ConfigurationError(
            f"{name} is a {type(found).__name__}, not a task",
            "let it be a privmarket.Task, or a function that returns one",
        )
    return found
