"""Nothing that only POSIX systems have is used without a fallback, except where Flower's processes are started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from privmarket._files import force_folder
from privmarket.cli import app
from privmarket.errors import ConfigurationError
from privmarket.simulation._pool import process_context

SOURCE = Path(__file__).parents[2] / "src/privmarket"
_POSIX = re.compile(
    r"^\s*(?:import|from) (?:fcntl|resource|pwd|grp|termios|pty|syslog|posix)\b"
    r"|os\.(?:fork|killpg|getpgid|setsid|getuid|geteuid|sched_\w+|uname|mkfifo)\b"
    r"|signal\.(?:SIGKILL|SIGHUP|SIGUSR\d|SIGALRM|alarm|setitimer)\b|preexec_fn|\"/proc|\"/dev/",
    flags=re.M,
)
# file → why it may: the first three have a branch for Windows, the fourth is refused there with one line.
ALLOWED = {
    "privacy/_wallet_store.py",
    "secagg/_journal.py",
    "flower/_checkpoint.py",
    "flower/_engine.py",
    "broker/_noise_tables.py",
}


def test_posix_only_calls_stand_only_where_they_may():
    used = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if _POSIX.search(path.read_text())}
    assert used == ALLOWED


def test_such_a_call_is_noticed():
    assert _POSIX.search("import fcntl\n")
    assert _POSIX.search("os.fork()")
    assert not _POSIX.search("import resources\nsignal.SIGTERM")


def test_a_wallet_works_without_fcntl(tmp_path):
    """As on Windows: the other branch of the lock, with a stand-in for the module that is only there."""
    code = (
        "import sys, types\n"
        "import privmarket, privmarket.privacy._calibration as calibration\n"
        "locked = []\n"
        "sys.modules['msvcrt'] = types.SimpleNamespace(LK_LOCK=1, locking=lambda *a: locked.append(a))\n"
        "sys.modules['fcntl'] = None\n"
        "sys.platform = 'win32'\n"
        "from privmarket.privacy._wallet_store import WalletFile\n"
        "wallet = WalletFile('wallet.jsonl', 8.0)\n"
        "with wallet.open() as book:\n"
        "    book.reserve('run/0', 1.0, calibration.ReleaseFamily().event(1.0))\n"
        "assert locked and len(wallet.statement()) == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr


def test_the_journal_of_sums_has_a_lock_where_there_is_no_fcntl(tmp_path):
    code = (
        "import sys, types\n"
        "import privmarket.secagg\n"
        "for name in [name for name in sys.modules if name.startswith('privmarket.secagg')]:\n"
        "    del sys.modules[name]\n"
        "locked = []\n"
        "sys.modules['msvcrt'] = types.SimpleNamespace(LK_LOCK=1, locking=lambda *a: locked.append(a))\n"
        "sys.modules['fcntl'] = None\n"
        "sys.platform = 'win32'\n"
        "from privmarket.secagg import FileJournal\n"
        "with FileJournal('sums').open() as book:\n"
        "    assert book.latest('run') is None\n"
        "assert locked\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr


def test_a_deployment_on_windows_is_one_line(monkeypatch):
    monkeypatch.setattr("privmarket.cli._flower._WINDOWS", True)
    for words in (["run", ".", "--engine", "deployment"], ["rehearse"], ["rehearse", "--sums"]):
        done = CliRunner().invoke(app, ["flower", *words])
        assert isinstance(done.exception, ConfigurationError)
        assert "Linux or macOS" in str(done.exception)


@pytest.mark.parametrize(("platform", "method"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn")])
def test_workers_are_started_as_the_system_can(platform, method, monkeypatch):
    monkeypatch.setattr("privmarket.simulation._pool.sys", SimpleNamespace(platform=platform))
    assert process_context().get_start_method() == method


def test_where_folders_cannot_be_opened_a_file_is_written_all_the_same(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "folders cannot be opened here")

    windows = SimpleNamespace(name="nt", open=refused, O_RDONLY=0)
    monkeypatch.setattr("privmarket._files.os", windows)
    force_folder(tmp_path)
    windows.name = "posix"
    with pytest.raises(PermissionError):  # the stand-in is the one that is called
        force_folder(tmp_path)
