"""privmarket: a market in which federated-learning clients sell differential-privacy budget.

>>> import privmarket as pm
>>> bids = pm.Bids(valuation=[.2, .9, .4], epsilon=[1., 2., .5])
>>> outcome = pm.mechanism("proportional-share").run(bids, budget=1.0)
>>> outcome.epsilon
array([1. , 0. , 0.5])

`dir(privmarket)` lists everything public: functions, classes, and the packages `market`, `mechanisms`, `privacy`,
`rounds`, `tasks`, `federated`, `meanfield`, `secagg`, `flower` and `broker`. Each is imported when it is first
used, so that `import privmarket` takes a few milliseconds and an auction never waits for torch, a web server or
Flower.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names
from privmarket.version import __version__

if TYPE_CHECKING:
    from privmarket import broker, federated, flower, market, meanfield, mechanisms, privacy, rounds, secagg, tasks
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
    from privmarket.tasks._builtin import task
    from privmarket.tasks._task import Task

__all__ = [
    "Bids",
    "BrokerClient",
    "MarketFacts",
    "Mechanism",
    "Outcome",
    "PrivmarketError",
    "Task",
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
    "secagg",
    "task",
    "tasks",
]

# public name → the module that defines it, or that it is
_HOMES = {
    "Bids": "privmarket.market.bids",
    "BrokerClient": "privmarket.broker.http_client",
    "MarketFacts": "privmarket.market.facts",
    "Mechanism": "privmarket.market.mechanism",
    "Outcome": "privmarket.market.outcome",
    "PrivmarketError": "privmarket.errors",
    "Task": "privmarket.tasks._task",
    "Wallet": "privmarket.privacy.wallet",
    "__version__": "privmarket.version",
    "audit": "privmarket.reports.comparison",
    "broker": "privmarket.broker",
    "compare": "privmarket.reports.comparison",
    "federate": "privmarket.federated.entry_point",
    "federated": "privmarket.federated",
    "flower": "privmarket.flower",
    "market": "privmarket.market",
    "meanfield": "privmarket.meanfield",
    "secagg": "privmarket.secagg",
    "mechanism": "privmarket.mechanisms.registry",
    "mechanism_names": "privmarket.mechanisms.registry",
    "mechanisms": "privmarket.mechanisms",
    "privacy": "privmarket.privacy",
    "rounds": "privmarket.rounds",
    "scenario": "privmarket.market.scenarios",
    "task": "privmarket.tasks._builtin",
    "tasks": "privmarket.tasks",
}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
