"""Modules that are imported when they are first used: the one place where this package puts off an import.

What needs it is start-up. `import privmarket` loads no NumPy, `privmarket --help` no command, an auction neither
torch nor SciPy, a client that only bids no torch, and help is printed where the extra of a command is missing.
No function of this package imports anything itself; a test counts.

- `late("torch")`, at the top of a module, stands for a module until one of its attributes is read. Where the module
  has types, the same import stands beside it under `TYPE_CHECKING`, so that mypy and the layer contract see it.
- `attach(…)` makes the `__getattr__` and `__dir__` of a package from the names in its `__init__.pyi`.
- `privmarket.cli` keeps a table of commands and loads the module of the command that was typed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import lazy_loader

from privmarket._extras import needed


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


def attach(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names are listed once, in its `__init__.pyi`.

    The stub is what mypy and editors read. At run time `lazy_loader` reads the same file and imports a name when it
    is first used. A missing optional package becomes a `MissingPartError` that says what to install.

    Args:
        package: the package's `__name__`.
        file: the package's `__file__`.
    """
    get, listed, names = lazy_loader.attach_stub(package, file)

    def get_or_explain(name: str) -> object:
        with needed():
            return get(name)

    return get_or_explain, listed, names
