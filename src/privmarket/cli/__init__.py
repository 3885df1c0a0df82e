"""The command line: each command calls the library and prints the result.

Each command lives in its own module, which is loaded when the command is typed (`cli._commands`), so that
`privmarket --help` and `privmarket auction` start quickly and without torch. Data goes to stdout, everything else
to stderr.
"""

from __future__ import annotations

import codecs
import io
import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TextIO, cast

import click
import typer

from privmarket import __version__
from privmarket._files import in_words
from privmarket._lazy import explain
from privmarket.cli._commands import COMMANDS, CommandTable, add_commands, defaults_from
from privmarket.errors import PrivmarketError

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""
_LOG = logging.getLogger("privmarket")
app = typer.Typer(
    name="privmarket",
    cls=CommandTable,
    help="A market in which federated-learning clients sell differential-privacy budget (ε) and are paid for it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
add_commands(app)


def _version(asked: bool) -> None:
    if asked:
        print(f"privmarket {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE.toml", help="Options of commands from a file, a table per command."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log what happens, and show where an error arose.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `privmarket` itself."""
    if verbose:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        _LOG.setLevel(logging.DEBUG)
    else:  # a library that configures logging when it is imported (Opacus) would make Flower's lines appear twice
        logging.getLogger().addHandler(logging.NullHandler())
    if config is not None:
        context.default_map = defaults_from(config, cast("click.Group", context.command), context)


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    # On the command line only the message is shown, not the line of this package that raised it.
    print(f"warning: {message}", file=sys.stderr)


def _show_usage_error(error: click.UsageError) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands without a command; not in older Clicks
        error.show()
        return
    command = error.ctx.command_path if error.ctx is not None else "privmarket"
    # Typer and Click each add a guess to an unknown command's message.
    text = error.message if "Did you mean" in error.message else error.format_message()
    print(f"error: {text} (see `{command} --help`)", file=sys.stderr)


def _place_in_own_code(error: BaseException) -> str | None:
    """File and line at which a user's own rule failed; None if the error is not in such a file."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(last.filename).absolute()
    ours = Path(__file__).parents[1] in file.parents or "site-packages" in file.parts
    mendable = Path.cwd() in file.parents and file.is_file() and not ours
    return f"{file.name}, line {last.lineno}" if mendable else None


def _writable(stream: TextIO | None) -> TextIO:
    """A stream that takes every character, also where its encoding has no ε (Windows' cp1252).

    A terminal shows `?` for what it cannot show; a file or a pipe gets UTF-8, which our own readers expect. What is
    written to a closed stream (`>&-`, or a Windows program without a console) is dropped.
    """
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper) and not codecs.lookup(stream.encoding).name.startswith("utf"):
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8")
    return stream


def _forget_unwritten_output() -> None:
    """Discards output that could not be written, e.g. to a full disk, so that Python does not try again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped(error: BaseException | None = None) -> str:
    """What Ctrl-C says: whether the same command goes on, and where."""
    cause = error if isinstance(error, KeyboardInterrupt) or error is None else error.__cause__
    if cause is not None and str(cause):
        return f"stopped; {cause}"
    command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
    if command == "federate":
        return "stopped; nothing is kept (with --checkpoint FILE the same command goes on)"
    return "stopped; the same command goes on" if command in ("train", "plan") else "stopped"


def main() -> None:
    """The `privmarket` command. Errors that a user can correct end in one line and exit code 2."""
    sys.stdout = _writable(sys.stdout)
    sys.stderr = _writable(sys.stderr)
    warnings.showwarning = _warn
    # More OpenMP threads than free cores make an audit of a network several times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        result = app(standalone_mode=False)
        if result == STOPPED:
            print(_stopped(), file=sys.stderr)
        sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)  # a command that ends by `typer.Exit` gives its code
    except click.UsageError as error:
        _show_usage_error(error)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt) as error:
        print(_stopped(error), file=sys.stderr)
        sys.exit(STOPPED)
    except PrivmarketError as error:
        if _LOG.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        missing = explain(error)
        if missing is None:
            raise
        print(f"error: {missing}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"error: not enough memory: {error} (use fewer clients, cells, bids or workers)", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if _LOG.isEnabledFor(logging.DEBUG):
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{in_words(error)} (run with --verbose to see where)", file=sys.stderr)
        _forget_unwritten_output()
        sys.exit(2)
    except BaseException as error:  # a rule may raise what is no Exception; our own exits are in no user's file
        place = _place_in_own_code(error)
        if place is None or _LOG.isEnabledFor(logging.DEBUG):
            raise
        said = " ".join([f"{type(error).__name__}:", *str(error).split()]).rstrip(":")
        print(f"error: {place}: {said} (mend it there)", file=sys.stderr)
        sys.exit(2)
