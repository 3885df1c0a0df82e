"""`privmarket serve`: the broker over HTTP."""

from __future__ import annotations

import logging
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket.broker.http_errors import BrokerError
from privmarket.broker.signatures import SigningKey
from privmarket.cli.options import Seed, note
from privmarket.lazy import late

if TYPE_CHECKING:
    from privmarket.broker import api, demo_market, http_server
    from privmarket.broker import broker as service
    from privmarket.broker.api import ServiceSettings
else:
    api = late("privmarket.broker.api")
    service = late("privmarket.broker.broker")
    demo_market = late("privmarket.broker.demo_market")
    http_server = late("privmarket.broker.http_server")

Database = Annotated[
    str, typer.Option(help="sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.", envvar="PRIVMARKET_DATABASE")
]
DEFAULT_DATABASE = "sqlite:///privmarket.db"


def key_file(database: str) -> Path:
    """Where the broker's signing key is by default: beside a SQLite file, else in the working folder."""
    file = database.removeprefix("sqlite:///")
    return Path(f"{file}.key" if file != database else "privmarket-broker.key")


def serve(
    database: Database = DEFAULT_DATABASE,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine only.", envvar="PRIVMARKET_HOST")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on.", min=0, max=65535, envvar="PRIVMARKET_PORT")
    ] = 8000,
    demo: Annotated[bool, typer.Option("--demo", help="Fill it with a small live market.")] = False,
    closed: Annotated[
        bool, typer.Option("--closed", help="Only operators may register parties.", envvar="PRIVMARKET_CLOSED")
    ] = False,
    secure_cookies: Annotated[
        bool,
        typer.Option(
            "--secure-cookies",
            help="Send the dashboard's cookies over HTTPS only.",
            envvar="PRIVMARKET_SECURE_COOKIES",
        ),
    ] = False,
    rate: Annotated[
        float, typer.Option(help="Requests per second that one account may make.", min=1, envvar="PRIVMARKET_RATE")
    ] = 100.0,
    connections: Annotated[
        int, typer.Option(help="Connections at once; more are refused.", min=10, envvar="PRIVMARKET_CONNECTIONS")
    ] = 1000,
    behind_proxy: Annotated[
        str | None,
        typer.Option(
            help="Address of the proxy in front, whose X-Forwarded-For is believed; nobody's by default.",
            envvar="PRIVMARKET_BEHIND_PROXY",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="File of the key that signs the log; beside the database by default, made on the first start.",
            envvar="PRIVMARKET_BROKER_KEY",
        ),
    ] = None,
    currency: Annotated[
        str, typer.Option(help="What the dashboard calls a unit of money.", envvar="PRIVMARKET_CURRENCY")
    ] = "credits",
    access_log: Annotated[
        bool,
        typer.Option(
            "--access-log", help="One JSON line per request on standard error.", envvar="PRIVMARKET_ACCESS_LOG"
        ),
    ] = False,
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
    listening = _listen(host, port)

    settings = api.ServiceSettings(
        open_registration=not closed,
        requests_per_second=rate,
        burst=4 * rate,
        secure_cookies=secure_cookies,
        access_log=access_log,
        currency=currency,
    )
    if demo and database == DEFAULT_DATABASE:
        with tempfile.TemporaryDirectory(prefix="privmarket-demo-") as folder:
            address = f"sqlite:///{Path(folder) / 'demo.db'}"
            _run(address, key or key_file(address), listening, settings, connections, behind_proxy, seed)
    else:
        chosen = seed if demo else None
        _run(database, key or key_file(database), listening, settings, connections, behind_proxy, chosen)


def _run(
    database: str,
    key: Path,
    listening: socket.socket,
    settings: ServiceSettings,
    connections: int,
    behind_proxy: str | None,
    demo_seed: int | None,
) -> None:

    if settings.access_log:
        lines = logging.StreamHandler(sys.stderr)
        logging.getLogger("privmarket.access").addHandler(lines)
        logging.getLogger("privmarket.access").setLevel(logging.INFO)
    broker = service.Broker(database, key=SigningKey.read_or_make(key), closing_grace_ms=2000)
    broker.prepare_schedules()
    token = broker.first_operator()
    if token is not None:
        note(f"operator token (shown once): {token}")
        note(f"the key that signs the log is in {key}: back it up apart from the database")
    if demo_seed is not None:
        market = demo_market.DemoMarket(broker, demo_seed)
        for role, own in market.tokens.items():
            note(f"demo {role} token: {own}")
        market.start()
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    note(f"listening on {address}: sign in there with a token  (API description: {address}/docs)")
    try:
        http_server.run_server(api.create_app(broker, settings), listening, connections, behind_proxy)
    finally:
        broker.database.close()


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket, opened first: where the port is taken, no database or token has been made yet."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise BrokerError(
            f"cannot listen on {host}:{port}: {error.strerror}", "is another broker running? choose another --port"
        ) from None
