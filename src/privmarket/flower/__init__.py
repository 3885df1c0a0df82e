"""The market on Flower: apps, a strategy wrapper, a client mod, and an in-process grid.

- `client`, `server`, `settings`, `result`, `strategy`, `mod`: the apps, an auction around a strategy, a wallet.
- `wire`, `fleet`, `grid_market`, `broker_auction`: messages, the server's view of its clients, the market of a run.
- `node_seller`, `guard`, `training`, `training_checks`: what a client does and what it refuses.
- `GuardMod`, `average_privately`: privacy without a market, under any server.
- `secure`, `secure_seller`: the messages of secure sums (`privmarket.secagg`) over Flower's grid.
- `federation`, `in_process`, `engine`, `app_folder`, `rehearsal`, `sum_rehearsal`: runs on every engine.

Each name is imported when it is first used: a client that only bids loads no torch. `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
