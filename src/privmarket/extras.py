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
    "jinja2": "federated",
    "matplotlib": "plots",
    "multipart": "broker",
    "opacus": "flower",
    "pandas": "pandas",
    "PIL": "federated",
    "psycopg": "postgres",
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
_EXTRA_OF_OUR_PACKAGE = {"flower": "flower", "federated": "federated", "broker": "broker"}
_OF_A_CLIENT = ("privmarket.broker.http_client", "privmarket.cli.seller_at_broker", "privmarket.cli.witness")


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
        extra = _EXTRA_OF_OUR_PACKAGE.get(_who_imported(error), extra)
    return _missing(package, extra)


def _missing(package: str, extra: str) -> MissingPartError:
    return MissingPartError(f"{package} is not installed", f'pip install "privmarket[{extra}]"')


def _who_imported(error: ModuleNotFoundError) -> str:
    """The package of ours whose code ran into the missing one, such as `federated`; empty for none or a client."""
    below = error.__traceback__
    above = None if below is None else below.tb_frame.f_back
    modules: list[str] = []  # outermost caller first
    while above is not None:
        modules.insert(0, str(above.f_globals.get("__name__", "")))
        above = above.f_back
    while below is not None:
        modules.append(str(below.tb_frame.f_globals.get("__name__", "")))
        below = below.tb_next
    if any(module in _OF_A_CLIENT for module in modules):  # it uses a few modules of `broker`, but no web server
        return ""
    parts = [module.split(".")[1] for module in modules if module.startswith("privmarket.")]
    return next((part for part in reversed(parts) if part in _EXTRA_OF_OUR_PACKAGE), "")
