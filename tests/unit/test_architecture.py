"""docs/architecture.md names the packages that are there, in the order of the contract, and the walk of a bid."""

import importlib
import re
import tomllib
from pathlib import Path

import privmarket

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
HOME = Path(privmarket.__file__).parent


def house():
    """The lines of the house, each as the packages it names."""
    block = PAGE.split("## The house")[1].split("```text")[1].split("```")[0]
    lines = [re.findall(r"\bprivmarket(?:_studies|\.\w+)\b", line) for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_house_is_the_contract():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rules = project["tool"]["importlinter"]["contracts"][0]
    assert set(rules) == {"name", "type", "layers"}, "imports point downwards only, without exceptions"
    contract = [re.findall(r"[\w.]+", layer) for layer in rules["layers"]]
    order = [name for line in house() for name in line]
    assert sorted(order) == sorted(name for layer in contract for name in layer)
    floor = {name: at for at, layer in enumerate(contract) for name in layer}
    assert order == sorted(order, key=lambda name: floor[name])


def test_every_package_has_its_room():
    named = {name.removeprefix("privmarket.") for line in house() for name in line}
    packages = {path.parent.name for path in HOME.glob("*/__init__.py")}
    assert packages <= named


def lines_of_packages(page):
    """The packages that have a line under "Where to begin", in its order."""
    return re.findall(r"^\| `([\w.]+)` \|", page.split("### Where to begin")[1].split("###")[0], flags=re.M)


def test_every_package_has_one_line_on_where_to_begin():
    inits = (path.parent.relative_to(HOME) for path in HOME.glob("*/**/__init__.py"))
    packages = {".".join(path.parts) for path in inits if path.parts[0] != "examples"}
    packages -= {"broker.migrations.versions"}  # a step per file, named by its number
    assert sorted(lines_of_packages(PAGE)) == sorted(packages)
    order = [name.removeprefix("privmarket.") for line in house() for name in line]
    floors = [order.index(name.partition(".")[0]) for name in lines_of_packages(PAGE)]
    assert floors == sorted(floors), "in the order of the house"


def test_a_package_without_a_line_is_noticed():
    assert "meanfield" not in lines_of_packages(PAGE.replace("| `meanfield` |", "| meanfield |"))


def listed_modules(page, package):
    return set(re.findall(rf"^\| `{package}\.(\w+)` \|", page, flags=re.M))


def test_the_modules_of_a_round_are_listed():
    there = {path.stem for path in (HOME / "rounds").glob("*.py")} - {"__init__"}
    assert listed_modules(PAGE, "rounds") == there


def test_a_module_that_is_not_listed_is_noticed():
    shorter = PAGE.replace("| `rounds._pacing` |", "| pacing |")
    assert "pacing" not in listed_modules(shorter, "rounds")


def test_names_on_the_page_exist():
    packages = "|".join(path.parent.name for path in HOME.glob("*/__init__.py"))
    for name in re.findall(rf"`((?:{packages})\.[\w.]+)`", PAGE):
        parts, module = name.split("."), None
        for cut in range(len(parts), 0, -1):
            try:
                module = importlib.import_module("privmarket." + ".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            break
        assert module is not None, name
        found = module
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
