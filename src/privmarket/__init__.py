"""privmarket: a market in which federated-learning clients sell differential-privacy budget.

>>> import privmarket as pm
>>> bids = pm.Bids(valuation=[.2, .9, .4], epsilon=[1., 2., .5])
>>> outcome = pm.mechanism("proportional-share").run(bids, budget=1.0)
>>> outcome.epsilon
array([1. , 0. , 0.5])

Everything public is listed by `dir(privmarket)`: the names in `_NAMES` and the packages in `_PACKAGES` below.
Each is imported when it is first used, so that `import privmarket` takes a few milliseconds and an auction never
waits for torch, a web server or Flower. This is the one place of the package that does so for its users.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from privmarket.extras import needed
from privmarket.version import __version__

if TYPE_CHECKING:
    from privmarket import broker, federated, flower, market, meanfield, mechanisms, privacy, rounds
    from privmarket.broker.http_client import BrokerClient
    from privmarket.errors import PrivmarketError
    from privmarket.federated.entry_point import federate
    from privmarket.market.bids import Bids
    from privmarket.market.facts import MarketFacts
    from privmarket.market.mechanism import Mechanism
    from privmarket.market.outcome import Outcome
    from privmarket.market.scenarios import scenario
    from privmarket.mechanisms.registry import mechanism, mechanism_names
    from privmarket.privacy.wallet import Wallet
    from privmarket.reports.comparison import audit, compare

__all__ = [
    "Bids",
    "BrokerClient",
    "MarketFacts",
    "Mechanism",
    "Outcome",
    "PrivmarketError",
    "Wallet",
    "__version__",
    "audit",
    "broker",
    "compare",
    "federate",
    "federated",
    "flower",
    "market",
    "meanfield",
    "mechanism",
    "mechanism_names",
    "mechanisms",
    "privacy",
    "rounds",
    "scenario",
]

# public name → the module that defines it
_NAMES = {
    "Bids": "privmarket.market.bids",
    "BrokerClient": "privmarket.broker.http_client",
    "MarketFacts": "privmarket.market.facts",
    "Mechanism": "privmarket.market.mechanism",
    "Outcome": "privmarket.market.outcome",
    "PrivmarketError": "privmarket.errors",
    "Wallet": "privmarket.privacy.wallet",
    "audit": "privmarket.reports.comparison",
    "compare": "privmarket.reports.comparison",
    "federate": "privmarket.federated.entry_point",
    "mechanism": "privmarket.mechanisms.registry",
    "mechanism_names": "privmarket.mechanisms.registry",
    "scenario": "privmarket.market.scenarios",
}
_PACKAGES = ("broker", "federated", "flower", "market", "meanfield", "mechanisms", "privacy", "rounds")


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"privmarket.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'privmarket' has no attribute {name!r}")
    with needed():
        found = globals()[name] = getattr(import_module(_NAMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
