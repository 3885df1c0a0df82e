"""The errors of the broker, each with its HTTP status."""

from __future__ import annotations

from typing import ClassVar

from privmarket.errors import PrivmarketError


class BrokerError(PrivmarketError):
    """A request that the broker refuses; the caller can correct it."""

    code = "bad-request"
    status: ClassVar[int] = 400


class NotFoundError(BrokerError):
    """No such thing, or it belongs to somebody else: both look the same from outside."""

    code = "not-found"
    status = 404


class ConflictError(BrokerError):
    """The thing exists but is in the wrong state for this step."""

    code = "conflict"
    status = 409


class InsufficientFundsError(ConflictError):
    """An account does not hold what is to be taken from it."""

    code = "insufficient-funds"


class IdempotencyError(ConflictError):
    """A key that was already used for a different request."""

    code = "idempotency-conflict"


class UnauthenticatedError(BrokerError):
    """No token, an unknown one, or a revoked one."""

    code = "unauthenticated"
    status = 401


class ForbiddenError(BrokerError):
    """A known caller whose role or token may not do this at all."""

    code = "forbidden"
    status = 403


class DatabaseError(BrokerError):
    """A database that cannot be opened or belongs to another version."""

    code = "bad-database"
    status = 500


class UnavailableError(BrokerError):
    """A database that is busy, full or unreachable for now. Sending the same again under the same key is safe."""

    code = "unavailable"
    status = 503


class TooManyRequestsError(BrokerError):
    """More requests than one account may make."""

    code = "too-many-requests"
    status = 429
