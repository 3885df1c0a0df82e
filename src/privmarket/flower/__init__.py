"""The market on Flower: apps that sell and buy, an auction around any strategy, and guards for a site.

- `server_app`, `client_app`: a whole market as a Flower app, from a model and data or from a task.
- `AuctionStrategy`, `WalletMod`: the market around an app that you have; one wraps its strategy, the other its
  client.
- `GuardMod`, `average_privately`: privacy without a market. A mod lets a site release only what its policy allows.
- `train_privately`, `train_arrays_privately`: private training inside an app, with torch or without.
- `MarketSettings`, `MarketResult`: the settings of a run, and its result.
- `run_in_process`, `InProcessGrid`: a run without an engine, in one process.
- `federation_server`, `federation_client`: a run of `pm.simulation` on Flower's engines, with the same outcome.

A client that only bids loads no torch.
"""

# To read the code, begin with `_server.py` (the buyer's side of a round) and `_seller.py` (what a client does and
# refuses); `_wire.py` lists the messages between them.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
