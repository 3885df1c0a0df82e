import json

from typer.testing import CliRunner

from privmarket.cli import app


def test_bench_privacy_reports_ratios():
    result = CliRunner().invoke(app, ["bench", "privacy", "--normals", "100000", "--turns", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 4
    for row in rows:
        assert row["ratio"] == row["seconds"] / row["reference_seconds"]
    exact_noise, accounting, calibration = (row["ratio"] for row in rows[1:])
    assert exact_noise < 0.5  # against OpenDP; building the table counts here and not in a longer run
    assert accounting < 0.01  # three orders of magnitude of margin on a quiet machine
    assert calibration < 0.01
