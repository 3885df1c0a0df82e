"""The market on Flower: apps, a strategy wrapper, a client mod, and an in-process grid.

Nothing is imported until it is asked for, so `pm.flower.client_app` does not load torch, and `import privmarket`
loads neither torch nor Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from privmarket.errors import ConfigurationError

_HOMES = {
    "server_app": "server",
    "client_app": "client",
    "AuctionStrategy": "strategy",
    "WalletMod": "mod",
    "WalletFile": "journal",
    "MarketSettings": "settings",
    "MarketResult": "result",
    "InProcessGrid": "in_process",
    "run_in_process": "in_process",
    "federation_server": "federation",
    "federation_client": "federation",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"privmarket.flower.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise ConfigurationError(
            "Flower is not installed", 'pip install "privmarket[flower]", with [sim] for its simulation engine'
        ) from error
