"""Does every command of every page and of every `--help` run when it is pasted into a shell?

    python -m privmarket_fixtures.pasted . --program .venv/bin/privmarket [--slow]

A page's commands are run one after the other in a folder that is empty at first, as a reader would run them; the
examples of a command's help likewise. What needs another machine, a download or an administrator is checked for
its words only, and says why (`ELSEWHERE`). What takes more than a few seconds is run with `--slow`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import typer.main

from privmarket._files import write_atomically
from privmarket.cli import app
from privmarket.errors import PrivmarketError

# Not run: a pattern of the command → why.
ELSEWHERE = {
    r"mnist|cifar10|insteval|nlschools|medpar|benefits|insured|wages": "needs a data set that is downloaded first",
    r"packages|sentences": "needs texts that are downloaded first",
    r"market\.example|--url": "needs somebody's broker",
    r"postgresql": "needs a PostgreSQL server",
    r"public\.npz": "needs records of the reader's own",
    r"wallet-0\.jsonl": "needs the wallet of an earlier sale",
    r"my_attack\.py": "needs the file that its page shows: test_attack_command.py",
    r"roster\.json|PUBLIC_KEY": "needs a key or a roster that another party made",
    r"^privmarket (reproduce|bench|nash-gap)": "part of the studies, run by their own tests",
    r"--engine (simulation|deployment)": "needs Ray or SuperNodes: test_flower_engines.py",
    r"predict model.safetensors new.csv": "needs new rows: test_result.py",
    r"broker (verify|operator-token|backup|restore|forget)": "needs a broker's file: test_broker_service.py",
}
# Takes more than a few seconds.
SLOW = (
    # predict needs the model of a run.
    r"^privmarket (demo|federate|plan|predict|attack|train|serve|flower|audit|equilibrium)",
    r"account.*0\.05,20x100",  # certificates of sampled sales
)
# Ends with another code than 0, as the page says.
CODES = {r"attack --noise-share": 1}
_BLOCK = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", flags=re.S | re.M)
_SHELLS = ("", "sh", "bash", "console")
_RUNS_UNTIL_STOPPED = re.compile(r"^privmarket serve")


@dataclass(frozen=True)
class Pasted:
    """One command of a page or a help text: where it stands, and its line."""

    where: str
    line: str

    @property
    def words(self) -> list[str]:
        """The words as a shell splits them, without comments and redirections."""
        words = shlex.split(self.line, comments=True)
        return words[: words.index(">")] if ">" in words else words

    @property
    def target(self) -> str | None:
        """The file into which the command's output is redirected; None without one."""
        words = shlex.split(self.line, comments=True)
        return words[words.index(">") + 1] if ">" in words else None

    @property
    def elsewhere(self) -> str | None:
        """Why it is not run here; None if it is."""
        return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, self.line)), None)

    @property
    def is_slow(self) -> bool:
        """Whether the command takes more than a few seconds."""
        return any(re.search(pattern, self.line) for pattern in SLOW)

    @property
    def code(self) -> int:
        """The exit code with which the command is said to end."""
        return next((code for pattern, code in CODES.items() if re.search(pattern, self.line)), 0)


def commands(root: Path) -> list[Pasted]:
    """Every `privmarket` line of the pages' shell blocks and of the help texts, in order."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    pages += sorted((root / "src/privmarket/examples").rglob("*.md"))
    found = [
        Pasted(str(page.relative_to(root)), line)
        for page in pages
        if "results" not in page.relative_to(root).parts  # written by the studies, with commands of theirs
        for line in lines_of(page.read_text(encoding="utf-8"))
    ]
    return found + list(_help_examples(_command(), []))


def lines_of(text: str) -> list[str]:
    """The `privmarket` lines in the shell blocks of a page."""
    blocks = (block for language, block in _BLOCK.findall(text) if language.strip() in _SHELLS)
    lines = (line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("privmarket ")]


def _help_examples(command: click.Command, path: list[str]) -> Iterator[Pasted]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):  # a command is loaded when it is asked for
            below = command.get_command(context, name)
            if below is not None:
                yield from _help_examples(below, [*path, name])
        return
    for line in (command.help or "").splitlines():
        if line.strip().startswith("privmarket "):
            yield Pasted("--help of " + " ".join(path), line.strip())


@cache
def _command() -> click.Command:
    return typer.main.get_command(app)


def misread(pasted: Pasted) -> str | None:
    """What the command line says against the words alone, without running anything; None if it takes them."""
    try:
        context = _command().make_context("privmarket", pasted.words[1:])
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, command, rest = context.command.resolve_command(context, rest)
            if command is None:
                return f"no command {rest}"
            context = command.make_context(name or "", rest, parent=context)
    except click.exceptions.Exit:
        return None
    except (click.UsageError, PrivmarketError) as error:
        said = str(getattr(error, "message", error))
        # A file of the reader's own is no question of words.
        return None if re.fullmatch(r"File '.*' does not exist\.", said) else said
    return None


def by_place(found: Sequence[Pasted]) -> dict[str, list[Pasted]]:
    """The commands of each page or help, in order."""
    places: dict[str, list[Pasted]] = {}
    for one in found:
        places.setdefault(one.where, []).append(one)
    return places


Run = Callable[[Pasted, Path], tuple[int, str]]
"""Runs a command in a folder: its exit code, and what it said."""


@dataclass(frozen=True)
class Tried:
    """A command that was run, and how it ended."""

    pasted: Pasted
    seconds: float
    code: int
    output: str

    @property
    def failed(self) -> bool:
        """Whether it ended with another code than its page says."""
        return self.code != self.pasted.code

    def __str__(self) -> str:
        return f"{self.pasted.where}: {self.pasted.line}: exit {self.code}: {self.output.strip()[-300:]}"


def tried(places: dict[str, list[Pasted]], run: Run, *, slow: bool) -> Iterator[Tried]:
    """Runs the commands of each place in an empty folder of its own."""
    for where, lines in places.items():
        with tempfile.TemporaryDirectory() as folder:
            for pasted in lines:
                if pasted.elsewhere or (pasted.is_slow and not slow):
                    continue
                started = time.monotonic()
                code, output = run(pasted, Path(folder))
                seconds = time.monotonic() - started
                print(f"{seconds:6.1f} s  {where}: {pasted.line}", file=sys.stderr)
                yield Tried(pasted, seconds, code, output)


def failures(places: dict[str, list[Pasted]], run: Run, *, slow: bool) -> list[str]:
    """Runs the commands of these places; a line for each that did not end as it should."""
    return [str(one) for one in tried(places, run, slow=slow) if one.failed]


def record(found: Sequence[Pasted], results: Sequence[Tried], about: str) -> str:
    """A page that lists what was run and how long it took, and what was not run and why."""
    failed = sum(one.failed for one in results)
    lines = ["# Every command of the pages, tried", "", about, ""]
    lines += [f"{len(results)} commands ran, {failed} failed.", ""]
    lines += ["| where | command | seconds | ended with |", "| --- | --- | ---: | ---: |"]
    lines += [f"| {_cell(one.pasted)} | {one.seconds:.1f} | {one.code} |" for one in results]
    left = [one for one in found if one.elsewhere]
    lines += ["", f"Not run from here ({len(left)}), only checked for their words:", ""]
    lines += ["| where | command | why |", "| --- | --- | --- |"]
    lines += [f"| {_cell(one)} | {one.elsewhere} |" for one in left]
    return "\n".join(lines) + "\n"


def _cell(pasted: Pasted) -> str:
    words = pasted.line.partition(" #")[0].strip().replace("|", "\\|")
    return f"{pasted.where} | `{words}`"


def with_program(program: str) -> Run:
    """Runs commands with an installed `privmarket`, without a checkout on its path."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(pasted: Pasted, folder: Path) -> tuple[int, str]:
        words = [program, *pasted.words[1:]]
        if _RUNS_UNTIL_STOPPED.search(pasted.line):
            return _serve(words, folder, clean)
        done = subprocess.run(
            words, cwd=folder, env=clean, capture_output=True, text=True, timeout=900, check=False
        )
        if pasted.target is not None:
            (folder / pasted.target).write_text(done.stdout, encoding="utf-8")
        return done.returncode, done.stderr + done.stdout

    return run


def _serve(words: list[str], folder: Path, environment: dict[str, str], seconds: float = 20.0) -> tuple[int, str]:
    """A service is right if it says its address and ends cleanly when it is asked to."""
    log = folder / "serve.log"
    with log.open("w") as stream:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None and "http://" not in log.read_text():
            time.sleep(0.1)
        said = log.read_text()
        process.terminate()
        process.wait(timeout=20)
    finally:
        process.kill()
    return (0 if "http://" in said else 1), said


def main() -> None:
    """Exit code 1 if a command of a page or a help does not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the repository, for its pages")
    parser.add_argument("--program", required=True, help="the installed `privmarket`")
    parser.add_argument("--slow", action="store_true", help="also run what takes more than a few seconds")
    parser.add_argument("--only", help="only places with this in their name")
    parser.add_argument("--record", type=Path, help="write what ran and how long to this Markdown file")
    options = parser.parse_args()
    found = [one for one in commands(options.checkout) if not options.only or options.only in one.where]
    said = [f"{one.where}: {one.line}: {why}" for one in found if (why := misread(one))]
    program = str(Path(options.program).absolute())
    results = list(tried(by_place(found), with_program(program), slow=options.slow))
    said += [str(one) for one in results if one.failed]
    if options.record is not None:
        write_atomically(options.record, record(found, results, _about(program)))
    print("\n".join(said) or f"{len(found)} commands, all right")
    sys.exit(bool(said))


def _about(program: str) -> str:
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"Written by `python -m privmarket_fixtures.pasted`, with {version} on Python {platform.python_version()}, "
        f"{platform.system()}, {os.cpu_count()} cores. A page starts in an empty folder, and its "
        "commands run one after the other. Seconds are wall time on a machine that also did other work."
    )


if __name__ == "__main__":
    main()
