"""A missing extra is one line that names it; what is imported is declared; the core needs none of the rest."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from privmarket import extras
from privmarket.errors import MissingPartError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distribution → what is imported, where the two differ.
IMPORTED = {
    "scikit-learn": ("sklearn",),
    "pillow": ("PIL",),
    "python-multipart": ("multipart", "python_multipart"),
    "dp-accounting": ("dp_accounting",),
    "fastapi": ("fastapi", "starlette"),
    "typing-extensions": ("typing_extensions",),
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


def test_nothing_in_the_wheel_knows_the_studies_the_tests_or_the_repository():
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not third_party(path) & {"privmarket_studies", "tests"}, path
        assert "docs/results" not in text, path
        assert "privmarket_studies" not in text, path


def test_all_is_everything_but_the_simulation_engine_and_the_tools():
    mine = packages(PROJECT["optional-dependencies"]["all"])
    assert mine == set(extras.EXTRA_OF) - {"ray"}


# A process in which the optional packages cannot be found.
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else super().find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
sys.argv = ["privmarket", *{arguments!r}]
from privmarket.cli import main
main()
"""


def run(arguments: list[str], missing: set[str], folder: Path) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(missing=sorted(missing), arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120, check=False
    )


OPTIONAL = set(extras.EXTRA_OF) - {"pydantic"}  # newer releases of typer need pydantic themselves
BIDS = "client,valuation,epsilon\na,0.2,1\nb,0.9,2\nc,0.4,0.5\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bids.csv").write_text(BIDS)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["auction", "bids.csv", "--mechanism", "proportional-share", "--budget", "1"],
        ["auction", "bids.csv", "--mechanism", "mfg-menunet", "--budget", "1"],
        ["audit", "--mechanism", "pac", "--clients", "3", "--budget", "5", "--profiles", "1"],
        ["account", "--sale", "1.0x20"],
        ["equilibrium", "--grid", "16x16x16"],
    ],
    ids=lambda arguments: " ".join(arguments[:4:3]),
)
def test_the_core_works_without_any_extra(arguments, folder):
    result = run(arguments, OPTIONAL, folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["auction", "bids.csv", "--mechanism", "mfg-regretnet", "--budget", "1"], "learn"),
        (["train", "mfg-regretnet"], "learn"),
        (["demo"], "federated"),
        (["federate", "--dataset", "digits"], "federated"),
        (["serve"], "broker"),
        (["broker", "verify"], "broker"),
        (["flower", "run", "."], "flower"),
        (["account", "--sale", "1", "--plot", "figure.png"], "plots"),
        (["equilibrium", "--out", "solved"], "plots"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_missing_extra_is_one_line_that_names_it(arguments, extra, folder):
    result = run(arguments, OPTIONAL, folder)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(f'is not installed (pip install "privmarket[{extra}]")')


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
