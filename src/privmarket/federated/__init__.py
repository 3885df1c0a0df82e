"""Federated training in which clients sell ε: data, local private training, aggregation, rounds, runs.

Nothing here is imported until it is asked for: `round` and `ledger` need NumPy only, training needs torch.
"""
