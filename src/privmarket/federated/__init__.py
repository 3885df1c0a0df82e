"""Federated training in which clients sell ε: data, local private training, aggregation, the simulation of a run.

`config`, `modes` and `clients` need NumPy at most, so that commands start and clients bid without torch; what
trains needs torch.

- `config`, `modes`, `recommended`: what a run is, what it does with privacy, settings that were found to work.
- `datasets`, `downloads`, `features`, `scattering`, `whitening`: records, and fixed transforms of them.
- `clients`, `bid_strategies`: who the clients are, and how they report.
- `models`, `layers`, `gradients`: networks of our own with per-record gradients.
- `record_gradients`, `model_check`: per-record gradients of any module, and whether it has them.
- `local`, `pool`, `workers`: private training of one client, of a run's clients, in several processes.
- `aggregation`, `shares`, `global_model`: weights of updates, shares of a secure sum, the server's step.
- `simulation`, `state`, `checkpoint`, `summary`, `entry_point`: a whole run, saved, summed up, by one call.
- `planning`, `plan_choices`, `plan_runs`, `client_spread`: what a model will cost, what leaving clients out costs.
- `privacy_attacks`, `gradient_inversion`, `attack_suite`: attacks on what clients release and on finished models.
"""
