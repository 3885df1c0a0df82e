"""Which questions there are: their cells and their pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privmarket.errors import UnknownNameError
from privmarket_studies.reproduce import (
    ablations,
    beliefs_page,
    collusion_page,
    fairness,
    rq1,
    rq2,
    rq3,
    rq4,
    rq4_page,
    variations,
    variations_page,
)
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.document import ResultPage, Results
from privmarket_studies.what_money_buys import cells as money_cells, page as money_page


@dataclass(frozen=True)
class Question:
    """A page and the cells that it is rendered from."""

    name: str
    title: str
    cells: Callable[[Scale], list[Cell]]
    render: Callable[[Results], ResultPage]


QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        Question("rq1", rq1.TITLE, rq1.cells, rq1.render),
        Question("rq2", rq2.TITLE, rq2.cells, rq2.render),
        Question("rq3", rq3.TITLE, rq3.cells, rq3.render),
        Question("rq4", rq4_page.TITLE, rq4.cells, rq4_page.render),
        Question("ablations", ablations.TITLE, ablations.cells, ablations.render),
        Question("fairness", fairness.TITLE, fairness.cells, fairness.render),
        Question("collusion", collusion_page.TITLE, collusion_page.cells, collusion_page.render),
        Question("beliefs", beliefs_page.TITLE, beliefs_page.cells, beliefs_page.render),
        Question("variations", variations.TITLE, variations.cells, variations_page.render),
        Question(money_page.NAME, money_page.TITLE, money_cells.cells, money_page.render),
    )
}


def questions(name: str) -> list[Question]:
    """The question called `name`, or all."""
    if name == "all":
        return list(QUESTIONS.values())
    if name not in QUESTIONS:
        raise UnknownNameError(f"unknown question {name!r}", f"choose one of: {', '.join(QUESTIONS)}, all")
    return [QUESTIONS[name]]
