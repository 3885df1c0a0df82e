"""Federated training in which clients sell ε: local private training, aggregation, the simulation of a run.

`config`, `modes` and `clients` need NumPy at most, so that commands start and clients bid without torch; what
trains needs torch.

- `config`, `modes`: what a run is, with settings that were found to work, and what it does with privacy.
- `clients`, `bid_strategies`: who the clients are, and how they report.
- `pool`, `workers`: private training of a run's clients (by `privmarket.training`), in several processes.
- `aggregation`, `shares`, `global_model`: weights of updates, shares of a secure sum, the server's step.
- `simulation`, `state`, `checkpoint`, `summary`, `entry_point`: a whole run, saved, summed up, by one call.
- `planning`, `plan_choices`, `client_spread`: what a model will cost, what leaving clients out costs.
- `privacy_attacks`, `attack_suite`: attacks on what clients release and on finished models.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
