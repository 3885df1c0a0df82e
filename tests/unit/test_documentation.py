"""References resolve, every mechanism has a line in the docs, the README's code runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import privmarket as pm

ROOT = Path(__file__).parents[2]


def bibliography_keys() -> set[str]:
    return set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs/references.bib").read_text(), flags=re.M))


def test_cited_keys_exist():
    keys = bibliography_keys()
    missing = {
        (str(path.relative_to(ROOT)), key)
        for path in (ROOT / "src").rglob("*.py")
        for key in re.findall(r"\[([A-Z][A-Za-z]+\d{4}[a-z]?)\]", path.read_text())
        if key not in keys
    }
    assert not missing


def test_an_unknown_key_would_be_found():
    assert "Nobody2099" not in bibliography_keys()


def test_every_mechanism_is_documented():
    text = (ROOT / "docs/mechanisms.md").read_text()
    assert [name for name in pm.mechanism_names() if f"`{name}`" not in text] == []


def test_the_package_example_runs():
    assert doctest.testmod(pm).failed == 0


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/how-to/your-own-rule.md"])
def test_sessions_give_the_output_they_show(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert all(">>>" in block for block in blocks), (
        "examples are written as >>> sessions, so that they can be checked"
    )
    # One page is one session: later blocks use the names of earlier ones.
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not dead
