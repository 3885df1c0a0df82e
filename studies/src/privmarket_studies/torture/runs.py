"""Long tests in pieces: each run is added to a JSON list, with a digest of the code that it ran on."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

from privmarket import broker
from privmarket._files import write_atomically

# Pages, clients and what is only read: a change of these changes no figure of a torture run.
_OUTSIDE = (
    "_api_page",
    "_charts",
    "_client",
    "_demo_market",
    "_log_views",
    "_metrics",
    "_page_frame",
    "_pages",
    "_views",
    "_witness",
)


def broker_code() -> str:
    """Sixteen digits over the broker's Python files but those of pages and clients: which code a figure is of.

    Of what the code does: comments, docstrings, and import lines, which follow renamed modules, do not count.
    """
    found = hashlib.sha256()
    folder = Path(broker.__file__).parent
    for file in sorted(folder.glob("*.py")):
        if file.stem not in _OUTSIDE:
            tree = _Undocumented().visit(ast.parse(file.read_text(encoding="utf-8")))
            found.update(file.name.encode() + b"\0" + ast.unparse(tree).encode())
    return found.hexdigest()[:16]


class _Undocumented(ast.NodeTransformer):
    """Takes docstrings, other texts that stand alone, and imports out of a module."""

    def visit_Import(self, node: ast.Import) -> None:
        """An import is left out."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """An import is left out."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        """A statement that is a text becomes one that says nothing."""
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return ast.Expr(ast.Constant(None))
        return node


def append(path: Path, result: dict[str, object]) -> None:
    """Adds one run to a JSON list of runs."""
    runs = json.loads(path.read_text()) if path.exists() else []
    write_atomically(path, json.dumps([*runs, result], indent=1) + "\n")
