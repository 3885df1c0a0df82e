"""The market on Flower: apps, a strategy wrapper, a client mod, and an in-process grid.

Each name is imported when it is first used: a client that only bids loads no torch.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.flower.client import client_app
    from privmarket.flower.federation import federation_client, federation_server
    from privmarket.flower.in_process import InProcessGrid, run_in_process
    from privmarket.flower.mod import WalletMod
    from privmarket.flower.result import MarketResult
    from privmarket.flower.server import server_app
    from privmarket.flower.settings import MarketSettings
    from privmarket.flower.strategy import AuctionStrategy
    from privmarket.flower.training import train_privately
    from privmarket.privacy.wallet_file import WalletFile

__all__ = [
    "AuctionStrategy",
    "InProcessGrid",
    "MarketResult",
    "MarketSettings",
    "WalletFile",
    "WalletMod",
    "client_app",
    "federation_client",
    "federation_server",
    "run_in_process",
    "server_app",
    "train_privately",
]

# public name → the module that defines it
_HOMES = {
    "AuctionStrategy": "privmarket.flower.strategy",
    "InProcessGrid": "privmarket.flower.in_process",
    "MarketResult": "privmarket.flower.result",
    "MarketSettings": "privmarket.flower.settings",
    "WalletFile": "privmarket.privacy.wallet_file",
    "WalletMod": "privmarket.flower.mod",
    "client_app": "privmarket.flower.client",
    "federation_client": "privmarket.flower.federation",
    "federation_server": "privmarket.flower.federation",
    "run_in_process": "privmarket.flower.in_process",
    "server_app": "privmarket.flower.server",
    "train_privately": "privmarket.flower.training",
}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
