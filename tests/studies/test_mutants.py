"""The tool that puts faults into code: which faults it makes, and that it tells noticed from unnoticed ones."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from privmarket_studies.mutants import campaign, page
from privmarket_studies.mutants.coverage import Coverage
from privmarket_studies.mutants.faults import behaviour, faults, tree_with
from privmarket_studies.mutants.targets import NAMED, Target

SOURCE = '''"""Docstring with 1 + 1."""

LIMIT: int = 3


def price(bids, budget):
    """Docstring."""
    if budget <= 0:
        raise ValueError(f"{budget + 1}")
    return min(bids) * budget if not bids[0] > LIMIT and budget else -1.0
'''


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tiny.py").write_text(SOURCE)
    return tmp_path


def test_every_kind_of_fault_and_none_in_texts(project):
    made = {(f.function, f.kind, f.before, f.after) for f in faults(project / "src" / "tiny.py", project)}
    assert made == {
        ("", "constant", "3", "4"),
        ("price", "guard", "if budget <= 0", "if False"),
        ("price", "compare", "budget <= 0", "budget < 0"),
        ("price", "constant", "0", "1"),
        ("price", "call", "min(bids)", "max(bids)"),
        ("price", "operator", "min(bids) * budget", "min(bids) / budget"),
        ("price", "logic", "not bids[0] > LIMIT and budget", "not bids[0] > LIMIT or budget"),
        ("price", "sign", "not bids[0] > LIMIT", "bids[0] > LIMIT"),
        ("price", "compare", "bids[0] > LIMIT", "bids[0] >= LIMIT"),
        ("price", "sign", "-1.0", "1.0"),
        ("price", "constant", "1.0", "2.0"),
    }


def test_equal_pieces_are_told_apart_and_names_survive_moved_lines(project):
    path = project / "src" / "tiny.py"
    before = [f.name for f in faults(path, project)]
    assert len(set(before)) == len(before)
    path.write_text('"""More."""\n\n' + SOURCE.partition("\n")[2])
    assert [f.name for f in faults(path, project)] == before


def test_what_was_tried_stays_tried_when_only_words_change(project):
    tried = behaviour.__wrapped__
    path = project / "src" / "tiny.py"
    before = tried(path)
    path.write_text(SOURCE.replace("Docstring", "Other words").replace("return min", "# why\n    return min"))
    assert tried(path) == before
    path.write_text(SOURCE.replace("<=", "<"))
    assert tried(path) != before


def test_a_fault_changes_one_place(project):
    path = project / "src" / "tiny.py"
    whole = ast.dump(ast.parse(SOURCE))
    for fault in faults(path, project):
        changed = ast.unparse(tree_with(fault, project))
        assert ast.dump(ast.parse(changed)) != whole
        lines = zip(ast.unparse(ast.parse(SOURCE)).splitlines(), changed.splitlines(), strict=True)
        assert sum(a != b for a, b in lines) == 1


TRY = """
import sys
from pathlib import Path
import pytest
from privmarket_studies.mutants.faults import faults, tree_with
from privmarket_studies.mutants.trial import try_fault

root = Path(sys.argv[1])
path = root / "src" / "tiny.py"
sys.path.insert(0, str(root / "src"))
print(try_fault("tiny", path, None, ["test_tiny.py"], root, 60.0).word)
for fault in faults(path, root)[: int(sys.argv[2])]:
    verdict = try_fault("tiny", path, tree_with(fault, root), ["test_tiny.py"], root, float(sys.argv[3]))
    print(f"{fault.before} → {fault.after}: {verdict.word} {verdict.test}".strip())
"""


def run(folder: Path, faults: int, limit_seconds: float = 60) -> list[str]:
    command = [sys.executable, "-c", TRY, str(folder), str(faults), str(limit_seconds)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_faults_that_tests_notice_are_killed_and_others_survive(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tiny.py").write_text("def add(a, b):\n    return a + b if b > 0 else a\n")
    (tmp_path / "test_tiny.py").write_text("from tiny import add\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    before = (tmp_path / "src" / "tiny.py").read_text()
    first, *verdicts = run(tmp_path, 20)
    assert first == "survived", "tests pass without a fault"
    found = dict(line.rsplit(": ", 1) for line in verdicts)
    # Adding nothing and leaving as it is are the same: that fault is equivalent.
    assert found.pop("a + b → a - b") == "killed test_tiny.py::test_add"
    assert found == {"b > 0 → b >= 0": "survived", "0 → 1": "survived"}
    assert (tmp_path / "src" / "tiny.py").read_text() == before


def test_an_endless_loop_ends_when_its_processor_time_is_used_up(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tiny.py").write_text("def spin(n):\n    while n:\n        n -= n\n    return n\n")
    (tmp_path / "test_tiny.py").write_text("from tiny import spin\n\ndef test_spin():\n    assert spin(3) == 0\n")
    assert run(tmp_path, 1, limit_seconds=2) == ["survived", "n -= n → n += n: timed out"]


BENCH = """
import sys
from pathlib import Path
from privmarket_studies.mutants import fault_bench as bench
from privmarket_studies.mutants.faults import faults, tree_with

root = Path(sys.argv[1])
path = root / "src" / "tiny.py"
sys.path.insert(0, str(root / "src"))

def body(found):
    print(*(item.name for item in found.quick))
    for fault in faults(path, root):
        tests = found.coverage.of_line(path, fault.line)
        verdict = found.try_code("tiny", tree_with(fault, root), tests)
        print(f"{fault.before} → {fault.after}: {' '.join(sorted(tests))}: {verdict.word}")

print(bench.run(["test_tiny.py"], root, body, slow_seconds=0.3, endless_seconds=0.5).error)
"""
TINY = """from dataclasses import dataclass
from functools import cached_property

@dataclass
class Sum:
    a: int
    b: int

    @cached_property
    def total(self):
        return self.a + self.b

    @classmethod
    def of(cls, a):
        return cls(a, a - 1)

def spin(n):
    while n:
        n -= n
    return n

def double(n):
    return n * 2
"""
TEST_TINY = """from pathlib import Path
from tiny import Sum, double, spin

def test_total():
    assert Sum(2, 3).total == 5

def test_of():
    assert Sum.of(3).b == 2

def test_spin():
    assert spin(3) == 0

def test_moody():
    assert double(3) and not Path("moody").exists()
    Path("moody").touch()

def test_slow():
    assert sum(i % 7 for i in range(10_000_000)) > 0
"""


def test_a_bench_exchanges_methods_in_place_and_leaves_slow_tests_out(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tiny.py").write_text(TINY)
    (tmp_path / "test_tiny.py").write_text(TEST_TINY)
    command = [sys.executable, "-c", BENCH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert done[0] == "test_total test_of test_spin test_moody"
    assert done[-1] == "None"
    found = {line.split(": ")[0]: line.split(": ")[1:] for line in done[1:-1]}
    assert found["self.a + self.b → self.a - self.b"] == ["test_tiny.py::test_total", "killed"]
    assert found["a - 1 → a + 1"] == ["test_tiny.py::test_of", "killed"]
    assert found["n -= n → n += n"] == ["test_tiny.py::test_spin", "timed out"]
    assert found.pop("n * 2 → n / 2") == ["test_tiny.py::test_moody", "survived"], "it fails without the fault, too"
    assert found.pop("2 → 3") == ["test_tiny.py::test_moody", "survived"]
    assert all(verdict != "survived" for _, verdict in found.values())
    (tmp_path / "test_tiny.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    done = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert done == ["no test passes without a fault"]


def test_code_that_runs_at_import_may_matter_to_every_test(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text("LIMIT = 3\n\ndef a(n=2):\n    return n\n\ndef b():\n    return 1\n")
    calls = {"test_a": {(str(path), 3)}, "test_b": {(str(path), 6)}}
    coverage = Coverage.from_json(json.loads(json.dumps(Coverage({(str(path), 6)}, calls).to_json())))
    assert coverage.of_line(path, 1) is None
    assert coverage.of_line(path, 3) is None, "a default is made at import"
    assert coverage.of_line(path, 4) == {"test_a"}
    assert coverage.of_line(path, 7) is None, "a test module calls it while it is imported"


def test_tests_are_measured_again_when_their_file_changes():
    calls = {"a.py::test_a": {("tiny.py", 3)}, "b.py::test_b": {("tiny.py", 3)}}
    seconds = dict.fromkeys(calls, 0.1)
    coverage = Coverage(set(), calls, ["a.py::test_slow", "b.py::test_slow"], seconds, {"a.py": "1", "b.py": "1"})
    left = coverage.of_files({"a.py": "1", "b.py": "2"})
    assert set(left.tests) == set(left.seconds) == {"a.py::test_a"}
    assert left.left_out == ["a.py::test_slow"]
    assert left.files == {"a.py": "1", "b.py": "2"}


def test_the_share_counts_every_survivor_that_is_not_equivalent():
    names = ["a", "b", "c", "d"]
    verdicts = ["killed", "timed out", "survived", "survived"]
    results = [
        {"name": n, "path": f"src/privmarket/market/{n}.py", "verdict": v}
        for n, v in zip(names, verdicts, strict=True)
    ]
    judged = {"c": {"kind": "equivalent", "why": "no input can tell"}}
    assert page.figures(results, judged)["share"] == 2 / 3
    text = page.render(results, judged, "abc1234")
    assert "not finished" not in text
    unfinished = [*results[:3], {**results[3], "verdict": "not tried"}]
    assert "3 of the 4 faults were tried" in page.render(unfinished, judged, "abc1234")
    assert "| `c` | equivalent | no input can tell |" in text
    assert "| `d` | not judged |" in text
    assert "66.7%" in text
    assert "commit abc1234" in text
    assert "newer than the code" not in text
    later = page.render([{**results[0], "later": True}, *results[1:]], judged, "abc1234", "def5678")
    assert "the newest of commit def5678: 1 of the noticed faults survived" in later


def test_what_some_tests_call_is_not_taken_for_what_all_of_them_call(project):
    target = Target("tiny.py", "tests", (), 1)
    (project / "tests").mkdir()
    places = [
        campaign._Work(project, project / "out.jsonl", None, print, tests)._coverage_file(target)
        for tests in ((), ("a.py",), ("b.py",))
    ]
    assert len(set(places)) == 3


def test_what_survived_at_first_and_is_noticed_now_is_marked(project, monkeypatch):
    made = faults(project / "src" / "tiny.py", project)
    monkeypatch.setattr(campaign, "sample", lambda root: [campaign.Attempt(fault, 0) for fault in made])
    lines = [(made[0], "survived"), (made[1], "survived"), (made[2], "killed"), (made[0], "killed")]
    out = project / "out.jsonl"
    out.write_text(
        "".join(
            json.dumps({"key": campaign._key(f, project), "name": f.name, "verdict": verdict, "final": True}) + "\n"
            for f, verdict in lines
        )
        + json.dumps({"key": campaign._key(made[1], project), "verdict": "survived", "final": False})
    )
    found = campaign.of_sample(project, out)
    assert [(one["verdict"], one.get("later")) for one in found[:3]] == [
        ("killed", True),
        ("survived", False),
        ("killed", False),
    ]
    assert {one["verdict"] for one in found[3:]} == {"not tried"}


KEPT = Path(__file__).parents[2] / "docs" / "results" / "mutants"


def test_a_process_that_tries_faults_has_not_imported_the_package():
    code = "import sys, privmarket_studies.mutants.__main__; sys.exit('privmarket' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_kept_page_says_what_was_tried_and_every_survivor_is_judged():
    commit, tests, sample, judged = page.load(KEPT)
    alive = {entry["name"] for entry in sample if entry["verdict"] == "survived"}
    assert len(sample) >= 300
    assert alive <= set(judged), "a survivor without a judgement"
    assert all(judged[name]["kind"] in page.KINDS and judged[name]["why"] for name in alive)
    assert (KEPT / "README.md").read_text(encoding="utf-8") == page.render(sample, judged, commit, tests)
    # Of a finished campaign more is asked; an unfinished one says so in its first line.
    if any(entry["verdict"] == "not tried" for entry in sample):
        assert "This campaign is not finished" in (KEPT / "README.md").read_text(encoding="utf-8")
    else:
        assert page.figures(sample, judged)["share"] >= 0.95
        assert {entry["verdict"] for entry in sample if entry.get("named")} <= {"killed", "timed out"}
        assert sum(bool(entry.get("named")) for entry in sample) == len(NAMED)
