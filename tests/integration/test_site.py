"""The documentation site builds without a warning, and its reference holds every public name."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import privmarket as pm
from tests.once import made_once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site's tools are in the extra `docs`")
    return made_once(tmp_path_factory, "site", build)


def build(folder):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert built.returncode == 0, built.stderr


def test_every_command_is_in_the_reference(site):
    page = (site / "reference/command-line.html").read_text()
    for command in ("auction", "audit", "federate", "account", "equilibrium", "serve", "flower run", "data get"):
        assert f"privmarket {command}</h2>" in re.sub(r"<a class=\"headerlink.*?</a>", "", page), command


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs/reference/python.md").read_text()
    modules = {name for name in pm.__all__ if type(getattr(pm, name)).__name__ == "module"}
    names = [name for name in pm.__all__ if name not in modules and not name.startswith("__")]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


_FORMULA = re.compile(r"[=≤≥∂∫Σ·√]")


def _slanted(page):
    """What stands in italics."""
    return [re.sub(r"<.*?>", "", text) for text in re.findall(r"<em>(.*?)</em>", page, flags=re.S)]


def test_no_formula_lost_its_stars_or_underscores(site):
    """Two of them on a line are italics in Markdown: τ* … τ* loses both."""
    pages = sorted((site / "theory").glob("*.html"))
    assert len(pages) > 5
    lost = [(page.name, text) for page in pages for text in _slanted(page.read_text()) if _FORMULA.search(text)]
    assert lost == []
    assert [text for text in _slanted("<p>τ<em> ≤ B, so τ</em></p>") if _FORMULA.search(text)]


def _bare_keys(page):
    """Keys of references that stand in the text without a link."""
    text = re.sub(r"<pre\b.*?</pre>|<code\b.*?</code>|<a\b.*?</a>|<[^>]*>", " ", page, flags=re.S)
    return re.findall(r"\[[A-Z][A-Za-z]+\d{4}[a-z]?\]", text)


def test_every_reference_is_a_link_to_its_entry(site):
    pages = {page: page.read_text() for page in sorted(site.rglob("*.html"))}
    assert {str(page): keys for page, text in pages.items() if (keys := _bare_keys(text))} == {}
    entries = set(re.findall(r'<a id="(\w+)">', pages[site / "references.html"]))
    led = {key for text in pages.values() for key in re.findall(r'references\.html#(\w+)"', text)}
    assert len(led) > 30
    assert led <= entries
    assert _bare_keys("<p>as Myerson [Myerson1981]: a price</p>") == ["[Myerson1981]"]


def _lists_in_paragraphs(page):
    """Items of a list that are shown as running text, because Python-Markdown wants a blank line before a list."""
    return [
        text for text in re.findall(r"<p>(.*?)</p>", page, flags=re.S) if re.search(r"\n(?:[-*+]|1[.)]) ", text)
    ]


def test_every_list_is_shown_as_a_list(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert [(page.name, text) for page in pages for text in _lists_in_paragraphs(page.read_text())] == []
    assert _lists_in_paragraphs("<p>You write:\n- a model\n- its data</p>")


def test_no_page_shows_directions_to_our_tests(site):
    assert [page.name for page in site.rglob("*.html") if "doctest:" in page.read_text()] == []


def _hook(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/site/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("You write:\n- a\n  b\n- c", "You write:\n\n- a\n  b\n- c"),
        ("Steps:\n1. a\n2. b", "Steps:\n\n1. a\n2. b"),
        ("in the year\n1999. It was", "in the year\n1999. It was"),
        ("```\nx\n- y\n```", "```\nx\n- y\n```"),
        ("- a\n\n  b\n- c", "- a\n\n  b\n- c"),
        ("- a\n\nText\n- b", "- a\n\nText\n\n- b"),
    ],
)
def test_blank_lines_come_before_lists_and_nowhere_else(written, shown):
    assert _hook("page_text").on_page_markdown(written) == shown


def test_figures_in_tables_stay_in_one_piece_and_sentences_do_not():
    shown = _hook("page_text").on_page_content
    for figure in ("4e-03", "0.116% ± 0.008%", "−1.7 %", "2 s"):
        assert shown(f"<td>{figure}</td>") == f'<td class="figure">{figure}</td>'
    assert (
        shown('<td style="text-align: right;">4e-03</td>')
        == '<td style="text-align: right;" class="figure">4e-03</td>'
    )
    for text in ("uniform", "12 clients who said that they sell", "<code>4e-03</code>"):
        assert shown(f"<td>{text}</td>") == f"<td>{text}</td>"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<p>client i asks v_i, ε_max</p>", "<p>client i asks v<sub>i</sub>, ε<sub>max</sub></p>"),
        ("<p>a_{m+1} &lt; w_i·C</p>", "<p>a<sub>m+1</sub> &lt; w<sub>i</sub>·C</p>"),
        (
            "<p>1/μ_i, 2^m, (1 + e^(−x))^k</p>",
            "<p>1/μ<sub>i</sub>, 2<sup>m</sup>, (1 + e<sup>−x</sup>)<sup>k</sup></p>",
        ),
        ("<p>K_i′, S_π(i)</p>", "<p>K<sub>i</sub>′, S<sub>π</sub>(i)</p>"),
        ("<p><code>v_i</code> <math><mi>v_i</mi></math></p>", "<p><code>v_i</code> <math><mi>v_i</mi></math></p>"),
        ('<a href="a/v_i.md">data_size, x_y_z</a>', '<a href="a/v_i.md">data_size, x_y_z</a>'),
    ],
)
def test_subscripts_are_set_in_text_only(written, shown):
    assert _hook("subscripts").on_page_content(written) == shown


def test_no_theory_page_shows_an_underscore_for_a_subscript(site):
    for page in (site / "theory").glob("*.html"):
        text = re.sub(r"<(code|pre|math|script|style|svg|title)\b.*?</\1>|<.*?>", "", page.read_text(), flags=re.S)
        assert re.findall(r"(?<![\w.-])[^\W\d_]_\w+", text) == [], page.name
