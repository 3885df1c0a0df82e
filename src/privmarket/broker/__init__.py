"""The market as a service: sealed bids, escrow, lifetime wallets and a log that cannot be edited unseen.

`Broker` holds the rules and a database, `api` serves it over HTTP, `BrokerClient` calls it from Python. Money and
wallets go through the same `Round` and `Wallets` that the simulation uses. Nothing here imports torch.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
