"""Ports for servers that start later: each is given once, to whichever process asks."""

import os
import socket
import subprocess
import sys

import pytest

from privmarket_fixtures import processes
from privmarket_fixtures.processes import LoadError, free_port

ASK = "from privmarket_fixtures import processes as b; b._PORTS = range({0}, {0} + 2); print(b.free_port())"


def nobody_listens(*ports):
    try:
        for port in ports:
            socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no names that end with a process")
def test_a_port_is_given_once_though_nobody_listens_on_it(monkeypatch):
    start = next(port for port in range(12_000 + os.getpid() % 6_000, 20_000, 2) if nobody_listens(port, port + 1))
    monkeypatch.setattr(processes, "_PORTS", range(start, start + 2))
    first = free_port()
    done = subprocess.run([sys.executable, "-c", ASK.format(start)], capture_output=True, text=True, check=True)
    assert {first, int(done.stdout)} == {start, start + 1}
    assert free_port() == int(done.stdout)  # the other process has ended
    with pytest.raises(LoadError):
        free_port()


def test_a_port_on_which_somebody_listens_is_not_given(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "_PORTS", range(port, port + 1))
        with pytest.raises(LoadError):
            free_port()
