"""The one family of errors: each says what was wrong, where it stood, and what to do.

The command line turns them into one line and an exit code, the HTTP API into one JSON shape.
"""

from __future__ import annotations


class PrivmarketError(Exception):
    """Something the user can mend.

    `message` names the offending value and where it stood; `hint` says what to do about it.
    """

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class BidError(PrivmarketError):
    """A bid, or a file of bids, that no auction can be run on."""

    code = "bad-bid"


class ConfigurationError(PrivmarketError):
    """A setting that does not exist, or a value that a setting cannot take."""

    code = "bad-configuration"


class UnknownNameError(ConfigurationError):
    """A name that is not in a registry (mechanism, scenario, data set, …)."""

    code = "unknown-name"


class PrivacyError(PrivmarketError):
    """A release that cannot be accounted for: a bad noise multiplier, sampling rate, ε or δ."""

    code = "bad-privacy"


class WalletError(PrivacyError):
    """A sale that would take a client past its lifetime cap; nothing was charged."""

    code = "wallet-exhausted"
