"""A missing extra is one line that names it; what is imported is declared; the core needs none of the rest."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from privmarket import _lazy as extras
from privmarket.errors import MissingPartError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distribution → what is imported, where the two differ.
IMPORTED = {
    "scikit-learn": ("sklearn",),
    "pillow": ("PIL",),
    "python-multipart": ("multipart", "python_multipart"),
    "dp-accounting": ("dp_accounting",),
    "lazy-loader": ("lazy_loader",),
    "fastapi": ("fastapi", "starlette"),
    "pydantic": ("pydantic", "pydantic_core"),
    "typing-extensions": ("typing_extensions",),
    "prometheus-client": ("prometheus_client",),
    "flwr[simulation]": ("flwr", "ray"),
}


def packages(requirements: list[str]) -> set[str]:
    """What a list of requirements makes importable, extras of our own resolved."""
    found: set[str] = set()
    for requirement in requirements:
        name = re.split(r"[<>=!~ ]", requirement)[0]
        if name.startswith("privmarket["):
            for extra in name[len("privmarket[") : -1].split(","):
                found |= packages(PROJECT["optional-dependencies"][extra])
        else:
            found |= set(IMPORTED.get(name, (re.sub(r"\[.*", "", name),)))
    return found


CORE = packages(PROJECT["dependencies"])


def third_party(path: Path) -> set[str]:
    """Top-level packages that a file imports anywhere, at run time or for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "late":
            found.add(ast.literal_eval(node.args[0]).partition(".")[0])
    return {name for name in found if name not in sys.stdlib_module_names and name != "privmarket"}


@pytest.mark.parametrize(("package", "extra"), extras.EXTRA_OF.items())
def test_the_extra_that_is_named_installs_the_package(package, extra):
    assert package in packages(PROJECT["optional-dependencies"][extra])


def test_everything_that_is_imported_is_declared():
    undeclared = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "src").rglob("*.py")
        if "examples" not in path.parts  # projects of their own, with their own dependencies
        for name in third_party(path) - CORE - set(extras.EXTRA_OF) - {"_typeshed"}  # for type checkers alone
    }
    assert undeclared == set()


def test_the_market_needs_numpy_and_scipy_alone():
    """And pandas, for whoever asks for a data frame."""
    found = set().union(*map(third_party, (ROOT / "src/privmarket/market").glob("*.py")))
    assert found == {"numpy", "scipy", "pandas"}


def test_nothing_in_the_wheel_knows_the_studies_the_tests_or_the_repository():
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not third_party(path) & {"privmarket_studies", "tests"}, path
        assert "docs/results" not in text, path
        assert "privmarket_studies" not in text, path


def test_all_is_everything_but_the_simulation_engine_and_the_tools():
    mine = packages(PROJECT["optional-dependencies"]["all"])
    assert mine == set(extras.EXTRA_OF) - {"ray", "opacus"}


# A process in which the optional packages cannot be found, and one forked from it for each command.
WITHOUT = """
import os
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else super().find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
from privmarket.cli import main
import numpy
for number, arguments in enumerate({commands!r}):
    if os.fork() == 0:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{{number}}.{{name}}", os.O_WRONLY | os.O_CREAT), descriptor)
        sys.argv = ["privmarket", *arguments]
        sys.exit(main())
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


OPTIONAL = set(extras.EXTRA_OF) - {"pydantic"}  # newer releases of typer need pydantic themselves
BIDS = "client,valuation,epsilon\na,0.2,1\nb,0.9,2\nc,0.4,0.5\n"


WORKS = [
    ["--help"],
    ["auction", "bids.csv", "--mechanism", "proportional-share", "--budget", "1"],
    ["auction", "bids.csv", "--mechanism", "mfg-menunet", "--budget", "1"],
    ["audit", "--mechanism", "pac", "--clients", "3", "--budget", "5", "--profiles", "1"],
    ["account", "--sale", "1.0x20"],
    ["equilibrium", "--grid", "16x16x16"],
    ["seller", "policy"],
]
NEEDS = [
    (["auction", "bids.csv", "--mechanism", "mfg-regretnet", "--budget", "1"], "learn"),
    (["train", "mfg-regretnet"], "learn"),
    (["demo"], "federated"),
    (["federate", "--dataset", "digits"], "federated"),
    (["serve"], "broker"),
    (["seller", "init"], "client"),
    (["witness", "http://127.0.0.1:1", "--file", "heads.txt"], "client"),
    (["broker", "verify"], "broker"),
    (["flower", "run", "."], "flower"),
    (["account", "--sale", "1", "--plot", "figure.png"], "plots"),
    (["equilibrium", "--out", "solved"], "plots"),
]


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


def run_all(commands: list[list[str]], missing: set[str], folder: Path) -> list[Done]:
    """Each command in a process of its own, forked from one in which the missing packages cannot be found."""
    code = WITHOUT.format(missing=sorted(missing), commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=800, check=True
    )
    found = []
    for number, ended in enumerate(done.stdout.split()):
        output, errors = ((folder / f"{number}.{name}").read_text() for name in ("stdout", "stderr"))
        found.append(Done(int(ended), output, errors))
    return found


def test_the_core_works_without_any_extra_and_names_the_one_that_it_needs(tmp_path):
    (tmp_path / "bids.csv").write_text(BIDS)
    commands = [*WORKS, *(arguments for arguments, _ in NEEDS)]
    found = run_all(commands, OPTIONAL, tmp_path)
    assert len(found) == len(commands)
    for arguments, result in zip(WORKS, found[: len(WORKS)], strict=True):
        assert result.code == 0, (arguments, result.stderr)
        assert result.stdout, arguments
    for (arguments, extra), result in zip(NEEDS, found[len(WORKS) :], strict=True):
        assert (result.code, result.stdout) == (2, ""), (arguments, result)
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: "), arguments
        assert line.endswith(f'is not installed (pip install "privmarket[{extra}]")'), arguments


def test_from_python_it_is_an_error_of_ours_and_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in [name for name in sys.modules if name.startswith("privmarket.mechanisms.learned")]:
        monkeypatch.delitem(sys.modules, module)
    from privmarket.mechanisms import mechanism

    with pytest.raises(MissingPartError, match=r"privmarket\[learn\]") as raised:
        mechanism("regretnet")
    assert isinstance(raised.value, ImportError)


def test_a_module_of_ours_that_is_gone_is_not_called_an_extra():
    with pytest.raises(ModuleNotFoundError, match="nowhere"), extras.needed():
        import privmarket.nowhere  # noqa: F401


def test_extras_know_no_module_by_name():
    """It lies below all of them: which extra a module needs, the module or the name of its package says."""
    assert "privmarket.cli" not in (ROOT / "src/privmarket/_lazy.py").read_text()
    packages_of_ours = {path.parent.name for path in (ROOT / "src/privmarket").glob("*/__init__.py")}
    assert set(extras.EXTRA_OF_PART) <= packages_of_ours
    assert set(extras.EXTRA_OF_PART.values()) <= set(extras.EXTRA_OF.values())


def test_require_names_the_usual_extra_or_the_one_it_is_told(monkeypatch):
    extras.require("numpy", "core")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPartError, match=r"privmarket\[learn\]"):
        extras.require("torch")
    with pytest.raises(MissingPartError, match=r"privmarket\[federated\]"):
        extras.require("torch", "federated")


def test_one_version_everywhere():
    import privmarket

    studies = tomllib.loads((ROOT / "studies" / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert privmarket.__version__ == studies == cited[1]


def newest_release(changelog: str) -> tuple[str, str]:
    """Version and date of the newest release; "Unreleased" must stand above it."""
    headings = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert headings[0] == "Unreleased", "new lines need an Unreleased section on top"
    version, _, day = headings[1].partition(" – ")
    return version, day


def test_the_changelog_has_a_dated_section_for_this_version():
    import privmarket

    version, day = newest_release((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert version == privmarket.__version__
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", day)


@pytest.mark.parametrize("broken", ["## 9.9.9 – 2026-01-01\n", "## 9.9.9 – 2026-01-01\n## Unreleased\n"])
def test_a_changelog_without_room_for_new_lines_is_noticed(broken):
    with pytest.raises(AssertionError, match="Unreleased"):
        newest_release(broken)
