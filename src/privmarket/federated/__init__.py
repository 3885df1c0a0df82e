"""Federated training in which clients sell ε: local private training, aggregation, the simulation of a run.

`config`, `modes` and `clients` need NumPy at most, so that commands start and clients bid without torch; what
trains needs torch.

- `config`, `modes`: what a run is, with settings that were found to work, and what it does with privacy.
- `clients`, `bid_strategies`: who the clients are, and how they report.
- `pool`, `workers`: private training of a run's clients (by `privmarket.training`), in several processes.
- `aggregation`, `shares`, `global_model`: weights of updates, shares of a secure sum, the server's step.
- `simulation`, `state`, `checkpoint`, `summary`, `entry_point`: a whole run, saved, summed up, by one call.
- `planning`, `plan_choices`, `client_spread`: what a model will cost, what leaving clients out costs.
- `privacy_attacks`, `gradient_inversion`, `attack_suite`: attacks on what clients release and on finished models.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.federated import (
        aggregation,
        attack_suite,
        bid_strategies,
        checkpoint,
        client_spread,
        clients,
        config,
        entry_point,
        global_model,
        gradient_inversion,
        modes,
        plan_choices,
        planning,
        pool,
        privacy_attacks,
        shares,
        simulation,
        state,
        summary,
        workers,
    )
    from privmarket.federated.attack_suite import attack_client, attack_run
    from privmarket.federated.config import FederationConfig, Training
    from privmarket.federated.entry_point import federate
    from privmarket.federated.planning import Plan, Planner
    from privmarket.federated.privacy_attacks import AttackResult
    from privmarket.federated.simulation import Federation
    from privmarket.federated.state import RunResult
    from privmarket.federated.summary import summarise

__all__ = [
    "AttackResult",
    "Federation",
    "FederationConfig",
    "Plan",
    "Planner",
    "RunResult",
    "Training",
    "aggregation",
    "attack_client",
    "attack_run",
    "attack_suite",
    "bid_strategies",
    "checkpoint",
    "client_spread",
    "clients",
    "config",
    "entry_point",
    "federate",
    "global_model",
    "gradient_inversion",
    "modes",
    "plan_choices",
    "planning",
    "pool",
    "privacy_attacks",
    "shares",
    "simulation",
    "state",
    "summarise",
    "summary",
    "workers",
]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "AttackResult": "privmarket.federated.privacy_attacks",
    "Federation": "privmarket.federated.simulation",
    "FederationConfig": "privmarket.federated.config",
    "Plan": "privmarket.federated.planning",
    "Planner": "privmarket.federated.planning",
    "RunResult": "privmarket.federated.state",
    "Training": "privmarket.federated.config",
    "attack_client": "privmarket.federated.attack_suite",
    "attack_run": "privmarket.federated.attack_suite",
    "federate": "privmarket.federated.entry_point",
    "summarise": "privmarket.federated.summary",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
