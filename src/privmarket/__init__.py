"""privmarket: a market in which federated-learning clients sell differential-privacy budget.

>>> import privmarket as pm
>>> bids = pm.Bids(valuation=[.2, .9, .4], epsilon=[1., 2., .5])
>>> outcome = pm.mechanism("proportional-share").run(bids, budget=1.0)
>>> outcome.epsilon
array([1. , 0. , 0.5])
"""

from typing import Any

from privmarket.errors import PrivmarketError
from privmarket.market.bids import Bids
from privmarket.market.mechanism import Mechanism
from privmarket.market.outcome import Outcome
from privmarket.mechanisms import mechanism, mechanisms

__version__ = "0.1.0"
__all__ = [
    "Bids",
    "BrokerClient",
    "Mechanism",
    "Outcome",
    "PrivmarketError",
    "__version__",
    "mechanism",
    "mechanisms",
]


def __getattr__(name: str) -> Any:
    # An HTTP library is not needed to run an auction.
    if name == "BrokerClient":
        from privmarket.broker.client import BrokerClient

        return BrokerClient
    # Flower, an optional dependency, is loaded by what is taken from there.
    if name == "flower":
        from importlib import import_module

        return import_module("privmarket.flower")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
