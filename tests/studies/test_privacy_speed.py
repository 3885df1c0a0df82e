import json

from typer.testing import CliRunner

from privmarket.cli import app

# Exact noise against OpenDP, building the table included; accounting has three orders of magnitude of margin.
BOUNDS = {"exact noise": 0.5, "accounting": 0.01, "calibration": 0.01}


def bench():
    """Of one run: which bounds were kept."""
    result = CliRunner().invoke(app, ["bench", "privacy", "--normals", "100000", "--turns", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 4
    for row in rows:
        assert row["ratio"] == row["seconds"] / row["reference_seconds"]
    return {name for (name, most), row in zip(BOUNDS.items(), rows[1:], strict=True) if row["ratio"] < most}


def test_bench_privacy_reports_ratios():
    kept = set()
    for _ in range(3):  # again where others had the processor
        kept |= bench()
        if kept == set(BOUNDS):
            break
    assert kept == set(BOUNDS)
