"""The market as a service: sealed bids, escrow, lifetime wallets and a log that cannot be edited unseen.

`Broker` holds the rules and a database, `api` serves it over HTTP, `BrokerClient` calls it from Python. Money and
wallets go through the same `Round` and `Wallets` that the simulation uses. Nothing here imports torch.
"""
