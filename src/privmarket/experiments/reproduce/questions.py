"""Which questions there are: their cells and their pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privmarket.errors import UnknownNameError
from privmarket.experiments.reproduce import rq1, rq2, rq3
from privmarket.experiments.reproduce.cells import Cell
from privmarket.experiments.reproduce.document import Page, Results
from privmarket.experiments.reproduce.scale import Scale


@dataclass(frozen=True)
class Question:
    """A page and the cells that it is rendered from."""

    name: str
    cells: Callable[[Scale], list[Cell]]
    render: Callable[[Results], Page]


QUESTIONS: dict[str, Question] = {
    module.__name__.rpartition(".")[2]: Question(module.__name__.rpartition(".")[2], module.cells, module.render)
    for module in (rq1, rq2, rq3)
}


def questions(name: str) -> list[Question]:
    """The question called `name`, or all."""
    if name == "all":
        return list(QUESTIONS.values())
    if name not in QUESTIONS:
        raise UnknownNameError(f"unknown question {name!r}", f"choose one of: {', '.join(QUESTIONS)}, all")
    return [QUESTIONS[name]]
