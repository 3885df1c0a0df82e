"""`privmarket nash-gap`, small, and stopped and started again."""

from __future__ import annotations

import json
import sys

import pytest

import privmarket_studies.nash_gap_study as experiment
from privmarket.cli import main


def test_nash_gap_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "POPULATIONS", {"iid": 1})
    rules = {name: experiment.RULES[name] for name in ("mean-field-menu", "plug-in-menu")}
    monkeypatch.setattr(experiment, "RULES", rules)
    look = {key: style for key, style in experiment._LOOK.items() if key[0] in rules}
    monkeypatch.setattr(experiment, "_LOOK", look)

    def nash_gap(*more):
        small = ["--sizes", "8,24", "--seeds", "3", "--search-seeds", "0", "--grid", "16x12x12"]
        monkeypatch.setattr(
            sys, "argv", ["privmarket", "nash-gap", *small, "--out", str(tmp_path), "--json", *more]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    report = nash_gap("--proxy", "mean-field-menu")
    assert set(report["cells"]) == {f"iid/{rule}/{n}" for rule in rules for n in (8, 24)}
    assert max(max(cell["regret"]) for cell in report["proxy"].values()) < 1e-9
    saved = json.loads((tmp_path / "nash-gap.json").read_text())
    saved["cells"]["iid/mean-field-menu/8"]["hindsight"] = [7.0] * 3
    (tmp_path / "nash-gap.json").write_text(json.dumps(saved))
    monkeypatch.setattr(experiment, "figure", lambda *_, **__: [])  # drawn once above, and it takes longest
    assert nash_gap()["cells"]["iid/mean-field-menu/8"]["hindsight"] == [7.0] * 3
    assert (tmp_path / "nash-gap.svg").exists()
