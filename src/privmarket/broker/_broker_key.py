"""Where a broker's signing key is, and when a new one may be made."""

from __future__ import annotations

from pathlib import Path

from privmarket._counted import counted
from privmarket._files import check_writable
from privmarket.broker import _log as log
from privmarket.broker._database import Database
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._signatures import SigningKey


def default_key_file(database: str) -> Path | None:
    """Beside a SQLite file: FILE.key. A server's database has no folder of its own, so there is no default."""
    file = database.removeprefix("sqlite:///")
    return Path(f"{file}.key") if file != database else None


def key_file(database: str, stated: Path | None) -> Path:
    """The file of the broker's key; raises where none is stated and the database has no place for it."""
    file = stated or default_key_file(database)
    if file is None:
        raise BrokerError(
            "the key of this database's log has no default place",
            "name its file: --key FILE, or PRIVMARKET_BROKER_KEY",
        )
    return file


def read_or_make_key(database: Database, file: Path) -> SigningKey:
    """The key in the file. A new one is made only for a log without entries: any other has its key already.

    Raises:
        BrokerError: the log has entries and the file is not there.
    """
    if file.exists():
        return SigningKey.read(file)
    with database.read() as connection:
        head = log.read_head(connection)
        known = log.announced_key(connection)
    if head.size:
        raise BrokerError(
            f"no key at {file}; the log of {counted(head.size, 'entry', 'entries')} is signed with {known[:16]}…",
            "give the file of that key with --key, or copy it there: a new key cannot go on with this log",
        )
    check_writable(file, "--key")
    made = SigningKey.generate()
    made.write(file)
    return made
