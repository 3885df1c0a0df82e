"""Every Python block of every page runs as it stands, and gives what the page shows.

A page is one session: later blocks use the names of earlier ones. Blocks with `>>>` are checked line by line; a
block without is run, and a `text` block right after it is what it prints.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket_fixtures.broker_process import BrokerProcess

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", flags=re.S | re.M)


def blocks(text: str) -> list[tuple[str, str | None]]:
    """(code, what it prints if the page says so) of each Python block."""
    return [(code, printed or None) for code, printed in _BLOCK.findall(text + "\n")]


PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "results" not in path.relative_to(ROOT).parts and "```python" in path.read_text(encoding="utf-8")
}


def problems(name: str, text: str) -> list[str]:
    """What does not go as the page shows it."""
    names: dict[str, Any] = {"__name__": "page"}
    said = []
    for code, printed in blocks(text):
        output = io.StringIO()
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, name, name, 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            if runner.run(test, out=output.write, clear_globs=False).failed:
                said.append(output.getvalue())
            names.update(test.globs)
            continue
        with contextlib.redirect_stdout(output):
            exec(compile(code, name, "exec"), names)
        if printed is not None and output.getvalue() != printed:
            said.append(f"printed {output.getvalue()!r}, the page shows {printed!r}")
    return said


@contextlib.contextmanager
def _example(name: str) -> Iterator[Callable[[str], str]]:
    """In a folder with an example and a policy, as the page tells its reader to have."""
    assert CliRunner().invoke(app, ["example", name]).exit_code == 0
    Path("seller.toml").write_text(CliRunner().invoke(app, ["seller", "policy"]).stdout, encoding="utf-8")
    sys.path.insert(0, name)
    try:
        yield lambda text: text
    finally:
        sys.path.remove(name)


@contextlib.contextmanager
def _both_apps() -> Iterator[Callable[[str], str]]:
    with _example("flower-quickstart"), _example("flower-existing-app") as as_it_stands:
        yield as_it_stands


@contextlib.contextmanager
def _broker() -> Iterator[Callable[[str], str]]:
    """A broker that runs, whose address and token the reader fills in."""
    server = BrokerProcess("sqlite:///market.db", Path("log"))
    server.start()
    try:
        yield lambda text: text.replace("http://127.0.0.1:8000", server.url).replace("pm_…", server.operator_token)
    finally:
        server.kill()


PREPARED: dict[str, Callable[[], contextlib.AbstractContextManager[Callable[[str], str]]]] = {
    "docs/how-to/flower.md": _both_apps,
    "docs/how-to/guard-a-site.md": lambda: _example("flower-guard"),
    "docs/how-to/run-a-broker.md": _broker,
    "docs/how-to/your-own-data.md": lambda: _example("own-data"),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_does_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    text = PAGES[name].read_text(encoding="utf-8")
    assert blocks(text)
    with PREPARED.get(name, lambda: contextlib.nullcontext(lambda text: text))() as filled_in:
        assert problems(name, filled_in(text)) == []
    for module in set(sys.modules) - before:
        if module.partition(".")[0] in {"quickstart", "existing_app", "guarded_app"}:
            del sys.modules[module]


def test_no_block_is_overlooked():
    for name, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert len(blocks(text)) == text.count("```python"), name


def test_a_wrong_value_a_wrong_print_and_a_wrong_name_are_noticed():
    assert problems("page", "```python\n>>> 1 + 1\n3\n```\n")
    assert problems("page", "```python\nprint(2)\n```\n```text\n3\n```\n")
    assert problems("page", "```python\n>>> nobody\n```\n")
    assert problems("page", "```python\nx = 1\n```\nand\n```python\n>>> x\n1\n```\n") == []
    with pytest.raises(NameError):
        problems("page", "```python\nnobody\n```\n")
