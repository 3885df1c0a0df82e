"""References resolve, every mechanism has a line in the docs, links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

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


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists() and not target.startswith("api/")  # made with the site
    ]
    assert not dead
