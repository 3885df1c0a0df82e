"""Writes pages: Markdown, CSV, PNG and SVG in a folder each, and one HTML file that needs nothing else."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markdown_it import MarkdownIt

from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket_studies.reproduce.cache import Record
from privmarket_studies.reproduce.document import Block, Figure, ResultPage, Table, Text

if TYPE_CHECKING:
    import matplotlib
    from matplotlib.figure import Figure as Drawing
else:
    matplotlib = late("matplotlib")


def markdown(page: ResultPage) -> str:
    """The page's text; figures are linked as PNG, tables also as CSV."""
    return "\n\n".join([f"# {page.title}", *(_block(block) for block in page.blocks)]) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return block.markdown.strip()
    if isinstance(block, Table):
        return f"- [{block.caption}]({block.name}.csv)" if block.linked else block.markdown()
    shown = re.split(r"[.;:] (?=\D)", block.caption)[0]  # the caption itself follows
    return f"![{shown}]({block.name}.png)\n\n*{block.caption}* ([SVG]({block.name}.svg))"


def _in_words(text: str, page: str, keep: Callable[[str], bool]) -> str:
    """The text with links to pages that are not here replaced by where these stand in the repository."""

    def link(found: re.Match[str]) -> str:
        if keep(found[2]):
            return found[0]
        return f"{found[1]} ({os.path.normpath(f'docs/results/{page}/{found[2]}')} in the repository)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)]+)\)", link, text)


def write_page(page: ResultPage, folder: Path, mark: str = "", *, published: bool = False) -> list[Path]:
    """Writes README.md, the figures and a CSV file per table into `folder`; returns the files.

    Args:
        mark: kept inside the SVG files, so that a figure can be told from one of earlier results.
        published: whether the folder is that of the documentation, where all links lead somewhere.
    """
    text = markdown(page)
    if not published:
        text = _in_words(
            text, page.name, lambda target: os.path.exists(os.path.normpath(folder / target.partition("#")[0]))
        )
    written = [_text(folder / "README.md", text)]
    for block in page.blocks:
        if isinstance(block, Table):
            written.append(_text(folder / f"{block.name}.csv", block.csv()))
        elif isinstance(block, Figure):
            drawing = block.draw()
            for kind in ("png", "svg"):
                path = folder / f"{block.name}.{kind}"
                write_atomically(path, drawn(drawing, kind, mark))
                written.append(path)
    return written


def drawn(drawing: Drawing, kind: str, mark: str = "") -> bytes:
    """The bytes of a figure; an SVG is the same each time."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "privmarket", "svg.fonttype": "none"}):
        about: dict[str, object] = {"Date": None, "Description": mark} if kind == "svg" else {}
        drawing.savefig(stream, format=kind, metadata=about)
    return stream.getvalue()


def write_cells_csv(records: Sequence[Record], path: Path) -> Path:
    """Every cell as a row: configuration, seed, seconds and every single figure of its result."""
    rows = [{**_scalars(r.cell.config), "seed": r.cell.seed, "seconds": r.seconds, **_outcome(r)} for r in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return _text(path, stream.getvalue())


def _outcome(record: Record) -> dict[str, object]:
    return {"failure": record.failure} if record.result is None else _scalars(record.result)


def _scalars(data: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in data.items() if isinstance(value, str | int | float)}


def write_html(pages: Sequence[ResultPage], path: Path, facts: Mapping[str, str], command: str) -> Path:
    """All pages in one file; the figures that `write_page` left in folders beside it are put into it as SVG."""
    template = jinja2.Template(
        (files("privmarket_studies") / "templates" / "reproduce_report.html").read_text(encoding="utf-8"),
        autoescape=True,
    )
    text = template.render(
        pages=[
            (page.name, page.title, [_html(block, path.parent / page.name) for block in page.blocks])
            for page in pages
        ],
        facts=dict(facts),
        command=command,
    )
    return _text(path, text)


def _html(block: Block, folder: Path) -> str:
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    if isinstance(block, Text):
        # Links between pages lead to sections of this file.
        text = _in_words(block.markdown, folder.name, lambda target: not target.startswith("../../"))
        return str(reader.render(re.sub(r"\]\(\.\./([\w-]+)/README\.md(#[\w-]+)?\)", r"](#\1)", text)))
    if isinstance(block, Table):
        return f'<div class="scroll">{reader.render(block.markdown())}</div>'
    picture = (folder / f"{block.name}.svg").read_text(encoding="utf-8")
    picture = picture[picture.index("<svg") :]
    return f"<figure>{picture}<figcaption>{reader.renderInline(block.caption)}</figcaption></figure>"


def _text(path: Path, text: str) -> Path:
    write_atomically(path, text)
    return path
