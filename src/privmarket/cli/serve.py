"""`privmarket serve`: the broker over HTTP."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from privmarket.cli.options import Seed, note

Database = Annotated[
    str, typer.Option(help="sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.", envvar="PRIVMARKET_DATABASE")
]
DEFAULT_DATABASE = "sqlite:///privmarket.db"


def serve(
    database: Database = DEFAULT_DATABASE,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    demo: Annotated[bool, typer.Option("--demo", help="Fill it with a small live market.")] = False,
    closed: Annotated[bool, typer.Option("--closed", help="Only operators may register parties.")] = False,
    secure_cookies: Annotated[
        bool, typer.Option("--secure-cookies", help="Send the dashboard's cookies over HTTPS only.")
    ] = False,
    rate: Annotated[float, typer.Option(help="Requests per second that one caller may make.", min=1)] = 100.0,
    seed: Seed = 0,
) -> None:
    """Run the market as a service: API, dashboard, ledger and wallets in one process.

    On its first start it makes an operator and prints the operator's token, once. With --demo and no --database it
    uses a temporary file.

    [bold]Examples[/bold]

      privmarket serve --demo

      privmarket serve --database sqlite:///market.db --port 9000
    """
    if demo and database == DEFAULT_DATABASE:
        with tempfile.TemporaryDirectory(prefix="privmarket-demo-") as folder:
            _run(f"sqlite:///{Path(folder) / 'demo.db'}", host, port, demo, closed, secure_cookies, rate, seed)
    else:
        _run(database, host, port, demo, closed, secure_cookies, rate, seed)


def _run(
    database: str, host: str, port: int, demo: bool, closed: bool, secure_cookies: bool, rate: float, seed: int
) -> None:
    import uvicorn

    listening = _listen(host, port)
    from privmarket.broker.api import ServiceSettings, create_app
    from privmarket.broker.broker import Broker
    from privmarket.broker.fairness import take_short_turns

    take_short_turns()
    broker = Broker(database)
    token = broker.first_operator()
    if token is not None:
        note(f"operator token (shown once): {token}")
    settings = ServiceSettings(
        open_registration=not closed, requests_per_second=rate, burst=4 * rate, secure_cookies=secure_cookies
    )
    if demo:
        from privmarket.broker.demo import DemoMarket

        market = DemoMarket(broker, seed)
        for role, own in market.tokens.items():
            note(f"demo {role} token: {own}")
        market.start()
    address = f"http://{host}:{listening.getsockname()[1]}"
    note(f"listening on {address}: sign in there with a token  (API description: {address}/docs)")
    config = uvicorn.Config(create_app(broker, settings), log_level="warning", server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """The socket, before anything else is done: a port that somebody has must not cost a database or a token."""
    from privmarket.broker.errors import BrokerError

    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise BrokerError(
            f"cannot listen on {host}:{port}: {error.strerror}", "is another broker running? choose another --port"
        ) from None
