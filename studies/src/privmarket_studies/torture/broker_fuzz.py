"""Everything that the OpenAPI description allows, and what it does not, sent to every operation as every role.

The long form: `python -m privmarket_studies.torture.broker_fuzz --examples 200 [--postgres] [--out FILE]`.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation

from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._limits import Limits
from privmarket_fixtures.market import key, make_market
from privmarket_fixtures.postgres import postgres
from privmarket_studies.torture.runs import append, broker_code

ROLES = ("nobody", "operator", "buyer", "seller", "reader")
SETTINGS = ServiceSettings(tick_seconds=0, requests_per_second=1e9, burst=1e9, limits=Limits(body_bytes=100_000))


class Fuzz:
    """A market whose every operation is tried; `seen` counts the answers."""

    def __init__(self, database: str, app_settings: ServiceSettings = SETTINGS) -> None:
        self.market = make_market(database)
        self.app = create_app(self.market.broker, app_settings)
        self.http = TestClient(self.app, raise_server_exceptions=False)
        self.seen: Counter[int] = Counter()
        people = {"operator": self.market.operator, "buyer": self.market.buyer, "seller": self.market.sellers[0]}
        mint = self.market.broker.mint_token
        self.tokens = {role: mint(actor, "full", key())["token"] for role, actor in people.items()}
        self.tokens["reader"] = mint(self.market.operator, "read", key())["token"]
        self.names = self._names()
        document = self.http.get("/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(document)

    def _names(self) -> dict[str, list[str]]:
        """Things that exist, in several states, so that requests get past the first check."""
        open_, cleared, settled = (self.market.open(rounds=5, delivery=how) for how in ("open", "sealed", "open"))
        for round_id in (open_, cleared, settled):
            self.market.bid_all(round_id)
        self.market.broker.close_round(self.market.buyer, cleared, key())
        self.market.finish(settled)
        with self.market.broker.database.read() as connection:
            tasks = [str(row[0]) for row in connection.exec_driver_sql("SELECT id FROM tasks")]
            tokens = [
                str(row[0]) for row in connection.exec_driver_sql("SELECT id FROM tokens WHERE scope = 'none'")
            ]
        parties = [self.market.buyer.party_id, *(seller.party_id for seller in self.market.sellers)]
        return {
            "round_id": [open_, cleared, settled],
            "task_id": tasks,
            "party_id": parties,
            "seller_id": parties[1:],
            "token_id": [*tokens, "token-none"],
            "name": ["pac", "proportional-share"],
            "seq": ["1", "9", "20"],
            "entry": ["1", "5", "9"],
        }

    def operations(self) -> list[APIOperation]:
        """Every operation of the OpenAPI description, but for streams, which never end."""
        results: Iterable[Any] = self.schema.get_all_operations()
        found = [result.ok() for result in results]
        return [one for one in found if not one.path.endswith("/stream")]

    def try_operation(
        self, operation: APIOperation, roles: Sequence[str], examples: int, mode: GenerationMode
    ) -> None:
        """So many requests to one operation, each of them made by every role and checked."""

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans(), pick=st.integers(0, 99))
        def attempt(case: Case, real: bool, pick: int) -> None:
            if real:
                for name in case.path_parameters or {}:
                    case.path_parameters[name] = self.names[name][pick % len(self.names[name])]
            for role in roles:
                self.check(operation, self._send(case, role))

        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong with a request that carries nothing
            attempt()

    def _send(self, case: Case, role: str) -> httpx.Response:
        request = case.as_transport_kwargs(base_url="http://testserver")
        headers = {name: value for name, value in dict(request.pop("headers") or {}).items() if value is not None}
        if role != "nobody":
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        sent = {k: request[k] for k in ("method", "url", "params", "json", "cookies") if request.get(k) is not None}
        if request.get("data") is not None:
            sent["content"] = request["data"] if isinstance(request["data"], bytes | str) else str(request["data"])
        plain = {n: v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for n, v in headers.items()}
        reply: httpx.Response = self.http.request(**sent, headers=plain)
        return reply

    def check(self, operation: APIOperation, reply: httpx.Response) -> None:
        """No failure of ours, a status that the description names, one shape of error."""
        self.seen[reply.status_code] += 1
        where = f"{operation.method.upper()} {operation.path}: {reply.status_code} {reply.text[:300]}"
        assert reply.status_code < 500, where
        if reply.headers["content-type"].startswith("text/plain"):  # a checkpoint, in the format of others
            assert reply.status_code == 200, where
            return
        body = reply.json()
        if reply.status_code >= 400:
            assert set(body) == {"code", "message", "hint", "field", "request_id"}, where
            told = [body[name] for name in ("code", "message", "hint", "request_id")]
            assert all(isinstance(value, str) and value for value in told), where
            assert body["field"] is None or isinstance(body["field"], str), where
        else:
            assert isinstance(body, dict), where
        declared = set(operation.definition.raw["responses"])
        assert str(reply.status_code) in declared, where


def run(database: str, examples: int) -> Counter[int]:
    """All operations as all roles, well formed and not."""
    fuzz = Fuzz(database)
    for operation in fuzz.operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            fuzz.try_operation(operation, ROLES, examples, mode)
    fuzz.market.broker.database.close()
    return fuzz.seen


def main() -> None:
    """Runs the long form, as the command line asks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres()) if options.postgres else f"sqlite:///{name}/market.db"
        seen = run(database, options.examples)
    kind = "PostgreSQL" if options.postgres else "SQLite"
    answers = {str(status): seen[status] for status in sorted(seen)}
    print(f"{kind}: {seen.total()} requests, answers {answers}: no 5xx, one error shape")
    if options.out:
        command = f"python -m privmarket_studies.torture.broker_fuzz --examples {options.examples}"
        command += " --postgres" if options.postgres else ""
        result: dict[str, object] = {
            "command": command,
            "code": broker_code(),
            "schemathesis": schemathesis.__version__,
            "database": kind,
        }
        result |= {"requests": seen.total(), "answers": answers, "verdict": "no 5xx, one error shape"}
        append(options.out, result)


if __name__ == "__main__":
    main()
