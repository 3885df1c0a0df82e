"""The speed bench, on a tiny round: every contender runs, and the ratios follow from the seconds."""

import json
from pathlib import Path

import pytest

import privmarket
from privmarket_studies.federated_speed import (
    ROUNDS,
    STEPS,
    SpeedReport,
    accounting_seconds,
    full_batch,
    measure,
)
from privmarket_studies.federated_speed_page import render


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_contender_runs():
    def is_quick():
        report = measure(3, 64, turns=1, growth=(2,), steps=())
        assert set(report.seconds) == {"private", "non-private", "opacus ghost clipping", "opacus default"}
        return report.to_dict()["ratios"]["opacus default"] > 1 and report.draws_per_second > 1e6

    assert any(is_quick() for _ in range(3))  # again where others had the processor


def test_two_trees_take_turns():
    """Here both are this one, and no slower than itself by much."""

    def is_alike():
        report = measure(
            2, 64, turns=2, opacus=False, growth=(), steps=(), before=Path(privmarket.__file__).parents[2]
        )
        assert [len(each) for each in report.turns.values()] == [2] * 6
        return 0.1 < report.ratios["several steps over before"] < 10

    assert any(is_alike() for _ in range(3))


def test_ratios_are_of_medians():
    turns = {"private": [2.0, 1.0, 9.0], "non-private": [1.0], "opacus default": [8.0]}
    turns |= {"before, one step": [1.0], "now, one step": [1.25]}
    ratios = SpeedReport(1, 1, turns, {}, 0.1, 1e7).to_dict()["ratios"]
    assert ratios == {"opacus default": 4.0, "private over non-private": 2.0, "one step over before": 1.25}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", STEPS)
def test_full_batch_steps_are_timed_for_every_network(name):
    taken = full_batch(name, 1, 32, turns=1)
    assert {"private", "opacus ghost clipping"} < set(taken)
    assert all(len(each) == 1 and each[0] > 0 for each in taken.values())


def test_of_plain_passes_the_fastest_counts():
    steps = {
        "mlp": {"private": [3.0, 2.0], "backward, 1": [1.0], "backward, 2": [1.5], "opacus ghost clipping": [8.0]}
    }
    report = SpeedReport(1, 1, {"private": [1.0], "non-private": [1.0]}, {}, 0.1, 1e7, steps)
    assert report.ratios["mlp step over backward"] == 2.0
    assert report.ratios["opacus ghost clipping over mlp step"] == 4.0


def speed_file(private):
    turns = {"private": [private], "non-private": [1.0], "opacus ghost clipping": [9.0], "opacus default": [20.0]}
    turns |= {f"{tree}, {kind}": [1.0] for tree in ("before", "now") for kind in ROUNDS}
    return SpeedReport(100, 600, turns, {25: 0.5}, 0.02, 3e7).to_dict()


def test_the_page_states_the_spread_of_its_runs(tmp_path):
    for number, private in enumerate((1.5, 2.0, 1.8), 1):
        (tmp_path / f"federate-{number}.json").write_text(json.dumps(speed_file(private)), encoding="utf-8")
    memory = {"peak_bytes": {"125": 1e9}, "record_bytes": {"125": 5e8}}
    (tmp_path / "memory.json").write_text(json.dumps(memory), encoding="utf-8")
    page = render(tmp_path)
    assert "| the same round: Opacus' ghost clipping over ours | 5.00 | 4.50–6.00 | at least 3 |" in page
    assert "MLP step" not in page  # there are no files of steps
    ghost = {f"opacus ghost clipping over {name} step": 2.0 for name in STEPS}
    steps = {"clients": 5, "records": 600, "steps": {"mlp": {"private": [1.0, 1.0]}}}
    steps |= {"ratios": ghost | {f"{name} step over backward": 1.5 for name in STEPS}}
    (tmp_path / "steps-1.json").write_text(json.dumps(steps), encoding="utf-8")
    assert "| MLP step: ghost clipping over plain | 3.00 | 3.00–3.00 | |" in render(tmp_path)
    assert "3 separate runs" in page


def test_the_page_that_ships_is_rendered_from_its_files():
    folder = Path(__file__).parents[2] / "docs" / "results" / "speed"
    assert (folder / "README.md").read_text(encoding="utf-8") == render(folder)


def test_accounting_is_a_matter_of_adding_rows():
    assert any(accounting_seconds(100, 20) < 1.0 for _ in range(3))
