"""A connection to a broker: authorised calls, repeated where the line breaks; each write acts once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from privmarket.broker._signatures import Head
from privmarket.errors import PrivmarketError

Json = dict[str, Any]  # a form, or an answer as it came
PAUSES_SECONDS = (0.1, 0.3, 1.0)


class BrokerCallError(PrivmarketError):
    """The broker refused a request. `code`, `message` and `hint` are the broker's own."""

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.status, self.code = status, code


class BrokerConnection:
    """Reads and writes by path, as JSON; `http_client.BrokerClient` gives each call of the API a method and a type.

    Attributes:
        heads: of the log, that came with answers: the first and the newest.
    """

    def __init__(self, url: str, token: str | None, http: httpx.Client) -> None:
        self.url, self.token, self._http = url, token, http
        self.heads: list[Head] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the connection."""
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
        """One write under one key, however often it must be sent."""
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
