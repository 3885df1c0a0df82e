"""Small faults in a module's syntax tree, each with a name that survives moved lines.

A fault changes one operator, comparison, constant, call or guard. Docstrings, annotations and messages are left
alone: a fault in them is no fault in the behaviour.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
}
_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_CALLS = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "floor": "ceil",
    "ceil": "floor",
    "any": "all",
    "all": "any",
    "argmin": "argmax",
    "argmax": "argmin",
    "sum": "max",
    "mean": "max",
    "nextafter": "minimum",
}
_WORDS = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class CodeFault:
    """One small change.

    Attributes:
        path: the file, from the root of the repository.
        function: dotted name of the function or class that holds it.
        kind: what is changed, such as `compare` or `constant`.
        before, after: the changed piece of source.
        occurrence: which of the equal pieces in the function, from 0.
        line: where it stands today.
    """

    path: str
    function: str
    kind: str
    before: str
    after: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """Names the fault as long as the function and the piece of source keep their text."""
        return f"{self.path} {self.function} {self.kind} #{self.occurrence}: {self.before} → {self.after}"

    @property
    def digest(self) -> str:
        """A short form of the name, for choosing a fixed sample."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]


Change = Callable[[ast.AST], ast.AST]
Found = tuple[str, ast.AST, Change]


def faults(path: Path, root: Path) -> list[CodeFault]:
    """Every fault that this module can put into a file."""
    return [fault for fault, _ in _all(path, root)]


@functools.cache
def behaviour(path: Path) -> str:
    """A digest of a file's code without comments, docstrings and layout."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [inner for inner in node.body if not _is_text(inner)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def tree_with(fault: CodeFault, root: Path) -> ast.Module:
    """The syntax tree of the fault's file, with the fault in it."""
    for found, tree in _all(root / fault.path, root):
        if found == fault:
            return tree()
    raise LookupError(f"no such fault today: {fault.name}")


def _all(path: Path, root: Path) -> Iterator[tuple[CodeFault, Callable[[], ast.Module]]]:
    source = ast.parse(path.read_text(encoding="utf-8"))
    seen: Counter[tuple[str, str, str, str]] = Counter()
    for place, (function, (kind, node, change)) in enumerate(_places(source)):
        before, after = _shown(node), _shown(ast.fix_missing_locations(change(copy.deepcopy(node))))
        if before == after:
            continue
        label = (function, kind, before, after)
        fault = CodeFault(
            str(path.relative_to(root)), function, kind, _short(before), _short(after), seen[label], _line(node)
        )
        seen[label] += 1
        yield fault, _maker(path, place)


def _maker(path: Path, place: int) -> Callable[[], ast.Module]:
    def make() -> ast.Module:
        fresh = ast.parse(path.read_text(encoding="utf-8"))
        for number, (_, (_, node, change)) in enumerate(_places(fresh)):
            if number == place:
                _replace(fresh, node, change(node))
                return ast.fix_missing_locations(fresh)
        raise LookupError(f"{path} has changed meanwhile")

    return make


def _places(tree: ast.Module) -> Iterator[tuple[str, Found]]:
    """(function, change) for every piece that can be changed, in a fixed order."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, Found]]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or _no_behaviour(child):
                    continue
                inner = function
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    inner = f"{function}.{child.name}" if function else child.name
                for found in _changes(child):
                    yield inner, found
                yield from walk(child, inner)

    return walk(tree, "")


def _no_behaviour(node: ast.AST) -> bool:
    """Docstrings, imports, messages of errors, assertions, and what only type checkers see."""
    if _is_text(node):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__", "_repr_html_"):
        return True
    return isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[Found]:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY and not _of_texts(node):
        yield "operator", node, _with(op=_BINARY[type(node.op)]())
    if isinstance(node, ast.AugAssign) and type(node.op) in _BINARY:
        yield "operator", node, _with(op=_BINARY[type(node.op)]())
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = [*node.ops]
            other[place] = _COMPARE[type(operator)]()
            yield "compare", node, _with(ops=other)
    if isinstance(node, ast.BoolOp):
        yield "logic", node, _with(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign", node, lambda found: found.operand  # type: ignore[attr-defined]
    if isinstance(node, ast.Constant):
        yield from _constants(node)
    if isinstance(node, ast.Call):
        yield from _calls(node)
    if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise) and not node.orelse:
        yield "guard", node, _with(test=ast.Constant(False))


def _constants(node: ast.Constant) -> Iterator[Found]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", node, _with(value=not value)
    elif isinstance(value, int):
        yield "constant", node, _with(value=value + 1)
    elif isinstance(value, float):
        yield "constant", node, _with(value=2 * value if value else 1.0)
    elif isinstance(value, str) and value in _WORDS:
        yield "constant", node, _with(value=_WORDS[value])


def _calls(node: ast.Call) -> Iterator[Found]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in _CALLS:
        yield "call", node, _with(func=ast.Name(_CALLS[called.id], ast.Load()))
    if isinstance(called, ast.Attribute) and called.attr in _CALLS:
        yield "call", node, _with(func=ast.Attribute(called.value, _CALLS[called.attr], ast.Load()))


def _with(**fields: object) -> Change:
    def change(node: ast.AST) -> ast.AST:
        made = copy.copy(node)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    return change


def _of_texts(node: ast.BinOp) -> bool:
    """Whether texts are joined; a fault in a message is none."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list) and any(item is old for item in value):
                setattr(parent, name, [new if item is old else item for item in value])
                return


def _shown(node: ast.AST) -> str:
    """The source of a piece; of a guard its condition."""
    return f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else ast.unparse(node)


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _short(text: str) -> str:
    """The text on one line, cut to 160 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:157]}..."
