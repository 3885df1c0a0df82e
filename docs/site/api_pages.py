"""A page of the Python reference for each public package, with every name that the package shows.

Below these stand the classes that its functions and methods return, and that have no public name because nobody
else makes them: a reader meets them, and wants to know what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
from mkdocs.structure.files import File

_SOURCE = Path(__file__).parents[2] / "src"
_PAGE = re.compile(r"(?<![\w/\"])(?:<code>)?docs/([\w/-]+)\.md(?:</code>)?(?![\w\"])")


def packages(name: str = "privmarket") -> dict[str, ModuleType]:
    """Each public package below the one called `name`, with its path from there, such as `mechanisms.learned`."""
    found = {}
    module = import_module(name)
    for child in module.__all__:
        if isinstance(below := getattr(module, child), ModuleType):
            found[child] = below
            found |= {f"{child}.{path}": one for path, one in packages(f"{name}.{child}").items()}
    return found


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook: adds `reference/api/PACKAGE.md`."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/api/{name}.md", content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """MkDocs' hook: a page that a docstring names by its place in the repository becomes a link with its title."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    up = "../" * page.file.src_uri.count("/")
    return linked(html, up, Path(config["docs_dir"]))


def linked(html: str, up: str, docs: Path) -> str:
    """`html` with links in place of `docs/PAGE.md`; `up` leads from the page to the site's root."""

    def link(found: re.Match[str]) -> str:
        title = (docs / f"{found[1]}.md").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        return f'<a href="{up}{found[1]}.html">{title}</a>'

    return _PAGE.sub(link, html)


def pages() -> dict[str, str]:
    """The page of each package."""
    source = griffe.load("privmarket", search_paths=[str(_SOURCE)], resolve_aliases=True, resolve_external=False)
    returned = also_returned(source, public_names(source))
    return {name: page(name, module, returned) for name, module in packages().items()}


def page(name: str, module: ModuleType, returned: list[str]) -> str:
    """The package's own docstring, each public name with its signature and docstring, and what they return.

    Args:
        returned: the paths of all classes that are returned and not public; those of this package are shown.
    """
    names = sorted(one for one in module.__all__ if not isinstance(getattr(module, one), ModuleType))
    lines = [f"# privmarket.{name}", "", (module.__doc__ or "").strip(), ""]
    lines += [f"::: privmarket.{name}.{one}\n" for one in names]
    # A class belongs to the page of the package that its module stands in: what is between are private modules.
    here = [path for path in returned if path.removeprefix(f"privmarket.{name}.").startswith("_")]
    if here:
        lines += ["## What these return", ""]
        lines += [f"::: {path}\n    options:\n      show_root_full_path: false\n" for path in here]
    return "\n".join(lines)


def public_names(source: griffe.Object) -> dict[str, griffe.Object]:
    """Where each public function, class or constant is defined, and what it is."""
    found: dict[str, griffe.Object] = {}
    for name, module in {"": import_module("privmarket"), **packages()}.items():
        for one in module.__all__:
            if not isinstance(getattr(module, one), ModuleType) and not one.startswith("__"):
                target = source[f"{name}.{one}".lstrip(".")].final_target
                found[target.path] = target
    return found


def also_returned(source: griffe.Object, public: dict[str, griffe.Object]) -> list[str]:
    """Paths of the classes that public functions and methods return, and theirs, and that are not public."""
    known = dict(public)
    waiting = list(public.values())
    while waiting:
        for function in _functions(waiting.pop()):
            for path in _named(function):
                found = _class_at(source, path)
                if found is not None and found.path not in known:
                    known[found.path] = found
                    waiting.append(found)
    return sorted(path for path in known if path not in public)


def _functions(of: griffe.Object) -> Iterator[griffe.Object]:
    """A function, or the public methods and properties of a class."""
    if of.is_function:
        yield of
    elif of.is_class:
        members = (one for name, one in of.all_members.items() if not name.startswith("_") and not one.is_alias)
        yield from (one for one in members if one.is_function or "property" in one.labels)


def _named(function: griffe.Object) -> Iterator[str]:
    """The paths of our names in what a function returns, or a property is."""
    answer = function.returns if function.is_function else function.annotation
    for part in [] if answer is None or isinstance(answer, str) else answer.iterate(flat=True):
        path = getattr(part, "canonical_path", "")
        if path.startswith("privmarket."):
            yield path


def _class_at(source: griffe.Object, path: str) -> griffe.Object | None:
    try:
        found = source[path.removeprefix("privmarket.")]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError):  # a name of another library
        return None
    return found if found.is_class else None
