"""Imports that are put off until they are needed, and imports of optional packages.

Start-up must be quick: `import privmarket` loads no NumPy, `privmarket --help` loads no command, an auction loads
neither torch nor SciPy, and help is printed where the extra of a command is missing. This module is the only place
that puts off an import; no function of this package imports anything itself.

- `late("torch")`, at the top of a module, stands for a module until one of its attributes is read. Where the module
  has types, the same import stands beside it under `TYPE_CHECKING`, so that mypy and the layer contract see it.
- `attach(…)` makes `__getattr__`, `__dir__` and `__all__` of a package from the names in its `__init__.pyi`.
- `require("torch")` and `needed()` turn a missing optional package into a `MissingPartError` that says which extra
  to install. The core needs NumPy and SciPy; training, the service, Flower and figures are extras, such as
  `privmarket[learn]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import lazy_loader

from privmarket.errors import MissingPartError

# Importable package → the extra that installs it. Some belong to several extras (`_SHARED`): for these the error
# names the extra of the code that needs them.
EXTRA_OF = {
    "alembic": "broker",
    "cryptography": "client",
    "fastapi": "broker",
    "flwr": "flower",
    "httptools": "broker",
    "httpx": "client",
    "itsdangerous": "broker",
    "jinja2": "federated",
    "matplotlib": "plots",
    "multipart": "broker",
    "opacus": "dev",
    "pandas": "pandas",
    "pathspec": "flower",
    "PIL": "federated",
    "prometheus_client": "broker",
    "psycopg": "postgres",
    "pyarrow": "pandas",
    "pydantic": "broker",
    "pydantic_core": "broker",
    "python_multipart": "broker",
    "ray": "sim",
    "sklearn": "federated",
    "sqlalchemy": "broker",
    "starlette": "broker",
    "torch": "learn",
    "typing_extensions": "broker",
    "uvicorn": "broker",
}
_SHARED = {"cryptography", "torch", "jinja2", "httpx"}
# Package of ours → its extra. A module that needs less says so above its imports: `__extra__ = "client"`.
EXTRA_OF_PART = {"broker": "broker", "flower": "flower", "simulation": "federated", "tasks": "federated"}


def require(package: str, extra: str | None = None) -> None:
    """Raises `MissingPartError` unless `package` is installed; does not import it.

    For commands that need a package only at their end, so that nobody waits for work that cannot be finished.

    Args:
        package: the name under which it is imported.
        extra: the extra to name, if not the usual one.
    """
    if find_spec(package) is None:
        raise _missing(package, extra or EXTRA_OF[package])


@contextmanager
def needed() -> Iterator[None]:
    """Around an import: a missing optional package becomes a `MissingPartError`; other errors pass."""
    try:
        yield
    except ModuleNotFoundError as error:
        explained = explain(error)
        if explained is None:
            raise
        raise explained from error


def explain(error: ModuleNotFoundError) -> MissingPartError | None:
    """The error to show for a failed import; None if the module that was not found is no optional package."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, MissingPartError) or package not in EXTRA_OF:
        return None
    extra = EXTRA_OF[package]
    if package in _SHARED:
        extra = _extra_of_importer(error) or extra
    return _missing(package, extra)


def _missing(package: str, extra: str) -> MissingPartError:
    return MissingPartError(f"{package} is not installed", f'pip install "privmarket[{extra}]"')


def _extra_of_importer(error: ModuleNotFoundError) -> str:
    """The extra of our code that ran into the missing package; empty where it needs no other than the usual one."""
    below = error.__traceback__
    above = None if below is None else below.tb_frame.f_back
    running: list[dict[str, object]] = []  # the globals of modules, outermost caller first
    while above is not None:
        running.insert(0, above.f_globals)
        above = above.f_back
    while below is not None:
        running.append(below.tb_frame.f_globals)
        below = below.tb_next
    ours = [names for names in running if str(names.get("__name__")).startswith("privmarket.")]
    for names in ours:
        if "__extra__" in names:
            return str(names["__extra__"])
    parts = [str(names["__name__"]).split(".")[1] for names in ours]
    return next((EXTRA_OF_PART[part] for part in reversed(parts) if part in EXTRA_OF_PART), "")


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


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
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
