"""`federate`, `data get` and `demo` as a person or a program runs them."""

import json
import re
import signal
import sys
import time

import pytest

from privmarket import cli
from privmarket.simulation import _federation as simulation
from tests import forked
from tests.json_fields import check_fields

SMALL = ["federate", "--clients", "12", "--budget", "6", "--seed", "5"]


def privmarket(*words, env=None):
    return forked.privmarket(*words, env=env).end()


def test_json_on_stdout_and_the_rest_on_stderr(tmp_path):
    page = tmp_path / "run.html"
    done = privmarket(*SMALL, "--rounds", "4", "--wallet", "6", "--json", "--report", str(page))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    check_fields("federate", summary)
    assert summary["config"]["wallet"] == 6.0
    assert len(summary["rounds"]) == 4
    assert sum(r["spent_micro"] for r in summary["rounds"]) == pytest.approx(summary["spent"] * 1e6)
    assert len(summary["clients"]) == 12
    assert max(row["epsilon_spent"] for row in summary["clients"]) <= 6.0 + 1e-6
    assert 10_000 < page.stat().st_size < 1_000_000


def save_once_and_wait(words):
    """The command, that waits to be killed once its first checkpoint is on disk."""
    save = simulation.save_checkpoint

    def and_wait(*given):
        save(*given)
        time.sleep(300)

    simulation.save_checkpoint = and_wait
    sys.argv = ["privmarket", *words]
    cli.main()


def test_a_run_killed_by_the_system_resumes_to_the_identical_result(tmp_path):
    """SIGKILL in the middle of a run, then the same command again."""
    words = [*SMALL, "--rounds", "120", "--evaluate-every", "60", "--json"]
    file = tmp_path / "run.ckpt"
    killed = forked.Forked(save_once_and_wait, [*words, "--checkpoint", str(file)])
    deadline = time.monotonic() + 120
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.process.kill()
    assert killed.end().returncode == -signal.SIGKILL
    assert file.exists()
    resumed = json.loads(privmarket(*words, "--checkpoint", str(file)).stdout)
    whole = json.loads(privmarket(*words).stdout)
    for run in (resumed, whole):
        run.pop("seconds")
    assert resumed == whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["federate", "--dataset", "imagenet"], "unknown task 'imagenet'"),
        (["federate", "--literal", "--no-dp"], "exclude each other"),
        (["federate", "--mechanism", "lottery"], "unknown mechanism 'lottery'"),
        (["federate", "--set", "clipnorm=3"], "unknown training setting 'clipnorm'"),
        (["data", "get", "imagenet"], "unknown data set 'imagenet'"),
    ],
)
def test_mistakes_end_in_one_line(words, message):
    done = privmarket(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_without_a_guarantee_say_so_in_the_closing_table():
    for mode in ("--no-noise", "--no-dp", "--literal"):
        done = privmarket(*SMALL, "--rounds", "2", mode)
        assert done.returncode == 0, done.stderr
        assert "no guarantee" in done.stdout


def test_a_run_names_its_seed_and_does_not_ask_to_leave_it_out():
    """A simulation has a seed whether or not one is given, so it cannot be left out."""
    for words, seed in (([], 0), (["--seed", "5"], 5)):
        done = privmarket("federate", "--clients", "4", "--rounds", "1", *words)
        assert f"follows from seed {seed}, so that the run can be made again" in done.stderr
        assert "eave the seed out" not in done.stderr


def test_own_records_come_first():
    done = privmarket(*SMALL, "--rounds", "2", "--public", "40")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("Your own records alone")]
    assert "so there was nothing to buy here" in said  # two rounds do not do better than 40 digits
    refused = privmarket(*SMALL, "--public", "144")
    assert refused.returncode == 2
    assert "only 143 are kept back from the clients" in refused.stderr


def test_a_missing_data_set_says_how_to_get_it(tmp_path):
    done = privmarket("federate", "--dataset", "mnist", env={"PRIVMARKET_DATA": str(tmp_path)})
    assert done.returncode == 2
    assert "privmarket data get mnist" in done.stderr


def test_demo(tmp_path):
    done = privmarket("demo", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "paper-literal" in done.stdout
    assert "wallet left" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "%" in line and line.startswith("│")]
    assert "your own 40 records alone" in rows[0]
    assert "private, aggregate trust" in rows[1]
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    said = re.search(r'<p class="verdict">(.*?)</p>', page).group(1).replace("\xa0", " ")
    assert said.startswith("Your own records alone: a model of 40 records")
    assert "lifetime cap of ε = 1, if 66.7 % of each round&#39;s sellers are honest" in said
    assert "client&#39;s digit chose anything" in page.replace("\n", " ")
