"""What is said when an engine fails, without starting one, and how long a rehearsal waits."""

import json
import multiprocessing
import os
import threading
from contextlib import nullcontext
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from privmarket.cli import _flower as flower_commands
from privmarket.flower import _engine as engine_module
from privmarket.flower._checkpoint import RUNNING_VARIABLE, has_ended, note_running
from privmarket.flower._engine import Engine, EngineError
from privmarket.flower._rehearsal import RehearsalPlan, run_timeout, stretched

GIVEN_UP = "ERROR : [/v1/runtime/get-nodes][ApiError:1008] Runtime task-token authentication failed."


class Running:
    """A process that has not ended, or did with a code."""

    def __init__(self, code=None):
        self.code = code

    def poll(self):
        return self.code


def engine_with(folder, superlink_log, **processes):
    engine = Engine(folder, 1)
    engine._processes = {"superlink": Running(), **{k.replace("_", "-"): v for k, v in processes.items()}}
    (folder / "superlink.log").write_text(superlink_log)
    return engine


def test_a_run_that_flower_gave_up_is_told_from_one_that_failed(tmp_path):
    with pytest.raises(EngineError, match="no sign of life for a minute") as given_up:
        engine_with(tmp_path, f"INFO : started\n{GIVEN_UP}\n").await_result(tmp_path / "none", 60.0)
    assert "run it again" in str(given_up.value)
    assert given_up.value.evidence.endswith(GIVEN_UP)
    with pytest.raises(EngineError, match="ended without a result"):
        engine_with(tmp_path, "Finished task 7 of run 8").await_result(tmp_path / "none", 60.0)


def holds(place, ready, end):
    """A server app that runs until it is killed."""
    os.environ[RUNNING_VARIABLE] = str(place)
    note_running()
    ready.set()
    end.wait()


def test_a_server_app_that_dies_without_a_word_is_noticed(tmp_path, monkeypatch):
    """Neither a result nor a word in the SuperLink's log: only its lock on a file is gone."""
    monkeypatch.setattr(engine_module, "_LAST_WORDS_SECONDS", 0.0)
    engine = engine_with(tmp_path, "")
    assert not has_ended(engine._running)  # it has not begun
    processes = multiprocessing.get_context("spawn")
    ready, end = processes.Event(), processes.Event()
    server = processes.Process(target=holds, args=(engine._running, ready, end))
    server.start()
    assert ready.wait(120)
    with pytest.raises(EngineError, match="had not ended"):
        engine.await_result(tmp_path / "none", 0.1)
    server.kill()
    server.join()
    with pytest.raises(EngineError, match="the server app died without a result"):
        engine.await_result(tmp_path / "none", 300.0)


def test_a_run_that_takes_too_long_says_how_long_and_names_dead_nodes(tmp_path):
    (tmp_path / "node-3.log").write_text("\x1b[92mINFO \x1b[0m:      \nkilled by the kernel\n")
    engine = engine_with(tmp_path, "", node_3=Running(-9), node_4=Running())
    with pytest.raises(EngineError, match=r"had not ended after 0\.1 s \(allow it more time") as caught:
        engine.await_result(tmp_path / "none", 0.1)
    assert "node-3 ended by itself with code -9; node-3.log ends:\n  killed by the kernel" in str(caught.value)
    assert "node-4" not in str(caught.value)


def test_an_app_that_flower_refuses_shows_its_words_without_the_frame(tmp_path, monkeypatch):
    said = "╭─ Error ───╮\n│ no attribute server   │\n╰───────────╯\n"
    engine = engine_with(tmp_path, "")
    monkeypatch.setattr(engine_module.subprocess, "run", lambda *_, **__: CompletedProcess([], 1, said, ""))
    with pytest.raises(EngineError, match="flwr run refused the app") as caught:
        engine.submit(tmp_path, {})
    assert caught.value.evidence.splitlines()[-1].strip() == "no attribute server"


def test_a_result_that_is_there_ends_the_wait(tmp_path):
    engine, file = engine_with(tmp_path, ""), tmp_path / "result.json"
    threading.Timer(0.3, lambda: file.write_text(json.dumps({"rounds": []}))).start()
    assert engine.await_result(file, 60.0) == {"rounds": []}


def test_no_port_is_given_twice(monkeypatch):
    """Whom the first was given to may not listen on it yet."""
    found = iter([4711, 4711, 4711, 4712])

    class Probe(nullcontext):
        def bind(self, address):
            self.port = next(found)

        def getsockname(self):
            return "127.0.0.1", self.port

        def __enter__(self):
            return self

    monkeypatch.setattr(engine_module, "socket", SimpleNamespace(socket=Probe))
    monkeypatch.setattr(engine_module, "_given_ports", set())
    assert [engine_module._free_port() for _ in range(2)] == [4711, 4712]


def test_a_slow_machine_gets_a_longer_deadline_and_a_quick_one_the_usual():
    assert stretched(40.0, 3.0) == 40.0
    assert stretched(40.0, 30.0) == 150.0


@pytest.mark.parametrize("deadline", [1.0, 40.0, 300.0])
def test_a_rehearsal_is_not_given_up_before_its_deadlines_have_passed(deadline):
    plan = RehearsalPlan(deadline_seconds=deadline)
    assert plan.timeout_seconds > plan.rounds * 2 * deadline + 120.0  # the server itself waits 120 s for nodes
    assert run_timeout(4, 6, deadline) > 24 * deadline


def test_a_rehearsal_that_breaks_a_promise_shows_who_and_why(tmp_path, monkeypatch, capsys):
    report = {
        "plan": {"deadline_seconds": 50.0},
        "rounds": [],
        "verdicts": {"every round ended": True, "who delivered is paid": False},
        "ended_alone": {"node-2": -9},
        "logs": {"node-2": "node-2.log ends:\n  killed by the kernel"},
    }
    seen = {}

    class Stub:
        @staticmethod
        def RehearsalPlan(**fields):
            return seen.update(fields)

        @staticmethod
        def rehearse(folder, plan, *, stretch):
            seen["stretch"] = stretch
            return report

    monkeypatch.setattr(flower_commands, "rehearsal", Stub)
    for given, stretch, seconds in ((None, True, 40.0), (7.0, False, 7.0)):
        with pytest.raises(flower_commands.typer.Exit):
            flower_commands.rehearse(tmp_path / "out", given, False, False, False, False)
        assert (seen["stretch"], seen["deadline_seconds"]) == (stretch, seconds)
    shown = capsys.readouterr()
    assert "BROKEN who delivered is paid" in shown.out
    assert "node-2 ended by itself with code -9" in shown.err
    assert "killed by the kernel" in shown.err
    assert "try --deadline 200" in shown.err
