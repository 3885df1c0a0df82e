"""Finds objects that users name as text: `file.py:Name` or `package.module:Name`."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from privmarket.errors import ConfigurationError, UnknownNameError


def names_code(text: str) -> bool:
    """Whether a text means an object in code of the user's own, and not something that is registered by name.

    A file without a name in it does, too: `object_named` says what the file has.
    """
    return ":" in text or text.endswith(".py")


def object_named(kind: str, name: str, hint: str = "") -> object:
    """The object that `package.module:Name` or `path/to/file.py:Name` stands for. Its module is run to get it.

    Args:
        kind: what is looked for, such as "rule", for messages.
        hint: what else could be given, for messages.

    Raises:
        ConfigurationError: the name does not have that form, or the module cannot be imported.
        UnknownNameError: the module has nothing of that name.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not attribute:
        file = name.removesuffix(":")
        if file.endswith(".py") and Path(file).is_file():
            names = ", ".join(_defined_in(Path(file)))
            one_of = f", with one of: {names}" if names else ""
            raise ConfigurationError(f"{name!r} names a file and no {kind} in it", f"write {file}:NAME{one_of}")
        raise ConfigurationError(
            f"{name!r} names no {kind}", f"write file.py:{kind} or package.module:{kind}{hint}"
        )
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else _module(place)
    except ConfigurationError:
        raise  # the module's own error, with its own hint
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise ConfigurationError(
            f"{kind} {place!r} cannot be imported: {error}",
            f"give path/to/file.py:{kind} or package.module:{kind}{hint}",
        ) from error
    if not hasattr(module, attribute):
        own = [one for one in vars(module) if not one.startswith("_") and _is_of(module, one)]
        raise UnknownNameError.among(f"{kind} in {place}", attribute, own)
    found: object = getattr(module, attribute)
    return found


def made_callable(kind: str, found: Any, arguments: int, write: str, shown: object) -> Any:
    """Something that is called with so many arguments, made from a class where one is given.

    Args:
        kind: what is looked for, for messages.
        write: what a hint tells the author to write.
        shown: how messages name it.

    Raises:
        ConfigurationError: it cannot be called like that.
    """
    if inspect.isclass(found):
        try:
            found = found()
        except TypeError as error:
            raise ConfigurationError(
                f"{kind} {found.__name__} cannot be made: {error}", "give every argument of __init__ a default"
            ) from error
    try:
        inspect.signature(found).bind(*[None] * arguments)
    except TypeError as error:
        raise ConfigurationError(f"{shown!r} is no {kind}: {error}", f"write {write}") from error
    return found


def _defined_in(file: Path) -> list[str]:
    """The public classes and functions that a file defines. It is read, not run; none where it is no Python."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    defined = (one.name for one in statements if isinstance(one, ast.ClassDef | ast.FunctionDef))
    return [name for name in defined if not name.startswith("_")]


def _is_of(module: ModuleType, name: str) -> bool:
    """Whether a module defines this name itself: it is not a module, class or function that it imported."""
    value = vars(module)[name]
    if inspect.isclass(value) or inspect.isroutine(value):
        return getattr(value, "__module__", None) == module.__name__
    return not inspect.ismodule(value)


def _module(name: str) -> ModuleType:
    """The module, looked for in the working directory, too: a console script does not look there."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
        sys.path.insert(0, here)
        return import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    """The file as a module; it may import files beside it."""
    spec = util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"{path} is no Python file")
    module = util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return module
