"""The public names: listed once in a stub, lazy, typed, and quick to import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import privmarket as pm

# Others build on these names.
WANTED = """Bids Outcome Mechanism mechanism mechanism_names scenario audit compare Task task federate plan Wallet
BrokerClient PrivmarketError market mechanisms privacy meanfield rounds secagg training tasks simulation flower
broker"""
LAZY = ("market", "mechanisms", "privacy", "simulation", "meanfield", "flower", "broker", "tasks", "training")
PACKAGES = ("privmarket", *(f"privmarket.{name}" for name in LAZY))
REFERENCE = Path(__file__).parents[2] / "docs/reference/python.md"


def printed_by(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", WANTED.split())
def test_promised_names(name):
    assert name in dir(pm)
    assert getattr(pm, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_exists(package):
    module = import_module(package)
    assert [name for name in dir(module) if getattr(module, name, None) is None] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_shows_what_there_is_to_use(package):
    """No private module, no helper of the package's own; also after everything was imported."""
    module = import_module(package)
    assert dir(module) == sorted(module.__all__)
    assert [name for name in dir(module) if name.startswith("_")] == []


def test_modules_of_packages_are_private():
    home = Path(pm.__file__).parent
    public = {
        str(path.relative_to(home))
        for path in home.rglob("*.py")
        if not path.name.startswith("_") and path.relative_to(home).parts[0] not in ("examples", "errors.py")
    }
    assert {name for name in public if not name.startswith("broker/migrations/")} == set()


def test_names_in_a_fresh_process():
    code = (
        "import sys, privmarket as pm; pm.privacy.noise_multiplier; pm.market.judge; pm.broker.BrokerClient; "
        "pm.privacy.Wallet; pm.simulation.FederationConfig; pm.market.Bids; pm.mechanisms.Csra; "
        "pm.meanfield.solve; "
        "print('torch' in sys.modules, [n for n in pm.__all__ if not dir(getattr(pm, n))])"
    )
    assert printed_by(code) == "False []"


def test_import_loads_nothing_heavy():
    """Neither NumPy nor anything above it: that is what keeps the import below 0.2 seconds."""
    code = "import sys, privmarket; print([m for m in ('numpy', 'scipy', 'torch', 'flwr') if m in sys.modules])"
    assert printed_by(code) == "[]"
    assert "`import privmarket as pm` loads neither NumPy nor SciPy" in REFERENCE.read_text(encoding="utf-8")


def test_an_auction_needs_neither_scipy_nor_torch():
    code = (
        "import sys, privmarket as pm; pm.mechanism('mean-field-menu').run(pm.Bids([.1, .2], [1., 1.]), 5.0); "
        "print([m for m in ('scipy', 'torch', 'matplotlib', 'pandas', 'fastapi') if m in sys.modules])"
    )
    assert printed_by(code) == "[]"
