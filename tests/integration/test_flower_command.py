"""The examples and commands of the Flower part, as a stranger would type them."""

import json
import sys
from pathlib import Path

import pytest

from privmarket.errors import ConfigurationError
from privmarket.flower import _app_folder as app_folder
from privmarket.flower._app_folder import run_app
from tests.forked import privmarket
from tests.json_fields import check_fields

ROOT = Path(__file__).resolve().parents[2]
NUMBERED = ("flower-existing-app", "flower-without-torch")


@pytest.mark.parametrize(
    ("example", "rounds", "wallets"),
    [
        ("flower-quickstart", 10, {"flower-wallets": 10}),
        ("flower-own-model", 5, {}),
        ("flower-existing-app", 8, {"flower-wallets": 10}),
        ("flower-without-torch", 10, {"flower-wallets": 10}),
    ],
)
def test_an_example_learns_and_pays(example, rounds, wallets, tmp_path):
    fewer = ("--set", f"num-server-rounds={rounds}") if example in NUMBERED else ()
    folder = str(ROOT / "src/privmarket/examples" / example)
    done = privmarket("flower", "run", folder, "--json", *fewer, cwd=tmp_path).end()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    check_fields("flower run", result)
    assert len(result["rounds"]) == rounds
    # By chance 0.1. The noise is the system's, so every run differs: 0.80 to 0.87 were seen.
    assert result["accuracy"] > 0.5
    assert result["spent"] > 0
    assert all(not row["dropped"] for row in result["rounds"])
    for folder, number in wallets.items():
        assert len(list((tmp_path / "out" / folder).glob("*.jsonl"))) == number


@pytest.mark.parametrize(
    ("folder", "engine", "settings", "reason"),
    [
        ("tests", "in-process", {}, "no pyproject.toml"),
        ("src/privmarket/examples/flower-quickstart", "carrier-pigeon", {}, "unknown engine"),
        ("src/privmarket/examples/flower-quickstart", "deployment", {"bugdet": 3}, "did you mean 'budget'"),
    ],
)
def test_what_cannot_be_run_is_said(folder, engine, settings, reason, tmp_path):
    with pytest.raises(ConfigurationError, match=reason):
        run_app(ROOT / folder, engine, 3, settings, tmp_path, 10.0)
    with pytest.raises(ConfigurationError, match="0 nodes"):
        run_app(ROOT / folder, "in-process", 0, {}, tmp_path, 10.0)


class Recorded(Exception):
    """Stands for an engine: keeps how it was made, and starts nothing."""


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
@pytest.mark.parametrize("given", ["", "elsewhere"])
def test_a_client_has_one_wallet_whichever_engine_runs_it(engine, given, tmp_path, monkeypatch):
    """The in-process engine's place is tested with the examples above; the others start in another folder."""

    def made(folder, nodes, *, simulation, environment):
        assert simulation == (engine == "simulation")
        raise Recorded(environment["PRIVMARKET_WALLETS"])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app_folder, "Engine", made)
    monkeypatch.setenv("PRIVMARKET_WALLETS", given)
    with pytest.raises(Recorded) as seen:
        run_app(ROOT / "src/privmarket/examples/flower-quickstart", engine, 3, {}, tmp_path / "out/flower", 10.0)
    assert Path(str(seen.value)) == tmp_path / (given or "out/flower-wallets")


@pytest.mark.parametrize("engine", ["in-process", "simulation", "deployment"])
def test_a_guarded_app_is_refused_before_its_first_message(engine, tmp_path, monkeypatch):
    """It was played to its end and charged, and then told that it runs no market."""
    site = tmp_path / "site"
    site.mkdir()
    example = ROOT / "src/privmarket/examples/flower-guard"
    (site / "site.toml").write_text((example / "site.toml").read_text(encoding="utf-8"))
    monkeypatch.setenv("PRIVMARKET_POLICY", str(site / "site.toml"))
    with pytest.raises(ConfigurationError, match="a guarded app runs no market") as caught:
        run_app(example, engine, 2, {}, tmp_path / "out", 10.0)
    assert "flwr run" in caught.value.hint
    assert [path.name for path in site.iterdir()] == ["site.toml"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "guarded_app"]:
        del sys.modules[name]
