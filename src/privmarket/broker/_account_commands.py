"""What parties and operators do with accounts: register, tokens, keys, suspension, money."""

from __future__ import annotations

from collections.abc import Mapping

from privmarket.broker import _parties as parties
from privmarket.broker._answers import (
    DatasetAnswer,
    Erased,
    KeyAnswer,
    Registered,
    Revoked,
    Suspended,
    TokenAnswer,
    WebhookAnswer,
)
from privmarket.broker._database import Transaction
from privmarket.broker._http_errors import BrokerError, ForbiddenError
from privmarket.broker._parties import ANONYMOUS, SYSTEM, Actor, require
from privmarket.broker._task_plan import YEAR_SECONDS
from privmarket.broker._write_path import WritePath


class AccountCommands(WritePath):
    """Every write about accounts, and who is behind a token."""

    def authenticate(self, token: str) -> Actor:
        """The party behind a token."""
        with self.database.read() as connection:
            return parties.authenticate(connection, token, self.database.now_ms())

    def end_session(self, actor: Actor, session_id: str) -> None:
        """Notes that a session of the dashboard was signed out, so that its cookie opens nothing any more."""
        with self.database.write(actor.party_id) as tx:
            tx.log("session.ended", actor.party_id, session=session_id)

    def set_webhook(self, actor: Actor, url: str | None, key: str) -> WebhookAnswer:
        """Where the caller's events are posted from now on; None ends it."""

        def command(tx: Transaction) -> WebhookAnswer:
            tx.log("webhook.set", actor.party_id, url=url)
            return {"id": actor.party_id, "url": url}

        return self._write(actor, key, ("webhook", url), command)

    def register(self, fields: Mapping[str, object], key: str, actor: Actor = ANONYMOUS) -> Registered:
        """A new party with its first token. Only an operator may make an operator or an arbiter.

        With `token_sha256` in the fields the caller made the token itself and a repeat is answered as the first
        time; else the answer shows a token that was made here, once: a repeat is refused.
        """
        fields = dict(fields)
        if fields.get("role") in ("operator", "arbiter", "auditor") and actor.role != "operator":
            raise ForbiddenError(f"an {fields['role']} is made by operators", "ask an operator of this broker")
        given = fields.pop("token_sha256", None)
        own = None if given is None else str(given)

        def command(tx: Transaction) -> Registered:
            return parties.register(tx, self.entropy, fields, own)

        asked = {name: value for name, value in fields.items() if name != "name"}  # no trace of it in the log
        return self._with_token(actor, key, ("register", asked, own), command, own)

    def mint_token(
        self,
        actor: Actor,
        scope: str,
        key: str,
        *,
        token_sha256: str | None = None,
        lifetime_seconds: int | None = None,
        party_id: str | None = None,
    ) -> TokenAnswer:
        """Another token for the caller itself; for somebody else who lost theirs, by an operator."""
        who = party_id or actor.party_id
        if who != actor.party_id:
            require(actor, "operator")
        if lifetime_seconds is not None and not 1 <= lifetime_seconds <= YEAR_SECONDS:
            raise BrokerError(f"lifetime_seconds is {lifetime_seconds}", f"give 1 to {YEAR_SECONDS}")

        def command(tx: Transaction) -> TokenAnswer:
            parties.role_of(tx.connection, who)
            ends = None if lifetime_seconds is None else tx.now_ms + 1000 * lifetime_seconds
            return parties.mint(tx, self.entropy, who, scope, token_hash=token_sha256, expires_ms=ends)

        asked = ("mint", who, scope, lifetime_seconds, token_sha256)
        return self._with_token(actor, key, asked, command, token_sha256)

    def revoke_token(self, actor: Actor, token_id: str, key: str) -> Revoked:
        """Ends a token at once."""
        return self._write(actor, key, ("revoke", token_id), lambda tx: parties.revoke(tx, actor, token_id))

    def change_key(
        self, actor: Actor, public_key: str, key: str, *, signature: str | None = None, signs: str | None = None
    ) -> KeyAnswer:
        """Another key of the caller, and what it signs; `signature`: of the change, by the key that it had."""
        asked = ("key", public_key, signature, signs)
        return self._write(
            actor, key, asked, lambda tx: parties.change_key(tx, actor, public_key, signature, signs)
        )

    def attest(self, actor: Actor, dataset_sha256: str, signature: str, key: str) -> DatasetAnswer:
        """Says which data set a seller sells from."""
        require(actor, "seller")
        asked = ("attest", dataset_sha256, signature)
        return self._write(actor, key, asked, lambda tx: parties.attest(tx, actor, dataset_sha256, signature))

    def forget_idle(self, idle_days: float) -> list[str]:
        """Erases the names of those who hold no money and did nothing for so many days; returns their ids."""
        with self.database.write(SYSTEM.party_id) as tx:
            return parties.forget_idle(tx, tx.now_ms - round(86_400_000 * idle_days))

    def suspend(self, actor: Actor, party_id: str, reason: str | None, key: str) -> Suspended:
        """Stops a party from writing, or lets it write again (reason None)."""
        require(actor, "operator")
        return self._write(
            actor, key, ("suspend", party_id, reason), lambda tx: parties.suspend(tx, party_id, reason)
        )

    def erase_name(self, actor: Actor, party_id: str, key: str) -> Erased:
        """Removes a party's name from the database."""
        require(actor, "operator")
        return self._write(actor, key, ("erase", party_id), lambda tx: parties.erase(tx, party_id))
