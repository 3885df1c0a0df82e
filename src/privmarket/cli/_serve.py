"""`privmarket serve`: the broker over HTTP."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._lazy import late
from privmarket.broker._errors import BrokerError
from privmarket.broker._signatures import SigningKey
from privmarket.cli._options import Seed, note
from privmarket.errors import ConfigurationError
from privmarket.rounds import micro_units

if TYPE_CHECKING:
    from privmarket.broker import (
        _api as api,
        _broker as service,
        _database as databases,
        _demo_market as demo_market,
        _http_server as http_server,
        _limits as limits,
    )
    from privmarket.broker._broker import Broker
else:
    api = late("privmarket.broker._api")
    databases = late("privmarket.broker._database")
    service = late("privmarket.broker._broker")
    demo_market = late("privmarket.broker._demo_market")
    http_server = late("privmarket.broker._http_server")
    limits = late("privmarket.broker._limits")

Database = Annotated[
    str, typer.Option(help="sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.", envvar="PRIVMARKET_DATABASE")
]
Host = Annotated[
    str, typer.Option(help="Address to listen on; the default is this machine only.", envvar="PRIVMARKET_HOST")
]
Port = Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535, envvar="PRIVMARKET_PORT")]
Demo = Annotated[bool, typer.Option("--demo", help="Fill it with a small live market.")]
Closed = Annotated[
    bool, typer.Option("--closed", help="Only operators may register parties.", envvar="PRIVMARKET_CLOSED")
]
SecureCookies = Annotated[
    bool,
    typer.Option(
        "--secure-cookies", help="Send the dashboard's cookies over HTTPS only.", envvar="PRIVMARKET_SECURE_COOKIES"
    ),
]
Rate = Annotated[
    float, typer.Option(help="Requests per second that one account may make.", min=1, envvar="PRIVMARKET_RATE")
]
Connections = Annotated[
    int, typer.Option(help="Connections at once; more are refused.", min=10, envvar="PRIVMARKET_CONNECTIONS")
]
RequestSeconds = Annotated[
    float,
    typer.Option(
        help="Seconds that a request's headers, and then its body, may take to arrive.",
        min=0.1,
        envvar="PRIVMARKET_REQUEST_SECONDS",
    ),
]
BehindProxy = Annotated[
    str | None,
    typer.Option(
        help="Address of the proxy in front, whose X-Forwarded-For is believed; nobody's by default.",
        envvar="PRIVMARKET_BEHIND_PROXY",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        help="File of the key that signs the log, made on the first start; FILE.key for sqlite:///FILE by default.",
        envvar="PRIVMARKET_BROKER_KEY",
    ),
]
RotateKey = Annotated[
    Path | None,
    typer.Option(help="Change to the key in this file, made if missing; the one in --key signs the change."),
]
Currency = Annotated[
    str, typer.Option(help="What the dashboard calls a unit of money.", envvar="PRIVMARKET_CURRENCY")
]
WebhooksOption = Annotated[
    bool,
    typer.Option(
        "--webhooks", help="Post events to addresses that parties give, signed.", envvar="PRIVMARKET_WEBHOOKS"
    ),
]
SecondApprover = Annotated[
    float | None,
    typer.Option(
        "--second-approver-above",
        help="Bookings of more units of money than this need a second operator.",
        min=0,
        envvar="PRIVMARKET_SECOND_APPROVER_ABOVE",
    ),
]
AccessLog = Annotated[
    bool,
    typer.Option(
        "--access-log", help="One JSON line per request on standard error.", envvar="PRIVMARKET_ACCESS_LOG"
    ),
]
DEFAULT_DATABASE = "sqlite:///privmarket.db"


def serve(
    database: Database = DEFAULT_DATABASE,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    demo: Demo = False,
    closed: Closed = False,
    secure_cookies: SecureCookies = False,
    rate: Rate = 100.0,
    connections: Connections = 1000,
    request_seconds: RequestSeconds = 10.0,
    behind_proxy: BehindProxy = None,
    key: Key = None,
    rotate_key: RotateKey = None,
    currency: Currency = "credits",
    second_approver: SecondApprover = None,
    webhooks: WebhooksOption = False,
    access_log: AccessLog = False,
    seed: Seed = 0,
) -> None:
    """Run the market as a service: API, dashboard, ledger and wallets in one process.

    On its first start it makes an operator and prints the operator's token, once, and a key that signs its log.
    With --demo and no --database it uses a temporary file. SIGTERM ends it within 15 seconds, with all that was
    acknowledged on disk.

    [bold]Examples[/bold]

      privmarket serve --demo

      privmarket serve --database sqlite:///market.db --port 9000
    """
    listening = _listen(host, port)  # first: where the port is taken, no database or token has been made yet
    service_settings = api.ServiceSettings(
        open_registration=not closed,
        limits=limits.Limits(body_seconds=request_seconds),
        requests_per_second=rate,
        burst=4 * rate,
        secure_cookies=secure_cookies,
        access_log=access_log,
        currency=currency,
        webhooks=webhooks,
    )
    server_settings = http_server.ServerSettings(connections, request_seconds, behind_proxy)
    with contextlib.ExitStack() as until_the_end:
        if demo and database == DEFAULT_DATABASE:
            folder = until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="privmarket-demo-"))
            database = f"sqlite:///{Path(folder) / 'demo.db'}"
        broker = _open(database, databases.key_file(database, key), rotate_key)
        if second_approver is not None:
            broker.second_approver_above_micro = micro_units(second_approver)
        until_the_end.callback(broker.database.close)
        if demo:
            _begin_demo(broker, seed)
        if access_log:
            _log_requests()
        note(_where(listening))
        if not _is_loopback(host) and not secure_cookies and behind_proxy is None:
            note(
                f"warning: {host} is reachable from other machines, and tokens travel without encryption: "
                "put a TLS proxy in front (--behind-proxy, --secure-cookies), or listen on 127.0.0.1"
            )
        http_server.run_server(api.create_app(broker, service_settings), listening, server_settings)


def _open(database: str, key: Path, rotate_key: Path | None) -> Broker:
    """The broker over a database, with an operator and a signing key; both are made on the first start."""
    if not key.parent.is_dir():
        raise ConfigurationError(f"no folder {key.parent}", "make it first, or choose another --database or --key")
    stored = databases.Database(database)
    try:
        stored.key = databases.read_or_make_key(stored, key)
    except BrokerError:
        stored.close()
        raise
    broker = service.Broker(stored, closing_grace_ms=2000)
    if rotate_key is not None:
        if not rotate_key.exists():
            SigningKey.generate().write(rotate_key)
        broker.rotate_key(SigningKey.read(rotate_key))
        key = rotate_key
        note(f"the log is signed with the key in {key} from here on: start with --key {key} from now on")
    assert stored.key is not None
    note(f"the log is signed with the key {stored.key.public} in {key}")
    broker.prepare_schedules()
    token = broker.first_operator()
    if token is not None:
        note(f"operator token (shown once): {token}")
        note("back that key up apart from the database: without it the log cannot go on")
    return broker


def _begin_demo(broker: Broker, seed: int) -> None:
    """Starts a small market that trades in a thread of its own, and prints its tokens."""
    market = demo_market.DemoMarket(broker, seed)
    for role, own in market.tokens.items():
        note(f"demo {role} token: {own}")
    market.start()


def _log_requests() -> None:
    logger = logging.getLogger("privmarket.access")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    logger.setLevel(logging.INFO)


def _where(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"listening on {address}: sign in there with a token  (API description: {address}/docs)"


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; every name except localhost counts as reachable by others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket; `BrokerError` where the port is taken."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise BrokerError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            "is another broker running there? choose another --port, or check --host",
        ) from None
