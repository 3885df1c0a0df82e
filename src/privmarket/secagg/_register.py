"""A register of sellers in a folder: the keys it knows, and the rosters it has signed.

Without a broker, only the server says who was awarded. A register is another party. It got each seller's key from
that seller, and signs one roster per round, all of whose members it knows. A seller whose policy names the register
joins no sum without that signature. So a server cannot fill a sum with sellers that it made up, and cannot show
different rosters to different sellers. It still chooses whom it awards; only with a broker it does not.

The folder has three files: `key`, the secret signing key; `sellers.csv`, one `public key,name` a line; and
`signed.jsonl`, what was signed. It belongs on a machine that the server's operator does not run.
"""

from __future__ import annotations

import json
from pathlib import Path

from privmarket._files import in_words, write_atomically, write_new
from privmarket.errors import ConfigurationError
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._journal import locked
from privmarket.secagg._keys import KEY_BYTES, SigningIdentity
from privmarket.secagg._roster import Roster

_HINT = "`privmarket register init FOLDER` makes one"


class SellerRegister:
    """A register in a folder.

    Args:
        folder: one that `make` made.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        try:
            secret = bytes.fromhex((self.folder / "key").read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self.folder}: no register of sellers: {in_words(error)}", _HINT) from error
        if len(secret) != KEY_BYTES:
            raise ConfigurationError(f"{self.folder / 'key'}: a key of {len(secret)} bytes", _HINT)
        self._identity = SigningIdentity(secret)

    @classmethod
    def make(cls, folder: Path | str) -> SellerRegister:
        """A new register, without sellers.

        Raises:
            ConfigurationError: the folder has one, or cannot be made.
        """
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{place}: {in_words(error)}", "name a folder that can be made") from error
        try:
            write_new(place / "key", SigningIdentity.generate().secret.hex() + "\n")
        except FileExistsError:
            raise ConfigurationError(f"{place} has a register", "a key is never replaced: name another") from None
        return cls(place)

    @property
    def public_key(self) -> bytes:
        """The register's public key. Sellers write it into their policies in hexadecimal: `register = "…"`."""
        return self._identity.public_key

    def sellers(self) -> dict[bytes, str]:
        """Registered key → name."""
        place = self.folder / "sellers.csv"
        found: dict[bytes, str] = {}
        for number, line in enumerate(place.read_text(encoding="utf-8").splitlines() if place.exists() else [], 1):
            text, _, name = line.partition(",")
            key = _key(text, f"{place}, line {number}")
            if key in found or name in found.values() or not name:
                raise ConfigurationError(f"{place}, line {number}: a seller twice, or without a name", "remove it")
            found[key] = name
        return found

    def add(self, public_key: str, name: str) -> None:
        """Registers a seller. The caller must have made sure that the key belongs to that party and is its only
        one.

        Raises:
            ConfigurationError: it is not a key, or the key or the name is registered already.
        """
        key = _key(public_key, "a seller's key")
        if not name or not name.isprintable():
            raise ConfigurationError(f"a seller called {name!r}", "give a name on one line")
        with locked(self.folder / "lock"):
            known = self.sellers()
            if key in known or name in known.values():
                raise ConfigurationError(f"{name}, or its key, is registered", "one key per party")
            _append(self.folder / "sellers.csv", f"{key.hex()},{name}\n")

    def sign(self, roster: Roster) -> bytes:
        """Signs the roster of a round: one per round, of known sellers only. The same roster is signed again on
        request.

        Raises:
            SumRefusal: `members` for unknown sellers; `repeated` for a second roster of a round, or for a round
                before the latest one.
        """
        roster.check()
        with locked(self.folder / "lock"):
            strangers = [key for key in roster.members if key not in self.sellers()]
            if strangers:
                raise SumRefusal(
                    "members",
                    f"{len(strangers)} of {len(roster.members)} sellers are not registered, such as "
                    f"{strangers[0].hex()}",
                    "`privmarket register add` registers a seller, once it has shown who it is",
                )
            signed = self._signed().get(roster.task)
            if signed is not None and roster.round <= signed[0] and signed != (roster.round, roster.digest.hex()):
                raise SumRefusal(
                    "repeated", f"another roster of task {roster.task!r}, round {signed[0]}, was signed before"
                )
            if signed is None or roster.round > signed[0]:
                line = {"task": roster.task, "round": roster.round, "digest": roster.digest.hex()}
                _append(self.folder / "signed.jsonl", json.dumps(line) + "\n")
        return roster.signed_by(self._identity)

    def _signed(self) -> dict[str, tuple[int, str]]:
        """Task → its latest round, and the digest of the roster that was signed for it."""
        place = self.folder / "signed.jsonl"
        found: dict[str, tuple[int, str]] = {}
        try:
            for line in place.read_text(encoding="utf-8").splitlines() if place.exists() else []:
                entry = json.loads(line)
                found[str(entry["task"])] = (int(entry["round"]), str(entry["digest"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SumRefusal("disk", f"{place} is damaged: {error}", "put the newest copy back") from error
        return found


def _key(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"{where}: {text[:80]!r} is no public key", "give 64 hexadecimal digits")
    return key


def _append(path: Path, line: str) -> None:
    """Adds a line, on disk when this returns."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomically(path, before + line)
