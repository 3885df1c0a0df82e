"""Rules of the house, counted on the source: imports, cycles, names, and how much is left untyped."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import privmarket

HOME = Path(privmarket.__file__).parent
MOST_ANY = 72  # 463 at first, 231 was the aim; lower it, never raise it

# A function fits on a screen, a module in a head; the longest of each may shrink, not grow.
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_MODULE = 77, 440


@cache
def trees() -> dict[str, ast.Module]:
    """Module → its syntax tree, for everything that the wheel runs; examples are text to copy."""
    found = {}
    for path in sorted(HOME.rglob("*.py")):
        parts = path.relative_to(HOME).with_suffix("").parts
        if parts[0] != "examples":
            name = ".".join(("privmarket", *parts)).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports_in_functions(tree: ast.Module) -> list[str]:
    """Import statements inside functions."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {node for one in functions for node in ast.walk(one) if isinstance(node, ast.Import | ast.ImportFrom)}
    return [ast.unparse(node) for node in inside]


def imported(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of ours that a module imports: at its top, in a function, under TYPE_CHECKING, or by `late`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import name` imports the module of that name where there is one, else the package.
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if one in known else node.module for one in full.values()}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "late":
            found.add(ast.literal_eval(node.args[0]))
    return (found & known) - {name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (strongly connected, more than one member), by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def graph() -> dict[str, set[str]]:
    known = set(trees())
    # The front doors name what lies behind them, and nothing behind them imports them.
    doors = {"privmarket", "privmarket.flower"}
    return {name: imported(name, tree, known) - doors for name, tree in trees().items() if name not in doors}


def long_functions(tree: ast.Module, limit: int) -> dict[str, int]:
    """Functions of more than `limit` lines, signature and docstring included → their lines."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    lines = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    return {name: count for name, count in lines.items() if count > limit}


def test_no_function_imports_anything():
    assert {name: found for name, tree in trees().items() if (found := imports_in_functions(tree))} == {}


def test_nothing_imports_a_front_door():
    known = set(trees())
    users = {name for name, tree in trees().items() if "privmarket" in imported(name, tree, known)}
    assert users == set()


def test_no_cycles_of_imports_also_late_or_for_types():
    assert cycles(graph()) == []


def test_a_cycle_and_an_import_in_a_function_are_caught():
    code = "if TYPE_CHECKING:\n    from b import x\nelse:\n    y = late('c')\ndef f():\n    import d"
    tree = ast.parse(code)
    assert imports_in_functions(tree) == ["import d"]
    assert imported("a", tree, {"a", "b", "c", "d"}) == {"b", "c", "d"}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_two_modules_share_a_name():
    places = defaultdict(list)
    for name in trees():
        places[name.rpartition(".")[2]].append(name)
    packages = {path.parent.name for path in HOME.rglob("__init__.py")}
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in packages} == {}


def test_any_is_rare():
    count = sum(
        isinstance(node, ast.Name) and node.id == "Any" for tree in trees().values() for node in ast.walk(tree)
    )
    assert count <= MOST_ANY


def test_functions_and_modules_stay_short():
    most = MOST_LINES_OF_A_FUNCTION
    assert {name: found for name, tree in trees().items() if (found := long_functions(tree, most))} == {}
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in HOME.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_MODULE} == {}


def test_a_long_function_is_caught():
    tree = ast.parse("def short():\n    pass\nasync def long():\n" + "    pass\n" * 10)
    assert long_functions(tree, 10) == {"long": 11}


def listed_modules(docstring: str) -> set[str]:
    """The modules that a package's docstring lists, in lines such as "- `bids`, `outcome`: …"."""
    return {
        name
        for names in re.findall(r"^- ((?:`\w+`(?:, )?)+):", docstring, flags=re.M)
        for name in names[1:-1].split("`, `")
    }


def test_packages_list_the_modules_that_are_there():
    for package in ("market", "privacy", "federated"):
        docstring = ast.get_docstring(trees()[f"privmarket.{package}"]) or ""
        there = {path.stem for path in (HOME / package).glob("*.py")} - {"__init__"}
        assert listed_modules(docstring) == there


def test_a_module_that_is_not_listed_is_noticed():
    assert listed_modules("Rooms.\n\n- `bids`, `menu`: offers.\n- `facts`: what is known.") == {
        "bids",
        "menu",
        "facts",
    }
