"""No cycles of imports: at the top of a module, for types only, or put off by `late`."""

from __future__ import annotations

import ast
from pathlib import Path

import privmarket

HOME = Path(privmarket.__file__).parent
STUDIES = HOME.parents[1] / "studies/src/privmarket_studies"


def modules_below(home: Path) -> dict[str, ast.Module]:
    """Module → its syntax tree; examples are text to copy."""
    found = {}
    for path in sorted(home.rglob("*.py")):
        parts = path.relative_to(home).with_suffix("").parts
        if parts[0] != "examples":
            name = ".".join((home.name, *parts)).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of ours that a module imports."""
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


def graph(home: Path) -> dict[str, set[str]]:
    trees = modules_below(home)
    return {name: imported(name, tree, set(trees)) for name, tree in trees.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (strongly connected components), by Tarjan's algorithm."""
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


def test_package():
    assert cycles(graph(HOME)) == []


def test_studies():
    assert cycles(graph(STUDIES)) == []


def test_a_cycle_is_caught():
    tree = ast.parse("if TYPE_CHECKING:\n    from b import x\nelse:\n    y = late('c')\ndef f():\n    import d")
    assert imported("a", tree, {"a", "b", "c", "d"}) == {"b", "c", "d"}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
