"""Rules of the house, counted on the source: imports, cycles, names, and how much is left untyped."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import privmarket

HOME = Path(privmarket.__file__).parent
STUDIES = HOME.parents[1] / "studies/src/privmarket_studies"
MOST_ANY, MOST_ANY_IN_STUDIES = 72, 22  # 463 together at first, 231 was the aim; lower them, never raise them


@cache
def trees() -> dict[str, ast.Module]:
    """Module → its syntax tree, for everything that the wheel runs; examples are text to copy."""
    return _trees_below(HOME)


@cache
def study_trees() -> dict[str, ast.Module]:
    """The same for the studies, which are a distribution of their own."""
    return _trees_below(STUDIES)


def _trees_below(home: Path) -> dict[str, ast.Module]:
    found = {}
    for path in sorted(home.rglob("*.py")):
        parts = path.relative_to(home).with_suffix("").parts
        if parts[0] != "examples":
            name = ".".join((home.name, *parts)).removesuffix(".__init__")
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


def numbers_for(names: set[str], tree: ast.Module) -> list[str]:
    """Which of `names` a module gives a number of its own as a default: of a parameter, a field or a setting."""
    given: list[tuple[str, ast.expr | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            with_default = positional[len(positional) - len(node.defaults) :]
            given += [(one.arg, default) for one, default in zip(with_default, node.defaults, strict=True)]
            given += [(one.arg, default) for one, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        elif isinstance(node, ast.ClassDef):
            fields = (one for one in node.body if isinstance(one, ast.AnnAssign))
            given += [(ast.unparse(one.target), one.value) for one in fields]
    return sorted(name for name, value in given if name in names and value is not None and _is_number(value))


def _is_number(value: ast.expr) -> bool:
    """Whether an expression is a number, also in quotes, computed from numbers, or the default of a setting."""
    if isinstance(value, ast.Call):
        return bool(value.args) and _is_number(value.args[0])
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    text = str(value.value) if isinstance(value, ast.Constant) else ""
    return bool(re.fullmatch(r"[\d.]+(e-?\d+)?", text))


# Settings whose default is a constant of `plans`, and where another number is meant, with the reason at the line.
SHARED_DEFAULTS = {"delta", "honest_share", "kappa", "heterogeneity", "epsilon_max"}
NUMBERS_OF_THEIR_OWN = {
    "privmarket.privacy._policy": ["honest_share"],
    "privmarket.mechanisms._graded_ration": ["heterogeneity"],
}


def test_shared_defaults_are_numbers_in_one_place():
    found = {name: numbers_for(SHARED_DEFAULTS, tree) for name, tree in trees().items()}
    assert {name: names for name, names in found.items() if names} == NUMBERS_OF_THEIR_OWN


def test_a_second_number_for_a_default_is_caught():
    code = "def f(a, delta=1e-5, *, kappa=1.0, honest_share=SHARE): ...\n"
    code += "class C:\n    delta: float = setting(1e-6, 'δ')\n    honest_share: float = 2 / 3\n"
    code += "    epsilon_max: float | None = None\n"
    code += "@route\ndef page(delta: Field = '1e-5'): ..."
    assert numbers_for(SHARED_DEFAULTS, ast.parse(code)) == ["delta", "delta", "delta", "honest_share", "kappa"]


def named_trusts(tree: ast.Module) -> int:
    """How often a module lists the kinds of trust or arithmetic, as a tuple or a type."""
    listed = (node for node in ast.walk(tree) if isinstance(node, ast.Tuple))
    words = [[one.value for one in node.elts if isinstance(one, ast.Constant)] for node in listed]
    return sum(sorted(map(str, one)) in (["aggregate", "local"], ["exact", "float"]) for one in words)


def test_trusts_and_arithmetics_are_listed_once():
    counts = {name: named_trusts(tree) for name, tree in trees().items()}
    assert {name: count for name, count in counts.items() if count} == {"privmarket._plans": 2}
    assert named_trusts(ast.parse("A = Literal['exact', 'float']\nB = ('local', 'aggregate')\nC = ('local',)")) == 2


def modes_by_name(tree: ast.Module) -> list[str]:
    """Comparisons of something called `mode` with a word; what a mode does is asked of the mode itself."""
    compared = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    sides = ((node, [ast.unparse(one) for one in (node.left, *node.comparators)]) for node in compared)
    is_mode = re.compile(r"(.*\.)?mode|.*\['mode'\]").fullmatch
    return [ast.unparse(node) for node, words in sides if any(map(is_mode, words)) and "'" in "".join(words)]


def test_modes_are_asked_what_they_do():
    everything = (trees() | study_trees()).items()
    assert {name: found for name, tree in everything if (found := modes_by_name(tree))} == {}
    code = "a = config.mode == 'private'\nb = mode in ('no-dp', 'literal')\n"
    code += "c = mode in MODES\nd = padding_mode == 'x'"
    assert modes_by_name(ast.parse(code)) == ["config.mode == 'private'", "mode in ('no-dp', 'literal')"]


def own_tolerances(tree: ast.Module) -> list[str]:
    """Limits widened by 1e-9 by hand; `plans` says how much rounding is let pass."""
    sums = (node for node in ast.walk(tree) if isinstance(node, ast.BinOp))
    words = {ast.unparse(node) for node in sums if "1e-09" in (ast.unparse(node.left), ast.unparse(node.right))}
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Assign) and ast.unparse(node.value) == "1e-09")
    words |= {found for node in named if re.search("TOLERANCE|ROUNDING", found := ast.unparse(node))}
    return sorted(found for found in words if not re.fullmatch(r".* - 1e-09|.*\(1 - 1e-09\)|1 - 1e-09", found))


def test_one_tolerance_for_rounding():
    found = {name: own_tolerances(tree) for name, tree in trees().items()}
    assert {name: lines for name, lines in found.items() if lines} == {
        "privmarket._plans": ["TOLERANCE = 1e-09"],
        "privmarket.reports._run_charts": ["low / step + 1e-09"],  # ticks of an axis
    }
    code = "_ROUNDING = 1e-9\nif a > b * (1 + 1e-9):\n    c = math.ceil(d - 1e-9)\ne = 1e-9 * f"
    assert own_tolerances(ast.parse(code)) == ["1 + 1e-09", "1e-09 * f", "_ROUNDING = 1e-09"]


def conversions_by_hand(tree: ast.Module) -> list[str]:
    """Names of clients turned into places by `int`, families and awards put together by field, money cut off."""
    calls = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
    place = r"int\((\w+\.)?(client|seller|c)\)|int\(partition_name\(.*"
    family = r"ReleaseFamily\((?P<of>.+)\.sampling_rate, (?P=of)\.steps, .*"
    award, money = r"Award\(.*release\(.*", r"int\(.+ \* MICRO\)"
    return sorted(call for call in calls if re.fullmatch(f"{place}|{family}|{award}|{money}", call))


def test_conversions_have_one_place():
    found = {name: conversions_by_hand(tree) for name, tree in trees().items()}
    # Clients of a built-in data set, also as nodes, are called by their numbers; others have names.
    numbered = ("privmarket.flower.", "privmarket.cli._federate", "privmarket.cli._demo")
    assert {name: calls for name, calls in found.items() if calls and not name.startswith(numbered)} == {
        "privmarket.rounds._terms": ["int(Decimal(str(money)) * MICRO)"],
    }
    code = "a = b[int(seller)]\nc = ReleaseFamily(x.plan.sampling_rate, x.plan.steps, d)\n"
    code += "e = ReleaseFamily(1.0, 1, d)\nf = int(plan.budget * MICRO)\n"
    code += "g = Award(row.epsilon, release(row.noise_multiplier), row.payment_micro)"
    assert conversions_by_hand(ast.parse(code)) == [
        "Award(row.epsilon, release(row.noise_multiplier), row.payment_micro)",
        "ReleaseFamily(x.plan.sampling_rate, x.plan.steps, d)",
        "int(plan.budget * MICRO)",
        "int(seller)",
    ]


def test_no_function_imports_anything():
    everything = (trees() | study_trees()).items()
    assert {name: found for name, tree in everything if (found := imports_in_functions(tree))} == {}


def test_nothing_imports_a_front_door():
    known = set(trees())
    users = {name for name, tree in trees().items() if "privmarket" in imported(name, tree, known)}
    assert users == set()


def test_no_cycles_of_imports_in_the_studies():
    known = set(study_trees())
    assert cycles({name: imported(name, tree, known) for name, tree in study_trees().items()}) == []


# A finished run offers its own summary, statements and files, which are made of it.
OF_A_RESULT = ["_model_file", "_statements", "state", "summary"]


def test_no_cycles_of_imports_also_late_or_for_types():
    expected = [
        [f"privmarket.simulation.{name}" for name in OF_A_RESULT],
        ["privmarket.flower._model", "privmarket.flower._result"],
    ]
    assert cycles(graph()) == expected


def test_a_cycle_and_an_import_in_a_function_are_caught():
    code = "if TYPE_CHECKING:\n    from b import x\nelse:\n    y = late('c')\ndef f():\n    import d"
    tree = ast.parse(code)
    assert imports_in_functions(tree) == ["import d"]
    assert imported("a", tree, {"a", "b", "c", "d"}) == {"b", "c", "d"}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def shared_names(modules: Iterable[str]) -> dict[str, list[str]]:
    """File name → the modules that share it. A module may be called like a package."""
    places = defaultdict(list)
    for name in modules:
        places[name.rpartition(".")[2]].append(name)
    return {name: found for name, found in places.items() if len(found) > 1 and not name.startswith("__")}


# Flower calls these methods of its grids.
CALLED_BY_OTHERS = {"set_run", "create_message", "push_messages", "pull_messages"}


def defined(tree: ast.Module) -> set[str]:
    """Public functions, classes and methods of a module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds) and not node.name.startswith("_")}


def unused(names: Counter[str], words: Counter[str]) -> set[str]:
    """Names that stand in no text more often than they are defined."""
    return {name for name, count in names.items() if words[name] <= count}


def untyped(of: dict[str, ast.Module]) -> int:
    """How often modules say `Any`."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for tree in of.values() for node in ast.walk(tree))


def test_answers_of_the_broker_have_names_of_their_own():
    """`Round`, `Award` or `Wallet` is one thing in this house; what is said of it over HTTP is another."""
    classes = {
        module: {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for module, tree in trees().items()
    }
    answers = classes.pop("privmarket.broker._answers")
    assert {name: module for module, names in classes.items() for name in answers & names} == {}


def test_releases_at_the_edges_come_from_their_family():
    """Noise, sampling rate and steps are put together in one place: `ReleaseFamily.release`."""
    by_hand = [
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "PrivacyEvent"
    ]
    assert [module for module in by_hand if module.startswith(("privmarket.broker", "privmarket.flower"))] == []
    assert "privmarket.privacy._calibration" in by_hand


def other_writers(tree: ast.Module) -> list[str]:
    """Calls that put a file in its place, or write one, as only `privmarket._files` should."""
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, given = node.func.attr, len(node.args) + len(node.keywords)
        # Of a string, `replace` takes two arguments, of a record, only named ones.
        moves = name in ("rename", "renames") or (name == "replace" and (len(node.args), given) == (1, 1))
        if moves or name in ("write_text", "write_bytes") or ast.unparse(node.func) in ("os.replace", "os.fsync"):
            found.append(ast.unparse(node.func))
    return found


def test_files_are_written_in_one_way():
    found = {module: other_writers(tree) for module, tree in (trees() | study_trees()).items()}
    assert found.pop("privmarket._files")
    allowed = {
        "privmarket.privacy._wallet_file": ["os.fsync"],  # a journal: lines are added, never replaced
        "privmarket.flower._engine": ["write_text"] * 3,  # a folder that is made for one run and thrown away
        "privmarket.tasks._downloads": ["archive.write_bytes"],  # the same
        "privmarket_studies.pasted": ["write_text"],  # the same
        "privmarket_studies.reproduce.latency": ["write_text"],  # a switch of the kernel's, no file
        # A process that tries faults may not import privmarket, and `files` may be the faulty module.
        "privmarket_studies.mutants.campaign": ["part.write_text", "part.replace"],
        "privmarket_studies.mutants.fault_bench": ["noted.write_text", "note.write_text"],
        "privmarket_studies.mutants.trial": ["self.note.write_text"],
    }
    assert {
        module: [one.rpartition(")")[2].lstrip(".") for one in calls] for module, calls in found.items() if calls
    } == allowed


def test_a_second_writer_is_caught():
    second = "part = path.with_suffix('.new')\npart.write_text(text)\npart.replace(path)\nos.replace(part, path)"
    assert sorted(other_writers(ast.parse(second))) == ["os.replace", "part.replace", "part.write_text"]
    assert (
        other_writers(ast.parse("'a'.replace('b', 'c')\nconfig.replace(rounds=3)\nreplace(config, rounds=3)")) == []
    )


def protocols_with(*methods: str) -> list[str]:
    """Protocols of ours that have all of these methods."""
    classes = (node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return [
        one.name
        for one in classes
        if any(ast.unparse(base) == "Protocol" for base in one.bases)
        and set(methods) <= {step.name for step in one.body if isinstance(step, ast.FunctionDef)}
    ]


def test_wallets_are_one_idea():
    """One protocol for stores of wallets, and one place that says which of a broker's awards count as spent."""
    assert protocols_with("reserve") == protocols_with("void") == ["WalletStore"]
    said = [
        one.name for one in (HOME / "broker").glob("*.py") if re.search("[\"']void[\"']", one.read_text("utf-8"))
    ]
    assert said == ["wallets.py"]


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
        there = {path.stem for path in (HOME / package).glob("[!_]*.py")}
        assert listed_modules(docstring) == there


def test_a_module_that_is_not_listed_is_noticed():
    assert listed_modules("Rooms.\n\n- `bids`, `menu`: offers.\n- `facts`: what is known.") == {
        "bids",
        "menu",
        "facts",
    }


# "lie" and "lies" are also what a number does between two others.
ABOUT_LIES = re.compile(r"\b(liars?|lying|(best|no) lie|(from|joint|against) lies|lies (gain|about|tried))\b", re.I)
TEST_FILES = re.compile(r"\btests/\w|\btest_\w+\.py\b")
