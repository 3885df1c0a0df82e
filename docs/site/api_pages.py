"""A page of the Python reference for each package, with every name that the package shows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mkdocs.structure.files import File

PACKAGES = (
    "market", "mechanisms", "privacy", "meanfield", "rounds", "secagg", "training", "tasks", "simulation", "flower", "broker",
)  # fmt: skip


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook: adds `reference/api/PACKAGE.md`."""
    for package in PACKAGES:
        files.append(File.generated(config, f"reference/api/{package}.md", content=page(package)))
    return files


def page(package: str) -> str:
    """The package's own docstring, then each public name with its signature and docstring."""
    module = import_module(f"privmarket.{package}")
    names = sorted(name for name in module.__all__ if type(getattr(module, name)).__name__ != "module")
    lines = [f"# privmarket.{package}", "", (module.__doc__ or "").strip(), ""]
    lines += [f"::: privmarket.{package}.{name}\n" for name in names]
    return "\n".join(lines)
