"""`privmarket sample` and `privmarket example`: files to start from, copied out of the installed package."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from privmarket.cli._options import note
from privmarket.errors import ConfigurationError, UnknownNameError, WriteError

_SAMPLES = "samples"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "out")
Target = Annotated[Path | None, typer.Option("--to", help="Where to; the working folder unless told.")]


def sample(
    name: Annotated[str | None, typer.Argument(help="E.g. bids.csv; lists all samples if left out.")] = None,
    to: Target = None,
) -> None:
    """Copy a sample file: bids to auction, sales to account for, a rule of your own.

    [bold]Examples[/bold]

      privmarket sample bids.csv

      privmarket sample sales.csv --to data
    """
    _copy("sample", name, files("privmarket") / "examples" / _SAMPLES, to)


def example(
    name: Annotated[
        str | None, typer.Argument(help="E.g. flower-quickstart; lists all examples if left out.")
    ] = None,
    to: Target = None,
) -> None:
    """Copy an example project to start from: a Flower app, a rule of your own.

    [bold]Examples[/bold]

      privmarket example

      privmarket example flower-quickstart
    """
    _copy("example", name, files("privmarket") / "examples", to)


def _copy(what: str, name: str | None, source: object, to: Path | None) -> None:
    with as_file(source) as folder:  # type: ignore[arg-type]
        known = sorted(
            path.name
            for path in folder.iterdir()
            if path.name not in (_SAMPLES, "README.md", "__pycache__") and path.is_dir() == (what == "example")
        )
        if name is None:
            print("\n".join(known))
            return
        if name not in known:
            raise UnknownNameError.among(what, name, known)
        target = (to or Path()) / name
        if target.exists():
            raise ConfigurationError(f"{target} is there already", "remove it, or choose another folder with --to")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if what == "example":
                shutil.copytree(folder / name, target, ignore=_LEFT_OUT)
            else:
                shutil.copyfile(folder / name, target)
        except OSError as error:
            raise WriteError(
                f"could not write {target}: {error.strerror or error}", "choose another folder"
            ) from error
    note(f"written: {target}")
