"""The broker from Python: every call of the API as a method, retried safely.

With a key, everything that the party states is signed: bids, tasks, claims, receipts, disputes, rulings, requests
for payouts. Bids are sealed by this client if the task asks for that. The client keeps the heads of the log that
come with the answers, and can check by proofs that the log only grew and contains its own entries.
"""

from __future__ import annotations

__extra__ = "client"  # the extra to install if a package is missing; see `privmarket._lazy`

import hashlib
import json
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import httpx

from privmarket._files import OWNER_ONLY, write_atomically
from privmarket.broker import _merkle as merkle, _sealed as sealed, _signatures as signatures
from privmarket.broker._errors import BrokerError
from privmarket.broker._signatures import Head, SigningKey
from privmarket.errors import PrivmarketError

if TYPE_CHECKING:
    from privmarket.broker import _answers as answers

__all__ = ["BrokerCallError", "BrokerClient", "LogForkedError", "require_continuation"]

Json = dict[str, Any]  # a form, or an answer as it came
PAUSES_SECONDS = (0.1, 0.3, 1.0)


class BrokerCallError(PrivmarketError):
    """The broker refused a request. `code`, `message` and `hint` are the broker's own."""

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class BrokerConnection:
    """Reads and writes by path, as JSON. Calls are authorised, and repeated if the connection breaks.

    Attributes:
        heads: the first and the newest head of the log among the answers.
    """

    def __init__(self, url: str, token: str | None, http: httpx.Client) -> None:
        self.url = url
        self.token = token
        self._http = http
        self.heads: list[Head] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # never the token

    def read(self, path: str, query: Mapping[str, Any] | None = None) -> Json:
        """The answer to a GET of `path`, as JSON."""
        return self._call("GET", path, params=dict(query or {}))

    def pages(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[Json]:
        """All items of a list, page after page."""
        after: dict[str, Any] = {}
        while True:
            page = self.read(path, {"limit": 200, **(query or {}), **after})
            yield from page["items"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def write(self, method: str, path: str, form: Mapping[str, Any] | None = None, key: str | None = None) -> Json:
        """Sends a write, repeatedly if the connection breaks, under one idempotency key, so that it acts once."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._call(method, path, json=form, headers=headers)

    def _call(self, method: str, path: str, **request: Any) -> Json:
        headers = dict(request.pop("headers", {}))
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        for pause in (*PAUSES_SECONDS, None):
            try:
                reply = self._http.request(method, path, headers=headers, **request)
            except httpx.TransportError as error:
                if pause is None:
                    raise BrokerCallError(
                        0,
                        "unreachable",
                        f"no answer from {self.url}: {type(error).__name__}",
                        "is the broker running?",
                    ) from error
            else:
                self._note_head(reply.headers.get("privmarket-head"))
                if pause is None or reply.status_code not in (429, 502, 503, 504):
                    return _answer(reply)
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _note_head(self, line: str | None) -> None:
        if line:
            head = Head.parse(line)
            if not self.heads or head.size >= self.heads[-1].size:
                self.heads = [*self.heads[:1], head]


def _answer(reply: httpx.Response) -> Json:
    try:
        body = reply.json()
    except ValueError:
        body = {}
    if reply.is_success and isinstance(body, dict):
        return body
    fields = body if isinstance(body, dict) else {}
    raise BrokerCallError(
        reply.status_code,
        str(fields.get("code", "bad-answer")),
        str(fields.get("message", f"HTTP {reply.status_code}")),
        str(fields.get("hint", "is this a privmarket broker?")),
    )


class LogForkedError(PrivmarketError):
    """The broker shows a log that is not a continuation of one that it showed before, or a proof that fails."""

    code = "log-forked"


class BrokerClient(BrokerConnection):
    """A connection to a broker.

    Every write carries an idempotency key and is repeated when the connection breaks: it acts once.

    >>> client = BrokerClient("http://127.0.0.1:8000")  # doctest: +SKIP
    >>> seller = client.register("seller", "clinic", cap_epsilon=8.0, delta=1e-5)  # doctest: +SKIP
    >>> seller.bid(round_id, valuation=0.2, epsilon=1.0)  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        http: httpx.Client | None = None,
        timeout_seconds: float = 30.0,
        key: SigningKey | None = None,
        openings: str | Path | None = None,
    ) -> None:
        """Connects.

        Args:
            key: signs one's bids and statements; make a file with `privmarket seller init` and give
                `SigningKey.read(file)`.
            openings: a file for the numbers of sealed bids until they are revealed; in memory only by default.
        """
        super().__init__(url, token, http or httpx.Client(base_url=url, timeout=timeout_seconds))
        self.key = key
        self._openings_file = None if openings is None else Path(openings)
        self._openings: dict[str, Json] = {}
        if self._openings_file is not None and self._openings_file.exists():
            self._openings = json.loads(self._openings_file.read_text())
        self._sealing: dict[str, str] = {}  # task → who seals its bids
        self._id = ""
        self._signs = ""  # what this account signs, once it was asked

    # ---- oneself ----------------------------------------------------------------------------------------

    def register(
        self,
        role: str,
        name: str,
        *,
        cap_epsilon: float | None = None,
        delta: float | None = None,
        key: SigningKey | None = None,
        signs: str | None = None,
        openings: str | Path | None = None,
    ) -> BrokerClient:
        """Registers a party and returns a client that acts for it; `.token` is its token, keep it.

        The token is made here and only its hash is sent, so the broker never sees it before it is used. With a key
        the party signs everything that it states, so that nobody else can state it in its name; with `signs="bids"`
        it signs its bids only. Operators, arbiters and auditors are made by an operator's client; an auditor reads
        all tasks, winners, cohort keys and the whole log.
        """
        token = "pm_" + secrets.token_hex(32)
        form = {"role": role, "name": name, "cap_epsilon": cap_epsilon, "delta": delta}
        form |= {
            "public_key": key.public if key else None,
            "signs": signs,
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        }
        self.write("POST", "/v1/register", {k: v for k, v in form.items() if v is not None})
        return BrokerClient(self.url, token, http=self._http, key=key, openings=openings)

    def me(self) -> answers.Party:
        """Balance, and a seller's wallet."""
        return self.read("/v1/me")

    def statement(self) -> Iterator[answers.Movement]:
        """Every movement on the account, newest first."""
        return cast("Iterator[answers.Movement]", self.pages("/v1/me/statement"))

    def mint_token(self, scope: str = "full", lifetime_seconds: int | None = None) -> answers.TokenAnswer:
        """Another token for oneself, made here; the answer holds its text."""
        token = "pm_" + secrets.token_hex(32)
        form: Json = {"scope": scope, "token_sha256": hashlib.sha256(token.encode()).hexdigest()}
        if lifetime_seconds is not None:
            form["lifetime_seconds"] = lifetime_seconds
        return cast("answers.TokenAnswer", {**self.write("POST", "/v1/me/tokens", form), "token": token})

    def change_key(self, key: SigningKey, signs: str | None = None) -> answers.KeyAnswer:
        """Replaces the key and what it signs (everything, or bids); the client's present key signs the change."""
        me = self.me()
        chosen = signs or (me["signs"] if me["public_key"] else "everything")
        form = {"public_key": key.public, "signs": chosen}
        if self.key is not None:
            form["signature"] = self.key.sign(signatures.key_message(str(me["id"]), key.public, chosen))
        answer = self.write("PUT", "/v1/me/key", form)
        self.key = key
        self._signs = chosen
        return cast("answers.KeyAnswer", answer)

    def attest(self, dataset_sha256: str) -> answers.DatasetAnswer:
        """States which data set one sells from, signed with one's key (sellers).

        Args:
            dataset_sha256: a digest of the records and a secret salt, as `privmarket seller attest` makes it.
                Without the salt, anybody who guesses the records could confirm the guess.
        """
        if self.key is None:
            raise BrokerError("an attestation is signed", "give BrokerClient a key")
        message = signatures.dataset_message(str(self.me()["id"]), dataset_sha256)
        form = {"dataset_sha256": dataset_sha256, "signature": self.key.sign(message)}
        return cast("answers.DatasetAnswer", self.write("PUT", "/v1/me/dataset", form))

    def revoke_token(self, token_id: str) -> answers.Revoked:
        """Ends a token."""
        return cast("answers.Revoked", self.write("DELETE", f"/v1/tokens/{token_id}"))

    def request_payout(self, amount_micro: int) -> answers.PayoutAnswer:
        """Asks for a payout from one's account; an operator makes it."""
        if self._signs_everything():
            said = {"amount_micro": amount_micro, "nonce": secrets.token_hex(16)}
            answer = self._state("money.requested", self._id, [said])
        else:
            answer = self.write("POST", "/v1/me/payouts", {"amount_micro": amount_micro})
        return cast("answers.PayoutAnswer", answer)

    def my_entries(self) -> Iterator[answers.LogLine]:
        """All entries of the log in one's own name, newest first; an entry that one did not make is forged."""
        return cast("Iterator[answers.LogLine]", self.pages("/v1/me/entries"))

    # ---- signed statements ------------------------------------------------------------------------------

    def _signs_everything(self) -> bool:
        """Whether this account signs all its statements; with a key, the broker is asked once."""
        if self.key is None:
            return False
        if not self._signs:
            me = self.me()
            self._id = str(me["id"])
            self._signs = me["signs"]
        return self._signs == "everything"

    def _state(self, kind: str, about: str, said: list[Json], key: str | None = None) -> Json:
        """Signs statements and sends them."""
        assert self.key is not None
        self._id = self._id or str(self.me()["id"])
        signed = []
        for one in said:
            message = signatures.statement_message(kind, self._id, about, one)
            signed.append({"said": one, "signature": self.key.sign(message)})
        form: Json = {"kind": kind, "about": about, "statements": signed}
        if key is not None:
            form["key"] = key
        answer: Json = self.write("POST", "/v1/statements", form)["answer"]
        return answer

    # ---- the market -------------------------------------------------------------------------------------

    def publish_task(self, title: str, budget_micro: int, **terms: Any) -> answers.TaskAnswer:
        """Publishes a task (buyers)."""
        form = {"title": title, "budget_micro": budget_micro, **terms}
        if self._signs_everything():
            answer = self._state("task.published", "new", [{**form, "nonce": secrets.token_hex(16)}])
        else:
            answer = self.write("POST", "/v1/tasks", form)
        return answer

    def tasks(self) -> Iterator[answers.TaskAnswer]:
        """Tasks, newest first."""
        return self.pages("/v1/tasks")

    def open_round(self, task_id: str) -> answers.RoundAnswer:
        """Opens the next round and puts its budget in escrow (buyers)."""
        if self._signs_everything():
            newest = next(iter(self.rounds(task_id)), None)
            number = 0 if newest is None else newest["number"] + 1
            answer = self._state("round.opened", task_id, [{"number": number}])
        else:
            answer = self.write("POST", f"/v1/tasks/{task_id}/rounds")
        return answer

    def rounds(self, task_id: str) -> Iterator[answers.RoundAnswer]:
        """A task's rounds, newest first."""
        return self.pages(f"/v1/tasks/{task_id}/rounds")

    def round(self, round_id: str) -> answers.RoundAnswer:
        """A round: its state, deadlines and, once cleared, its prices."""
        return self.read(f"/v1/rounds/{round_id}")

    def bid(self, round_id: str, valuation: float, epsilon: float, **features: float) -> answers.BidAnswer:
        """Places a sealed bid (sellers), signed where this client has a key.

        Where the task lets bidders seal, only a commitment is sent now; `reveal` must follow after bidding ends.
        """
        form: Json = {"valuation": valuation, "epsilon": epsilon, **features}
        if self.key is not None:
            form = self._signed(round_id, form)
        return self.write("POST", f"/v1/rounds/{round_id}/bids", form)

    def _signed(self, round_id: str, form: Json) -> Json:
        assert self.key is not None
        self._id = self._id or str(self.me()["id"])
        task_id = self.round(round_id)["task_id"]
        if task_id not in self._sealing:
            self._sealing[task_id] = self.read(f"/v1/tasks/{task_id}")["sealing"]
        numbers = {"data_size": 1.0, "accuracy": None, **form}
        fields = {name: None if value is None else float(value) + 0.0 for name, value in numbers.items()}
        nonce = secrets.token_hex(16)
        committed = signatures.commitment(round_id, self._id, fields, nonce)
        signature = self.key.sign(signatures.bid_message(round_id, self._id, committed))
        if self._sealing[task_id] == "bidder":
            self._openings[round_id] = {**fields, "nonce": nonce}
            self._keep_openings()  # before the bid leaves: a bid that cannot be revealed does not count
            return {"commitment": committed, "signature": signature}
        return {**fields, "nonce": nonce, "signature": signature}

    def _keep_openings(self) -> None:
        if self._openings_file is not None:
            write_atomically(self._openings_file, json.dumps(self._openings), mode=OWNER_ONLY)

    def reveal(self, round_id: str) -> answers.BidAnswer:
        """Opens the bid that this client sealed, once bidding has ended (sellers)."""
        if round_id not in self._openings:
            raise BrokerError(
                f"no sealed bid for round {round_id} is known here", "reveal with the client that placed the bid"
            )
        return self.write("POST", f"/v1/rounds/{round_id}/reveals", self._openings[round_id])

    def outcome(self, round_id: str) -> answers.OutcomeAnswer:
        """What became of one's bid, and why (sellers)."""
        return cast("answers.OutcomeAnswer", self.read(f"/v1/rounds/{round_id}/outcome"))

    def bids(self, round_id: str) -> Iterator[answers.StandingBid]:
        """One's own bids in a round."""
        return self.pages(f"/v1/rounds/{round_id}/bids")

    def close_round(self, round_id: str) -> answers.StepAnswer | answers.RoundAnswer:
        """Ends bidding and runs the auction; in a very large round, waits until the broker has computed it."""
        if self._signs_everything():
            closed = self._state("round.closed", round_id, [{}])
        else:
            closed = self.write("POST", f"/v1/rounds/{round_id}/close")
        answer = cast("answers.StepAnswer | answers.RoundAnswer", closed)
        while answer["state"] == "closed":
            time.sleep(PAUSES_SECONDS[-1])
            answer = self.round(round_id)
        return answer

    def awards(self, round_id: str) -> Iterator[answers.AwardAnswer]:
        """Who sells what, as far as one may see it."""
        return self.pages(f"/v1/rounds/{round_id}/awards")

    def my_awards(self) -> Iterator[answers.AwardAnswer]:
        """All that this seller sold at the broker, newest first."""
        return self.pages("/v1/me/awards")

    def cohort(self, round_id: str) -> Iterator[answers.CohortKey]:
        """The registered keys of a round's sellers, for its secure sum (shown to those sellers and the buyer)."""
        return cast("Iterator[answers.CohortKey]", self.pages(f"/v1/rounds/{round_id}/cohort"))

    def claim_delivery(self, round_id: str, update_sha256: str, key: str | None = None) -> answers.ClaimAnswer:
        """Gives the digest of an update before it is sent (sellers); `key` opens the update if it is sealed."""
        if self._signs_everything():
            said = {"update_sha256": update_sha256, "key_sha256": None if key is None else sealed.key_digest(key)}
            return cast("answers.ClaimAnswer", self._state("delivery.claimed", round_id, [said], key))
        form = {"update_sha256": update_sha256} | ({} if key is None else {"key": key})
        return cast("answers.ClaimAnswer", self.write("POST", f"/v1/rounds/{round_id}/delivery", form))

    def claim_sealed(self, round_id: str, update: bytes) -> bytes:
        """Encrypts an update, claims it, and returns the ciphertext: send that to the buyer (sellers)."""
        made = sealed.seal(update)
        self.claim_delivery(round_id, made.update_sha256, made.key)
        return made.ciphertext

    def open_update(self, round_id: str, seller_id: str, ciphertext: bytes) -> bytes:
        """The update behind a ciphertext, once the round is settled and it is paid (buyers)."""
        award = next((one for one in self.awards(round_id) if one["seller_id"] == seller_id), None)
        if award is None or award["key"] is None:
            raise BrokerError(
                f"there is no key of {seller_id} yet", "ask again after the round is settled and paid"
            )
        if hashlib.sha256(ciphertext).hexdigest() != award["claim_sha256"]:
            raise BrokerError(
                "this is not the update that was claimed", "ask the seller for the one of that digest"
            )
        return sealed.unseal(ciphertext, award["key"])

    def show_key(self, round_id: str, seller_id: str) -> answers.UpdateKey:
        """The key of a disputed sealed update (the task's arbiter); the log shows that it was asked for."""
        return cast("answers.UpdateKey", self.write("POST", f"/v1/rounds/{round_id}/disputes/{seller_id}/key"))

    def report_progress(self, round_id: str, accuracy: float) -> answers.ProgressAnswer:
        """Notes how good one's model is after a round (buyers)."""
        if self._signs_everything():
            said = {"accuracy": float(accuracy) + 0.0}
            return cast("answers.ProgressAnswer", self._state("round.progress", round_id, [said]))
        return cast(
            "answers.ProgressAnswer", self.write("POST", f"/v1/rounds/{round_id}/progress", {"accuracy": accuracy})
        )

    def give_receipts(self, round_id: str, receipts: Mapping[str, str | None]) -> answers.StepAnswer:
        """Says of claimed updates, by seller, whether they are usable (buyers): None if so, else what is wrong."""
        if self._signs_everything():
            said = [{"seller_id": seller, "fault": fault} for seller, fault in receipts.items()]
            return cast("answers.StepAnswer", self._state("delivery.judged", round_id, said))
        return cast(
            "answers.StepAnswer",
            self.write("POST", f"/v1/rounds/{round_id}/receipts", {"receipts": dict(receipts)}),
        )

    def dispute(self, round_id: str, reason: str) -> answers.Dispute:
        """Objects to the rejection of one's update (sellers)."""
        if self._signs_everything():
            return cast("answers.Dispute", self._state("dispute.opened", round_id, [{"reason": reason}]))
        return cast("answers.Dispute", self.write("POST", f"/v1/rounds/{round_id}/disputes", {"reason": reason}))

    def rule(self, round_id: str, seller_id: str, pays: bool, reason: str) -> answers.Ruled:
        """Decides a dispute (the task's arbiter)."""
        form = {"seller_id": seller_id, "pays": pays, "reason": reason}
        if self._signs_everything():
            return cast("answers.Ruled", self._state("dispute.ruled", round_id, [form]))
        return cast("answers.Ruled", self.write("POST", f"/v1/rounds/{round_id}/rulings", form))

    def settle_round(self, round_id: str) -> answers.StepAnswer:
        """Settles a round: pays the sellers and refunds the rest to the buyer."""
        return cast("answers.StepAnswer", self.write("POST", f"/v1/rounds/{round_id}/settle"))

    def abort_round(self, round_id: str, reason: str) -> answers.StepAnswer:
        """Ends a round with refunds."""
        if self._signs_everything():
            return cast("answers.StepAnswer", self._state("round.aborted", round_id, [{"reason": reason}]))
        return cast("answers.StepAnswer", self.write("POST", f"/v1/rounds/{round_id}/abort", {"reason": reason}))

    # ---- the log ----------------------------------------------------------------------------------------

    def log_head(self) -> Head:
        """The newest head of the log."""
        answer = self.read("/v1/log/head")
        return Head(*(answer[name] for name in ("log_id", "size", "root", "at_ms", "signature")))

    def check_log(self) -> Head:
        """Proves that the log that was shown first is the beginning of the newest; raises `LogForkedError`."""
        newest = self.log_head()
        if self.heads and self.heads[0].size:
            require_continuation(self, self.heads[0], newest)
        self.heads = [*self.heads[:1], newest]
        return newest

    def prove(self, entry: int) -> answers.Inclusion:
        """An entry of the log that concerns oneself, proven to be in it; raises `LogForkedError`."""
        head = self.check_log()
        proof = self.read(f"/v1/log/entries/{entry}/proof", {"size": head.size})
        answer = cast("answers.Inclusion", proof)
        leaf = merkle.leaf_hash(signatures.canonical(answer["entry"]).encode())
        path = [bytes.fromhex(one) for one in answer["path"]]
        shown = answer["entry"][0] == entry
        if not shown or not merkle.includes(bytes.fromhex(head.root), head.size, entry - 1, leaf, path):
            raise LogForkedError(
                f"entry {entry} is not in the log of {head.size} entries",
                "keep this answer as evidence and show it to other parties of the market",
            )
        return answer

    # ---- operators --------------------------------------------------------------------------------------

    def deposit(self, party_id: str, amount_micro: int) -> answers.Balance:
        """Books money that came in."""
        return cast(
            "answers.Balance",
            self.write("POST", f"/v1/parties/{party_id}/deposits", {"amount_micro": amount_micro}),
        )

    def withdraw(self, party_id: str, amount_micro: int) -> answers.Balance:
        """Books money that went out."""
        return cast(
            "answers.Balance",
            self.write("POST", f"/v1/parties/{party_id}/withdrawals", {"amount_micro": amount_micro}),
        )

    def totals(self) -> answers.Totals:
        """All the money there is, and where it stands."""
        return cast("answers.Totals", self.read("/v1/totals"))

    def audit(self, kind: str | None = None) -> Iterator[answers.LogLine]:
        """The audit log, newest first."""
        return cast("Iterator[answers.LogLine]", self.pages("/v1/audit", {} if kind is None else {"kind": kind}))


def require_continuation(client: BrokerClient, old: Head, new: Head) -> None:
    """Raises `LogForkedError` unless the broker proves that the log at `old` is the beginning of that at `new`."""
    if old.log_id != new.log_id or new.size < old.size:
        raise LogForkedError(
            f"a log of {old.size} entries became one of {new.size}, or another log altogether",
            "keep this answer as evidence and show it to other parties of the market",
        )
    path = (
        client.read("/v1/log/consistency", {"old": old.size, "new": new.size})["path"]
        if new.size > old.size
        else []
    )
    proof = [bytes.fromhex(one) for one in path]
    if not merkle.extends(old.size, bytes.fromhex(old.root), new.size, bytes.fromhex(new.root), proof):
        raise LogForkedError(
            f"the log of {new.size} entries does not begin with the {old.size} that were shown at {old.at_ms}",
            "keep both heads and tell other parties",
        )
