"""privmarket: a market in which federated-learning clients sell differential-privacy budget.

>>> import privmarket as pm
>>> bids = pm.Bids(valuation=[.2, .9, .4], epsilon=[1., 2., .5])
>>> outcome = pm.mechanism("proportional-share").run(bids, budget=1.0)
>>> outcome.epsilon
array([1. , 0. , 0.5])

`dir(privmarket)` lists everything public: functions, classes, and the packages `market`, `mechanisms`, `privacy`,
`rounds`, `secagg`, `training`, `tasks`, `simulation`, `meanfield`, `flower` and `broker`. Modules inside a package
are private; what a package exports stands in its `__init__.pyi`. Each name is imported when it is first used, so
that `import privmarket` takes a few milliseconds and an auction never waits for torch, a web server or Flower.
"""

from privmarket._lazy import attach

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
