"""A large auction in a process of its own, so that pages and bids keep their speed while it runs.

Python's threads share one interpreter: an auction of a million bids beside the server would slow every answer. Here
the server starts `python -m privmarket.broker._auction_process`, which reads the database for itself, computes the
auction at a lower priority, and writes it to its standard output. Its memory is gone when it ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from privmarket.broker._clearing import Prepared, prepare
from privmarket.broker._database import Database
from privmarket.mechanisms import mechanism

WORTH_A_PROCESS = 20_000  # bids; starting one takes about a second
_PATIENCE_SECONDS = 3600.0


def prepare_in_a_process(database: Database, round_id: str) -> Prepared | None:
    """The auction of a round as a process of its own computes it; None where that failed."""
    url = database.engine.url.render_as_string(hide_password=False)
    asked = pickle.dumps((url, round_id))  # by its standard input: arguments of a process can be seen by others
    done = subprocess.run(
        [sys.executable, "-m", "privmarket.broker._auction_process"],
        input=asked,
        stdout=subprocess.PIPE,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        return None
    found: Prepared = pickle.loads(done.stdout)
    return found


def main() -> None:
    """Reads what to compute, computes it, writes the result."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)
    url, round_id = pickle.load(sys.stdin.buffer)
    database = Database(url, read_only=True)
    with database.read() as connection:
        found = prepare(connection, round_id, mechanism)
    database.close()
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
