import json

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.errors import PrivacyError
from tests.json_fields import check_fields

runner = CliRunner()


def test_table_names_both_accountants():
    result = runner.invoke(app, ["account", "--sale", "1x20", "--cap", "3"])
    assert result.exit_code == 0
    assert "by PLD" in result.stdout
    assert "by RDP" in result.stdout
    assert "of 20 sales through" in result.stdout


def test_json_is_only_data_and_the_plot_is_written(tmp_path):
    plot = tmp_path / "epsilon.png"
    result = runner.invoke(app, ["account", "--sale", "0.5,0.05,1x10", "--json", "--plot", str(plot)])
    data = json.loads(result.stdout)
    check_fields("account", data)
    assert data["epsilon"] == min(data["epsilon_rdp"], data["epsilon_pld"])
    assert data["sales"][0]["count"] == 10
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments", [[], ["--sale", "no"], ["--sale", "1", "--delta", "2"], ["--sale", "1", "--cap", "0"]]
)
def test_bad_input_ends_in_an_error_with_a_remedy(arguments):
    result = runner.invoke(app, ["account", *arguments])
    assert isinstance(result.exception, PrivacyError)
    assert result.exception.hint


def test_a_plot_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "no").touch()  # a file where a folder should be
    result = runner.invoke(app, ["account", "--sale", "1", "--plot", str(tmp_path / "no" / "such.png")])
    assert "such.png" in str(result.exception)
