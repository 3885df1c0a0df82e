"""The market on Flower: apps, a strategy wrapper, a client mod, and an in-process grid.

Nothing is imported until it is asked for, so `pm.flower.client_app` does not load torch, and `import privmarket`
loads neither torch nor Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from privmarket.extras import needed

_HOMES = {
    "server_app": "privmarket.flower.server",
    "client_app": "privmarket.flower.client",
    "AuctionStrategy": "privmarket.flower.strategy",
    "WalletMod": "privmarket.flower.mod",
    "WalletFile": "privmarket.privacy.wallet_file",
    "MarketSettings": "privmarket.flower.settings",
    "MarketResult": "privmarket.flower.result",
    "InProcessGrid": "privmarket.flower.in_process",
    "run_in_process": "privmarket.flower.in_process",
    "federation_server": "privmarket.flower.federation",
    "federation_client": "privmarket.flower.federation",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed():
        return getattr(import_module(_HOMES[name]), name)
