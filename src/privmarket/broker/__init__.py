"""The market as a service: sealed bids, escrow, lifetime wallets, and a log in which every change can be detected.

`Broker` has a database and all commands that change it. `BrokerClient` calls a broker over HTTP and signs for its
party. `privmarket serve` starts the HTTP API and the dashboard. Nothing here imports torch.
"""

# To follow a bid through the code: `_routes.place_bid` takes it from HTTP, `_group_commit` collects bids that
# arrive together in one transaction, `Broker.take_bids` opens the transaction, `_bidding` checks and seals each
# bid, `_projection` computes what its log entry changes in the tables, `_log` adds it to the Merkle tree, and
# `_clearing` runs the auction when bidding has ended. Tasks, rounds, bids and awards are declared in `_shapes`;
# `_verify` checks everything afterwards.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
