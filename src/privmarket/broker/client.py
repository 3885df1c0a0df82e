"""The broker from Python: every call of the API as a method, retried safely."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

from privmarket.errors import PrivmarketError

Answer = dict[str, Any]
_PAUSES_SECONDS = (0.1, 0.3, 1.0)


class BrokerCallError(PrivmarketError):
    """What the broker answered instead of doing it. `code`, `message` and `hint` are the broker's own."""

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.status, self.code = status, code


class BrokerClient:
    """A connection to a broker.

    Every write carries an idempotency key and is repeated when the connection breaks: it acts once.

    >>> client = BrokerClient("http://127.0.0.1:8000")  # doctest: +SKIP
    >>> seller = client.register("seller", "clinic", cap_epsilon=8.0, delta=1e-5)  # doctest: +SKIP
    >>> seller.bid(round_id, valuation=0.2, epsilon=1.0)  # doctest: +SKIP
    """

    def __init__(
        self, url: str, token: str | None = None, *, http: httpx.Client | None = None, timeout_seconds: float = 30.0
    ) -> None:
        self._http = http or httpx.Client(base_url=url, timeout=timeout_seconds)
        self.url, self.token = url, token

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the connection."""
        self._http.close()

    def __repr__(self) -> str:
        return f"BrokerClient({self.url!r})"  # never the token

    # ---- oneself ----------------------------------------------------------------------------------------

    def register(
        self, role: str, name: str, *, cap_epsilon: float | None = None, delta: float | None = None
    ) -> BrokerClient:
        """Registers a party and returns a client that acts for it; `.token` is its token, keep it."""
        form = {"role": role, "name": name, "cap_epsilon": cap_epsilon, "delta": delta}
        answer = self.write("POST", "/v1/register", {k: v for k, v in form.items() if v is not None})
        return BrokerClient(self.url, answer["token"], http=self._http)

    def me(self) -> Answer:
        """Balance, and a seller's wallet."""
        return self.read("/v1/me")

    def statement(self) -> Iterator[Answer]:
        """Every movement on the account, newest first."""
        return self.pages("/v1/me/statement")

    def mint_token(self, scope: str = "full") -> Answer:
        """Another token for oneself."""
        return self.write("POST", "/v1/me/tokens", {"scope": scope})

    def revoke_token(self, token_id: str) -> Answer:
        """Ends a token."""
        return self.write("DELETE", f"/v1/tokens/{token_id}")

    # ---- the market -------------------------------------------------------------------------------------

    def publish_task(self, title: str, budget_micro: int, **terms: Any) -> Answer:
        """Publishes a task (buyers)."""
        return self.write("POST", "/v1/tasks", {"title": title, "budget_micro": budget_micro, **terms})

    def tasks(self) -> Iterator[Answer]:
        """Tasks, newest first."""
        return self.pages("/v1/tasks")

    def open_round(self, task_id: str) -> Answer:
        """Opens the next round, its budget in escrow (buyers)."""
        return self.write("POST", f"/v1/tasks/{task_id}/rounds")

    def rounds(self, task_id: str) -> Iterator[Answer]:
        """A task's rounds, newest first."""
        return self.pages(f"/v1/tasks/{task_id}/rounds")

    def round(self, round_id: str) -> Answer:
        """One round."""
        return self.read(f"/v1/rounds/{round_id}")

    def bid(self, round_id: str, valuation: float, epsilon: float, **features: float) -> Answer:
        """Places a sealed bid (sellers)."""
        form = {"valuation": valuation, "epsilon": epsilon, **features}
        return self.write("POST", f"/v1/rounds/{round_id}/bids", form)

    def bids(self, round_id: str) -> Iterator[Answer]:
        """One's own bids in a round."""
        return self.pages(f"/v1/rounds/{round_id}/bids")

    def close_round(self, round_id: str) -> Answer:
        """Ends bidding and runs the auction."""
        return self.write("POST", f"/v1/rounds/{round_id}/close")

    def awards(self, round_id: str) -> Iterator[Answer]:
        """Who sells what, as far as one may see it."""
        return self.pages(f"/v1/rounds/{round_id}/awards")

    def claim_delivery(self, round_id: str, update_sha256: str) -> Answer:
        """Says that one's update is delivered (sellers)."""
        return self.write("POST", f"/v1/rounds/{round_id}/delivery", {"update_sha256": update_sha256})

    def give_receipts(self, round_id: str, receipts: Mapping[str, str | None]) -> Answer:
        """Says which updates were usable (buyers): None, or what was wrong."""
        return self.write("POST", f"/v1/rounds/{round_id}/receipts", {"receipts": dict(receipts)})

    def settle_round(self, round_id: str) -> Answer:
        """Pays and refunds."""
        return self.write("POST", f"/v1/rounds/{round_id}/settle")

    def abort_round(self, round_id: str, reason: str) -> Answer:
        """Ends a round with refunds."""
        return self.write("POST", f"/v1/rounds/{round_id}/abort", {"reason": reason})

    # ---- operators --------------------------------------------------------------------------------------

    def deposit(self, party_id: str, amount_micro: int) -> Answer:
        """Books money that came in."""
        return self.write("POST", f"/v1/parties/{party_id}/deposits", {"amount_micro": amount_micro})

    def withdraw(self, party_id: str, amount_micro: int) -> Answer:
        """Books money that went out."""
        return self.write("POST", f"/v1/parties/{party_id}/withdrawals", {"amount_micro": amount_micro})

    def totals(self) -> Answer:
        """All the money there is, and where it stands."""
        return self.read("/v1/totals")

    def audit(self, kind: str | None = None) -> Iterator[Answer]:
        """The audit log, newest first."""
        return self.pages("/v1/audit", {} if kind is None else {"kind": kind})

    # ---- plumbing ---------------------------------------------------------------------------------------

    def read(self, path: str, query: Mapping[str, Any] | None = None) -> Answer:
        """One GET."""
        return self._call("GET", path, params=dict(query or {}))

    def pages(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[Answer]:
        """All items of a list, page after page."""
        after: dict[str, Any] = {}
        while True:
            page = self.read(path, {"limit": 200, **(query or {}), **after})
            yield from page["items"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def write(
        self, method: str, path: str, form: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Answer:
        """One write under one key, however often it must be sent."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._call(method, path, json=form, headers=headers)

    def _call(self, method: str, path: str, **request: Any) -> Answer:
        headers = dict(request.pop("headers", {}))
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        for pause in (*_PAUSES_SECONDS, None):
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
                if pause is None or reply.status_code not in (429, 502, 503, 504):
                    return _answer(reply)
            time.sleep(pause)
        raise AssertionError("unreachable")


def _answer(reply: httpx.Response) -> Answer:
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
