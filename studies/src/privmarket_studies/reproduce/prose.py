"""The pages' texts, kept as Markdown templates beside this module; every figure in them comes from the cells."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from privmarket_studies.reproduce.document import Text


def prose(name: str, **values: Any) -> Text:
    """The template `prose/<name>.md` with its values filled in; an unknown value is an error."""
    import jinja2

    text = (files("privmarket_studies.reproduce") / "prose" / f"{name}.md").read_text(encoding="utf-8")
    filled = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True).render(**values)
    return Text(filled.strip())
