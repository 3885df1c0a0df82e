"""The yardstick of the broker's speed: FastAPI and SQLite, one route that inserts one row and commits it durably.

No token, no key, no checks, no log: what no service that stores a bid can do without. It runs as a process of its
own, `python -m privmarket_studies.broker_reference FILE PORT [loop|threads]`, under the same uvicorn settings
as the broker and with the same durability (`journal_mode=WAL`, `synchronous=FULL`).
"""

from __future__ import annotations

import sqlite3
import sys
import threading

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Row(BaseModel):
    """The fields of a bid that the bare insert stores."""

    valuation: float
    epsilon: float
    data_size: float = 1.0
    accuracy: float | None = None


def reference_app(path: str, style: str) -> FastAPI:
    """`loop` inserts on the event loop, `threads` in FastAPI's thread pool; which is faster depends on the disk."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, valuation REAL, epsilon REAL, data_size REAL, "
        "accuracy REAL)"
    )
    lock = threading.Lock()
    app = FastAPI()

    def insert(row: Row) -> dict[str, int | None]:
        values = (row.valuation, row.epsilon, row.data_size, row.accuracy)
        with lock:  # outside a transaction each statement is one, durable when it returns
            done = connection.execute(
                "INSERT INTO rows (valuation, epsilon, data_size, accuracy) VALUES (?, ?, ?, ?)", values
            )
            return {"id": done.lastrowid}

    if style == "threads":

        @app.post("/rows", status_code=201)
        def insert_in_a_thread(row: Row) -> dict[str, int | None]:
            return insert(row)

    else:

        @app.post("/rows", status_code=201)
        async def insert_on_the_loop(row: Row) -> dict[str, int | None]:
            return insert(row)

    @app.get("/health")
    async def healthy() -> dict[str, str]:
        return {"status": "ok"}

    return app


if __name__ == "__main__":
    file, port, kind = sys.argv[1:4]
    uvicorn.run(
        reference_app(file, kind), host="127.0.0.1", port=int(port), log_level="warning", server_header=False
    )
