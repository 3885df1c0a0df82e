"""The page of results on Flower, from the files kept: `python -m privmarket_studies.flower_results docs`."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import jinja2

from privmarket._files import write_atomically

FOLDER = Path("results") / "flower"


def render(folder: Path) -> str:
    """The page, from the JSON files in `folder`."""
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    text = (files("privmarket_studies") / "templates" / "flower.md").read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["seconds"] = lambda value: f"{value:.0f}"
    page: str = environment.from_string(text).render(
        overhead=[kept["overhead-mnist"], kept["overhead-digits"]],
        engines=kept.get("engines"),
        template=kept.get("template"),
        sums=kept["sums"],
        failing=kept["rehearsal"],
        answers=_answers,
        verdicts=_verdicts,
    )
    return page.strip() + "\n"


def _answers(report: dict[str, dict[str, dict[str, int]]], number: int) -> str:
    """What sellers said in a round, in their own words."""
    said = report["answers"].get(str(number), {})
    words = [f"{count} × `{word}`" if " " not in word else f"{count} is gone" for word, count in said.items()]
    return ", ".join(words) or "–"


def _verdicts(report: dict[str, dict[str, bool]]) -> str:
    """The promises of a rehearsal and whether they were kept, as a Markdown table."""
    rows = [f"| {promise} | {'kept' if kept else 'BROKEN'} |" for promise, kept in report["verdicts"].items()]
    return "\n".join(["| promise | |", "|---|---|", *rows])


if __name__ == "__main__":
    place = Path(sys.argv[1]) / FOLDER
    write_atomically(place / "README.md", render(place))
    print(place / "README.md")
