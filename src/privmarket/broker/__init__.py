"""The market as a service: sealed bids, escrow, lifetime wallets and a log that cannot be edited unseen.

`Broker` holds the rules and a database, `api` serves it over HTTP, `BrokerClient` calls it from Python. Money and
wallets go through the same `Round` and `Wallets` that the simulation uses. Nothing here imports torch.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.broker import api, http_client
    from privmarket.broker.broker import Broker
    from privmarket.broker.http_client import BrokerClient

__all__ = ["Broker", "BrokerClient", "api", "http_client"]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "Broker": "privmarket.broker.broker",
    "BrokerClient": "privmarket.broker.http_client",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
