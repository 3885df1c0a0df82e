import json

from typer.testing import CliRunner

from privmarket.cli import app


def test_bench_privacy_reports_ratios():
    result = CliRunner().invoke(app, ["bench", "privacy", "--normals", "100000", "--turns", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 3
    for row in rows:
        assert row["ratio"] == row["seconds"] / row["reference_seconds"]
    accounting, calibration = rows[1]["ratio"], rows[2]["ratio"]
    assert accounting < 0.01  # three orders of magnitude of margin on a quiet machine
    assert calibration < 0.01
