"""Commands of other distributions: found through the entry-point group `privmarket.commands`.

An entry point names a function (one command) or a `typer.Typer` (a group of commands). The studies of this
repository come this way; where they are not installed, their commands say in one line how to get them.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import typer

from privmarket.errors import MissingPartError

GROUP = "privmarket.commands"
STUDIES = {
    "reproduce": "Compute the tables and figures of the paper's evaluation.",
    "bench": "Speed, as ratios against stated references in the same run.",
    "nash-gap": "Measure the Nash gap of the solved mean-field game.",
}
_HOW_TO_GET = "in a checkout of privmarket: pip install ./studies"


def add_commands(app: typer.Typer, found: list[EntryPoint] | None = None) -> None:
    """Adds every command that an installed distribution offers, and a placeholder for each study that is missing.

    Args:
        found: the entry points; those that are installed if left out.
    """
    offered = {point.name: point for point in (entry_points(group=GROUP) if found is None else found)}
    for name, point in sorted(offered.items()):
        try:
            command = point.load()
        except Exception as error:  # another distribution's fault must not take this command line down
            _add_placeholder(app, name, f"{point.value} cannot be loaded: {error}", "install it again")
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    for name in [name for name in STUDIES if name not in offered]:
        _add_placeholder(app, name, "it is part of privmarket-studies, which is not installed", _HOW_TO_GET)


def _add_placeholder(app: typer.Typer, name: str, reason: str, remedy: str) -> None:
    def missing(context: typer.Context) -> None:
        raise MissingPartError(f"no command {name!r}: {reason}", remedy)

    app.command(
        name,
        help=f"{STUDIES.get(name, '')} (not available: {reason})",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(missing)
