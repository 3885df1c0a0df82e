"""What is installed only on request, and the one line that says how to get it.

The core needs NumPy and SciPy. Training, the service, Flower and figures need more; each is an *extra* of the
package, such as `privmarket[learn]`. A missing one is reported as a `MissingPartError` that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from privmarket.errors import MissingPartError

# Importable package → the extra that installs it. Packages of several extras are told apart by who needs them.
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
    "PIL": "federated",
    "prometheus_client": "broker",
    "psycopg": "postgres",
    "pyarrow": "pandas",
    "pydantic": "broker",
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
    """The extra of our code that ran into the missing package; empty where it needs no other than the usual one.

    Three extras are named like a package of ours. A module that needs less than the rest of such a package says so
    above its imports, such as `__extra__ = "client"`.
    """
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
    return next((part for part in reversed(parts) if part in EXTRA_OF.values()), "")
