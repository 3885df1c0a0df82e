"""What can go wrong in a federated run and can be mended by its user."""

from __future__ import annotations

from privmarket.errors import PrivmarketError


class DataError(PrivmarketError):
    """A data set that is missing, corrupted, or cannot be split as asked."""

    code = "bad-data"


class CheckpointError(PrivmarketError):
    """A saved run that cannot be read, or belongs to another configuration."""

    code = "bad-checkpoint"
