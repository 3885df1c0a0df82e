"""Federated training in which clients sell ε, simulated on one machine; with plans and attacks.

Begin with `federate` (one run from plain arguments) and `plan` (what a model will cost). Both take a `Task`.

- `federate` → `RunResult`: score, what the buyer's own records give alone, money, records of every round, each
  client's statement, the model, `to_frame`, `plot`.
- `plan` → `Plan`: money → score, gain, lifetime ε and pay, with the settings that were chosen on public records. Of
  a task without the sellers' records it is rehearsed, and nothing is measured.
  `Planner` makes several plans that share their runs.
- `FederationConfig` and its `Training`: every setting of a run, checked, as it is stored beside results.
- `Federation`: a run round by round, for those who want to step it themselves.
- `summarise`, `client_table`: a finished run as plain data.
- `attack_client`, `attack_run` → `AttackResult`: what an attacker can tell from real releases, beside the claim.
  `AttackPlan` says which client is attacked; `Subject` is that client, as an attack of your own is given it.

Each name is imported when it is first used, and torch with what trains; `dir` lists them.
"""

# To read the code, begin with `Federation.step` in `_federation.py`: it plays one round of `privmarket.rounds` and
# moves the model. `_pool.py` trains the sellers, `_server.py` weighs and adds up their updates, `_bidding.py`
# makes the clients' bids, `_own_records.py` fits models to the buyer's own records, and `_rehearsal.py` chooses
# settings on public records.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
