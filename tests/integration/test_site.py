"""The documentation site builds without a warning, and its reference holds every public name."""

from __future__ import annotations

import importlib.util
import inspect
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


def _reference(site):
    """The text of each page of the Python reference, without tags, and what can be linked to on it."""
    pages = [site / "reference/python.html", *sorted((site / "reference/api").glob("*.html"))]
    return {
        page.stem: (re.sub(r"<.*?>", "", text, flags=re.S), set(re.findall(r'id="(privmarket\.[\w.]+)"', text)))
        for page, text in ((page, page.read_text()) for page in pages)
    }


def _public_packages(package=pm):
    """Each public package below this one; modules that are no packages are none."""
    below = [one for name in package.__all__ if type(one := getattr(package, name)).__name__ == "module"]
    return [*below, *(deeper for one in below for deeper in _public_packages(one))]


def test_every_public_package_has_a_page_with_all_its_names(site):
    reference = _reference(site)
    told = (ROOT / "docs/reference/python.md").read_text()
    packages = _public_packages()
    assert pm.mechanisms.learned in packages
    for package in packages:
        name = package.__name__.removeprefix("privmarket.")
        assert f"api/{name}.md" in told
        assert f"reference/api/{name}.md" in (ROOT / "mkdocs.yml").read_text()
        shown = reference[name][1]
        names = [one for one in package.__all__ if getattr(package, one) not in packages]
        assert [one for one in names if f"{package.__name__}.{one}" not in shown] == []


def _returned(function):
    """The names of our classes in what a function says that it returns.

    Some answers of a broker are left out: dictionaries to a type checker, and classes made from tables at run time.
    """
    annotation = function.__annotations__.get("return", "")
    known = vars(sys.modules[function.__module__])
    classes = [known.get(word) for word in re.findall(r"\w+", annotation if isinstance(annotation, str) else "")]
    ours = [one for one in classes if isinstance(one, type) and one.__module__.startswith("privmarket.")]
    sources = [inspect.getsource(sys.modules[one.__module__]) for one in ours]
    return [
        one.__name__
        for one, source in zip(ours, sources, strict=True)
        if re.search(rf"^class {one.__name__}\b", source, flags=re.M)
    ]


def test_what_public_functions_return_is_on_a_page(site):
    shown = {name.rpartition(".")[2] for _, names in _reference(site).values() for name in names}
    missing = set()
    for package in (pm, *_public_packages()):
        for public in (getattr(package, name) for name in package.__all__):
            members = vars(public).items() if isinstance(public, type) else [("", public)]
            for name, member in members:
                function = getattr(member, "fget", member)
                if inspect.isfunction(function) and not name.startswith("_"):
                    missing |= {(function.__qualname__, one) for one in _returned(function) if one not in shown}
    assert missing == set()
    assert _returned(pm.compare) == ["Comparison"]


def test_every_name_of_the_reference_is_explained():
    pages = _hook("api_pages")
    source = pages.griffe.load("privmarket", search_paths=[ROOT / "src"])
    public = pages.public_names(source)
    assert len(public) > 300
    assert [path for path, one in public.items() if not one.docstring] == []


_INSIDE = re.compile(r".*(?:\b_\w+\.py\b|\b[a-z]\w*\._[a-z]\w*|top of (?:this|the) module|\b(?:docs|tests|src)/).*")


def test_the_reference_does_not_point_into_the_source(site):
    """To a private module, or a path of the repository, which a reader of the site does not have."""
    found = {line.strip() for name, (text, _) in _reference(site).items() for line in _INSIDE.findall(text)}
    assert not found
    assert _INSIDE.findall("see the top of this module") + _INSIDE.findall("made by market._audit, see docs/a.md")


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


def test_a_picture_that_stands_alone_can_be_opened_by_itself(site):
    picture = '<img alt="a and b" src="results/a.png" />'
    shown = _hook("page_text").on_page_content
    assert shown(f"<p>{picture}</p>") == f'<p><a class="figure" href="results/a.png">{picture}</a></p>'
    for text in (f"<p>{picture} beside text</p>", '<p><img src="data:image/png;base64,AA" /></p>'):
        assert shown(text) == text
    assert '<a class="figure" href="results/what-money-buys/money.png">' in (site / "index.html").read_text()


def test_parts_of_a_formula_can_stand_below_each_other():
    shown = _hook("mathematics").on_page_markdown("$$a = b, \\qquad c = d$$\n")
    assert shown.count('<div class="formula">') == 1
    assert shown.count("</math><math") == 1


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
