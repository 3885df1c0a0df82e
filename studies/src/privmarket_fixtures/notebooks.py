"""Runs the documentation's notebooks in this process and keeps what their cells show.

    python -m privmarket_fixtures.notebooks docs/notebooks        runs them all and writes their outputs

A notebook is a list of cells in JSON; no server and no kernel is needed to run one that only uses Python. The tests
run them with the same function and compare what they show with what is stored.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import tempfile
import warnings
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import NotRequired, TypedDict

from privmarket._files import write_atomically


class Output(TypedDict):
    """What a cell shows, as Jupyter stores it: printed lines, or the value of its last line."""

    output_type: str
    name: NotRequired[str]
    text: NotRequired[list[str]]
    data: NotRequired[dict[str, str | list[str]]]
    execution_count: NotRequired[int]
    metadata: NotRequired[dict[str, object]]


class CellMetadata(TypedDict, total=False):
    """Of a cell's notes, what is read here."""

    tags: list[str]


class NotebookCell(TypedDict):
    """A cell; only those of code have outputs."""

    cell_type: str
    source: list[str]
    metadata: CellMetadata
    execution_count: NotRequired[int]
    outputs: NotRequired[list[Output]]


class Notebook(TypedDict):
    """A notebook, of which only the cells are read; the rest is kept as it is."""

    cells: list[NotebookCell]


def run(notebook: Notebook, folder: Path) -> Notebook:
    """The notebook with the outputs of a fresh run, its working folder being `folder`; a failing cell raises."""
    names: dict[str, object] = {"__name__": "__main__"}
    cells, count = [], 0
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell = {
                    **cell,
                    "execution_count": count,
                    "outputs": _outputs("".join(cell["source"]), names, count),
                }
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, object], count: int) -> list[Output]:
    """What a cell prints, and the value of its last line, as Jupyter stores them."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    found: list[Output] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        found.append(
            {"data": _data(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return found


def _data(value: object) -> dict[str, str | list[str]]:
    """A value as text, and as a picture or as HTML where it can be."""
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=90)
        return {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": ["a figure"]}
    data: dict[str, str | list[str]] = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def shown_text(notebook: Notebook) -> list[str]:
    """What each code cell shows as text; cells tagged `varies` show something else every time and give "…"."""
    texts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        if "varies" in cell["metadata"].get("tags", []):
            texts.append("…")
            continue
        parts = [one.get("text") or one["data"]["text/plain"] for one in cell["outputs"]]
        texts.append("".join(line for part in parts for line in part))
    return texts


def main() -> None:
    """Runs every notebook of a folder and writes its outputs into it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as work:
            done = run(json.loads(path.read_text(encoding="utf-8")), Path(work))
        write_atomically(path, json.dumps(done, indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    main()
