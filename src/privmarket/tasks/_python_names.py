"""Objects that users name on a command line: `file.py:name` and `package.module:name`."""

from __future__ import annotations

import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

from privmarket.errors import ConfigurationError, UnknownNameError


def object_named(name: str, what: str) -> object:
    """The object called `path/to/file.py:name` or `package.module:name`. Its module is run to get it.

    Args:
        name: file or module, and name.
        what: the kind of object, for messages, such as "task" or "model".
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise ConfigurationError(f"{name!r} names no {what}", f"write file.py:{what} or package.module:{what}")
    module = _module(place, what)
    if not hasattr(module, attribute):
        public = [one for one in vars(module) if not one.startswith("_")]
        raise UnknownNameError.among(f"{what} in {place}", attribute, public)
    return getattr(module, attribute)


def _module(place: str, what: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _module_of_file(Path(place))
        # A console script does not search the working directory for modules; `python -m` does.
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        return import_module(place)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise  # the module's own error, with its own hint
        raise ConfigurationError(
            f"{place!r} cannot be imported: {error}", f"give path/to/file.py:{what} or package.module:{what}"
        ) from error


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
