"""The public names: listed, lazy, typed, and quick to import."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("package", ["privmarket", "privmarket.flower"])
def test_the_type_checker_sees_the_same_names_from_the_same_modules(package):
    module = import_module(package)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    homes = {name: home.removesuffix(f".{name}") for name, home in module._HOMES.items() if name != "__version__"}
    assert seen == homes
    assert sorted(module._HOMES) == sorted(module.__all__) == dir(module)


def test_importing_loads_nothing_heavy():
    """Neither NumPy nor anything above it: that is what keeps the import below 0.2 seconds."""
    code = "import sys, privmarket; print([m for m in ('numpy', 'scipy', 'torch', 'flwr') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_auction_needs_neither_scipy_nor_torch():
    code = (
        "import sys, privmarket as pm; pm.mechanism('mean-field-menu').run(pm.Bids([.1, .2], [1., 1.]), 5.0); "
        "print([m for m in ('scipy', 'torch', 'matplotlib', 'pandas', 'fastapi') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
