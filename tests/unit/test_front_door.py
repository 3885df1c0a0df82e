"""The public names: listed, lazy, typed, and quick to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import privmarket as pm

WANTED = """Bids Outcome Mechanism mechanism mechanism_names scenario audit compare federate Wallet BrokerClient
PrivmarketError __version__ market mechanisms privacy rounds federated meanfield"""


@pytest.mark.parametrize("name", WANTED.split())
def test_every_name_is_there_and_listed(name):
    assert name in dir(pm)
    assert name in pm.__all__
    assert getattr(pm, name) is not None


def test_modules_are_modules_and_unknown_names_are_refused():
    assert pm.mechanisms is import_module("privmarket.mechanisms")
    assert pm.market is import_module("privmarket.market")
    with pytest.raises(AttributeError, match="mechanizm"):
        _ = pm.mechanizm


LISTED = ("market", "mechanisms", "privacy", "federated", "meanfield", "flower")  # with all of their modules
PACKAGES = [f"privmarket.{name}" for name in (*LISTED, "broker", "tasks")]


@pytest.mark.parametrize("package", ["privmarket", *PACKAGES])
def test_the_type_checker_sees_the_same_names_from_the_same_modules(package):
    module = import_module(package)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    homes = {name: home.removesuffix(f".{name}") for name, home in module._HOMES.items() if name != "__version__"}
    assert seen == homes
    assert sorted(module._HOMES) == sorted(module.__all__) == dir(module)


@pytest.mark.parametrize("package", LISTED)
def test_every_module_of_a_package_is_public(package):
    """So that `pm.privacy.calibration` is there in a fresh process, whatever was imported before.

    Modules whose names begin with an underscore are private.
    """
    module = import_module(f"privmarket.{package}")
    files = {path.stem for path in Path(module.__file__).parent.glob("[!_]*.py")}
    assert files <= set(dir(module))


def test_names_of_packages_are_there_in_a_fresh_process():
    code = (
        "import sys, privmarket as pm; pm.privacy.calibration.noise_multiplier; pm.market.evaluation.judge; "
        "pm.broker.BrokerClient; pm.privacy.Wallet; pm.simulation.FederationConfig; pm.market.Bids; "
        "pm.mechanisms.csra.Csra; pm.mechanisms.resolve; pm.meanfield.deviation_gain.Gap; pm.meanfield.solve; "
        "pm.flower.wire.Sale; print('torch' in sys.modules, [n for n in pm.__all__ if not dir(getattr(pm, n))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False []"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_package_exists_and_unknown_ones_are_refused(package):
    module = import_module(package)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.parametrize("package", [*LISTED, "broker"])
def test_the_reference_names_what_a_package_shows(package):
    page = (Path(__file__).parents[2] / "docs/reference/python.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `pm.{package}` |"))
    named = set(re.findall(r"`(\w+)`", row))
    module = import_module(f"privmarket.{package}")
    wanted = {name for name in module.__all__ if module._HOMES[name] != f"privmarket.{package}.{name}"}
    assert wanted <= named <= set(module.__all__)


def test_importing_loads_nothing_heavy():
    """Neither NumPy nor anything above it: that is what keeps the import below 0.2 seconds."""
    code = "import sys, privmarket; print([m for m in ('numpy', 'scipy', 'torch', 'flwr') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    page = (Path(__file__).parents[2] / "docs/reference/python.md").read_text(encoding="utf-8")
    assert "`import privmarket as pm` loads neither NumPy nor SciPy" in page


def test_an_auction_needs_neither_scipy_nor_torch():
    code = (
        "import sys, privmarket as pm; pm.mechanism('mean-field-menu').run(pm.Bids([.1, .2], [1., 1.]), 5.0); "
        "print([m for m in ('scipy', 'torch', 'matplotlib', 'pandas', 'fastapi') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
