"""A task that a user wrote in Python, by its name on the command line."""

from __future__ import annotations

from privmarket.errors import ConfigurationError
from privmarket.tasks._python_names import object_named
from privmarket.tasks._task import Task


def load_task(name: str) -> Task:
    """The task that `path/to/file.py:name` or `package.module:name` means.

    The object is a `Task`, or a function without arguments that returns one. Its code is run.
    """
    found = object_named(name, "task")
    if not isinstance(found, Task) and callable(found):
        found = found()
    if not isinstance(found, Task):
        raise ConfigurationError(
            f"{name} is a {type(found).__name__}, not a task",
            "let it be a privmarket.Task, or a function that returns one",
        )
    return found
