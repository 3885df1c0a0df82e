"""Federated training in which clients sell ε: data, local private training, aggregation, the simulation of a run.

`config`, `modes` and `clients` need NumPy at most, so that commands start and clients bid without torch; what
trains needs torch.
"""
