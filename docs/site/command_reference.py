"""Writes the command-line reference when the site is built, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import typer

_MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """MkDocs' hook: fills the marked place of the command-line page."""
    return markdown.replace(_MARKER, "\n\n".join(_sections())) if _MARKER in markdown else markdown


def _sections() -> Iterator[str]:
    from privmarket.cli import app

    yield from _command(typer.main.get_command(app), "privmarket")


def _command(command: click.Command, name: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for child in sorted(command.list_commands(context)):
            found = command.get_command(context, child)
            if found is not None:
                yield from _command(found, f"{name} {child}")
        return
    lines = [f"## {name}", _plain(command.help or "")]
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        lines.append("| option | meaning | default |\n| --- | --- | --- |\n" + "\n".join(rows))
    yield "\n\n".join(lines)


def _row(parameter: click.Parameter) -> str | None:
    if getattr(parameter, "hidden", False):
        return None
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(parameter, click.Argument):
        names = f"`{(parameter.name or '').upper()}`"
    shown = parameter.default not in (None, False, ()) and not callable(parameter.default)
    default = f"`{parameter.default}`" if shown else ""
    said = getattr(parameter, "show_default", None)
    if isinstance(said, str):  # a sentence where the default depends on something
        default = said
    help_text = _plain(getattr(parameter, "help", "") or "").replace("\n", " ").replace("|", "\\|")
    return f"| {names} | {help_text} | {default} |"


def _plain(text: str) -> str:
    """Help texts carry Rich's [bold]; on a page that is Markdown's."""
    text = text.replace("[bold]", "**").replace("[/bold]", "**")
    # Example commands stand indented in help texts: code on a page.
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(f"    {line}" if line.startswith("privmarket ") else _literal(line) for line in lines)


def _literal(line: str) -> str:
    """Brackets of a help text are brackets, not links; what stands between backticks is left alone."""
    return re.sub(r"`[^`]*`|\[", lambda found: "\\[" if found.group() == "[" else found.group(), line)
