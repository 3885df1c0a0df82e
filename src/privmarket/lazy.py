"""Modules that are imported when they are first used: the one place where this package puts off an import.

What needs it is start-up. `import privmarket` loads no NumPy, `privmarket --help` no command, an auction neither
torch nor SciPy, a client that only bids no torch, and help is printed where the extra of a command is missing.
No function of this package imports anything itself; a test counts.

- `late("torch")`, at the top of a module, stands for a module until one of its attributes is read. Where the module
  has types, the same import stands beside it under `TYPE_CHECKING`, so that mypy and the layer contract see it.
- `public_names(…)` makes the `__getattr__` and `__dir__` of a package whose names live in its modules.
- `privmarket.cli` keeps a table of commands and loads the module of the command that was typed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from privmarket.extras import needed


class _LateModule(ModuleType):
    """Imports the module of its name when an attribute is read; a missing extra becomes a `MissingPartError`."""

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):  # tools that look at modules must not load them
            raise AttributeError(attribute)
        module = sys.modules.get(self.__name__)
        if module is None:
            with needed():
                module = import_module(self.__name__)
        return getattr(module, attribute)


def late(name: str) -> ModuleType:
    """The module `name`, imported when one of its attributes is first read."""
    return _LateModule(name)


def public_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are loaded when they are first used.

    Args:
        package: the package's name.
        homes: public name → the module that defines it, or that it is.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needed():
            module = import_module(homes[name])
            found = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(homes)
