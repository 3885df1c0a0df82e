"""The command line: a thin shell over the library.

Each command lives in its own module and imports what it needs when it runs, so that `privmarket --help` and
`privmarket auction` start quickly and without torch. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from privmarket import __version__
from privmarket.cli import (
    account,
    auction,
    audit,
    bench,
    bench_broker,
    bench_flower,
    bench_privacy,
    broker,
    data,
    demo,
    equilibrium,
    federate,
    flower,
    nash_gap,
    reproduce,
    serve,
    train,
)
from privmarket.errors import PrivmarketError

app = typer.Typer(
    name="privmarket",
    help="A market in which federated-learning clients sell differential-privacy budget (ε) and are paid for it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.demo)
app.command("auction")(auction.auction)
app.command("audit")(audit.audit)
app.command("federate")(federate.federate)
app.command("equilibrium")(equilibrium.equilibrium)
app.command("nash-gap")(nash_gap.nash_gap)
app.command("account")(account.account)
app.command("reproduce")(reproduce.reproduce)
bench.app.command("privacy")(bench_privacy.bench_privacy)
bench.app.command("broker")(bench_broker.bench_broker)
bench.app.command("flower")(bench_flower.bench_flower)
app.command("train")(train.train)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.command("serve")(serve.serve)
app.add_typer(broker.app, name="broker")
app.add_typer(flower.app, name="flower")


def _version(asked: bool) -> None:
    if asked:
        print(f"privmarket {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `privmarket` itself."""


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # A user of the command line wants the sentence, not the line of our source that raised it.
    print(f"warning: {message}", file=sys.stderr)


def main() -> None:
    """The `privmarket` command. Errors that a user can mend end in one line and exit code 2."""
    warnings.showwarning = _warn
    # On a busy machine two OpenMP threads made an audit of a network several times slower than one does.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        app()
    except PrivmarketError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
