"""What Flower packs into an app: files of a site's own that lie in the app's folder would leave with the next run.

`flwr run` sends all Python, TOML, Markdown, YAML and JSON files of the folder to the SuperLink, and from there to
every SuperNode, except those that the folder's own `.gitignore`, or `fab-exclude` in its `pyproject.toml`, names.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pathspec

_log = logging.getLogger("privmarket.client")
_PACKED = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
_WALLET = b'{"kind": "opened"'  # how a wallet file begins
_told: set[Path] = set()


def packed_into(path: Path) -> Path | None:
    """The folder of the Flower app into which this file would be packed; None if there is none."""
    place = path.absolute()
    if place.suffix not in _PACKED:
        return None
    for folder in place.parents:
        app = _app_of(folder)
        if app is None:
            continue
        excluded = app.get("fab-exclude")
        lines = [str(one) for one in excluded] if isinstance(excluded, list) else []
        ignored = folder / ".gitignore"
        if ignored.is_file():
            lines += ignored.read_text(encoding="utf-8", errors="replace").splitlines()
        spec = pathspec.PathSpec.from_lines("gitignore", lines)
        return None if spec.match_file(place.relative_to(folder).as_posix()) else folder
    return None


def warn_if_packed(path: Path) -> None:
    """Says once, in the owner's log, that a wallet or policy file would leave with the next `flwr run`."""
    folder = packed_into(path)
    if folder is not None and path not in _told:
        _told.add(path)
        _log.warning(
            "%s lies in the folder of a Flower app, which `flwr run` packs and sends to the SuperLink and to every "
            "node. Put it elsewhere, or name it in %s",
            path,
            folder / ".gitignore",
        )


def wallets_in(folder: Path) -> Iterator[Path]:
    """The wallet files that would be packed into the app in `folder`."""
    for path in sorted(folder.rglob("*.jsonl")):
        with path.open("rb") as stream:
            if stream.read(len(_WALLET)) == _WALLET and packed_into(path) is not None:
                yield path


def _app_of(folder: Path) -> dict[str, object] | None:
    """`[tool.flwr.app]` of a folder's project; None if it holds no Flower app."""
    try:
        table = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        app = table["tool"]["flwr"]["app"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return app if isinstance(app, dict) else None
