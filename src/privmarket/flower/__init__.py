"""The market on Flower: apps, a strategy wrapper, a client mod, and an in-process grid.

- `client`, `server`, `settings`, `result`, `strategy`, `mod`: the apps, an auction around a strategy, a wallet.
- `wire`, `fleet`, `grid_market`, `broker_auction`: messages, the server's view of its clients, the market of a run.
- `node_seller`, `guard`, `training`, `training_checks`: what a client does and what it refuses.
- `GuardMod`, `average_privately`: privacy without a market, under any server.
- `secure`, `secure_seller`: the messages of secure sums (`privmarket.secagg`) over Flower's grid.
- `federation`, `in_process`, `engine`, `app_folder`, `rehearsal`, `sum_rehearsal`: runs on every engine.

Each name is imported when it is first used: a client that only bids loads no torch. `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.flower import (
        app_folder,
        broker_auction,
        client,
        engine,
        federation,
        fleet,
        grid_market,
        guard,
        in_process,
        mod,
        node_seller,
        rehearsal,
        result,
        secure,
        secure_seller,
        server,
        settings,
        strategy,
        sum_rehearsal,
        training,
        training_checks,
        wire,
    )
    from privmarket.flower._array_training import train_arrays_privately
    from privmarket.flower._guard_mod import GuardMod
    from privmarket.flower._guard_release import average_privately
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
    "GuardMod",
    "InProcessGrid",
    "MarketResult",
    "MarketSettings",
    "WalletFile",
    "WalletMod",
    "app_folder",
    "average_privately",
    "broker_auction",
    "client",
    "client_app",
    "engine",
    "federation",
    "federation_client",
    "federation_server",
    "fleet",
    "grid_market",
    "guard",
    "in_process",
    "mod",
    "node_seller",
    "rehearsal",
    "result",
    "run_in_process",
    "secure",
    "secure_seller",
    "server",
    "server_app",
    "settings",
    "strategy",
    "sum_rehearsal",
    "train_arrays_privately",
    "train_privately",
    "training",
    "training_checks",
    "wire",
]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "AuctionStrategy": "privmarket.flower.strategy",
    "GuardMod": "privmarket.flower._guard_mod",
    "InProcessGrid": "privmarket.flower.in_process",
    "MarketResult": "privmarket.flower.result",
    "MarketSettings": "privmarket.flower.settings",
    "WalletFile": "privmarket.privacy.wallet_file",
    "WalletMod": "privmarket.flower.mod",
    "average_privately": "privmarket.flower._guard_release",
    "client_app": "privmarket.flower.client",
    "federation_client": "privmarket.flower.federation",
    "federation_server": "privmarket.flower.federation",
    "run_in_process": "privmarket.flower.in_process",
    "server_app": "privmarket.flower.server",
    "train_arrays_privately": "privmarket.flower._array_training",
    "train_privately": "privmarket.flower.training",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
