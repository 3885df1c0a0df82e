"""Errors that a user can mend. Each says what was wrong, where it stood, and what to do.

The command line turns them into one line and an exit code, the HTTP API into one JSON shape. Those about a wrong
value are also `ValueError`s, so that code which does not know this package can catch them.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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


class BidError(PrivmarketError, ValueError):
    """A bid, or a file of bids, that no auction can be run on."""

    code = "bad-bid"


class ConfigurationError(PrivmarketError, ValueError):
    """A setting that does not exist, or a value that a setting cannot take."""

    code = "bad-configuration"


class UnknownNameError(ConfigurationError):
    """A name that is not in a registry (mechanism, scenario, data set, …)."""

    code = "unknown-name"

    @classmethod
    def among(cls, what: str, given: str, known: Iterable[str]) -> UnknownNameError:
        """`given` is no `what`: the hint names the nearest known name, if one is near, and all of them."""
        names = tuple(known)
        plain = str(given).lower().replace("_", "-")
        near = get_close_matches(plain, names, n=1) or [name for name in names if given and name.startswith(plain)]
        guess = f"did you mean {near[0]!r}? " if near else ""
        return cls(f"unknown {what} {given!r}", f"{guess}choose one of: {', '.join(names)}")


class MissingPartError(PrivmarketError, ImportError):
    """Something that is installed separately, and is not installed here."""

    code = "not-installed"


class WriteError(PrivmarketError):
    """A file that could not be written; what stood there before is untouched."""

    code = "cannot-write"


class OutcomeError(PrivmarketError, ValueError):
    """What an auction rule returned is no outcome of the bids that it was given."""

    code = "bad-outcome"

    @classmethod
    def of_exit(cls, rule: str, error: SystemExit) -> OutcomeError:
        """Code of the user's own rule called `sys.exit`, which would end the program without a word."""
        said = "" if error.code is None else f": {error.code}"
        return cls(
            f"rule {rule} ended the program by SystemExit{said}", "return an outcome there, or raise an error"
        )


class PrivacyError(PrivmarketError, ValueError):
    """A release that cannot be accounted for: a bad noise multiplier, sampling rate, ε or δ."""

    code = "bad-privacy"


class WalletError(PrivacyError):
    """A sale that would take a client past its lifetime cap; nothing was charged."""

    code = "wallet-exhausted"


class DataError(PrivmarketError):
    """A data set that is missing, corrupted, or cannot be split as asked."""

    code = "bad-data"


class CheckpointError(PrivmarketError):
    """A saved run that cannot be read, or belongs to another configuration."""

    code = "bad-checkpoint"
