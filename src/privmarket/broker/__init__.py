"""The market as a service: sealed bids, escrow, lifetime wallets, and a log that cannot be edited unseen.

`Broker` holds a database and every command that changes it. `BrokerClient` calls a broker over HTTP and signs
for its party. `privmarket serve` starts the HTTP API and the dashboard. Nothing here imports torch.

The way of a bid, to be read from top to bottom: `_routes.place_bid` takes it from HTTP, `_group_commit` lets
bids that arrive together share a transaction, `Broker.take_bids` opens it, `_bidding` checks and seals each
bid, `_projection` says what its log entry changes in the tables, `_log` adds it to the Merkle tree, and
`_clearing` runs the auction when bidding has ended. What there is to trade is declared in `_shapes`; `_verify`
checks all of it afterwards.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
