"""A grid without an engine: every message is answered by the client app in this process, at once.

For tests, for small studies, and to measure the overhead of the engines. Contexts, errors and time limits are as on
the real ones: each node has its own state, an exception becomes an error reply, a late answer is lost.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from privmarket.errors import ConfigurationError
from privmarket.flower import _failures as failures, _wire as wire
from privmarket.flower._result import SUMMARY_LOG, MarketResult
from privmarket.flower._seller import MarketClientApp
from privmarket.flower._server import MarketServerApp
from privmarket.secagg import MemoryJournal, SumJournal

_log = logging.getLogger(SUMMARY_LOG)
SERVER_NODE = 1
_FIRST_NODE = 1000
_TOGETHER = 25  # orders that a client app gets at once if it can train several clients


class InProcessGrid(Grid):
    """Nodes that live in this process; node i holds partition i of `nodes`.

    Args:
        client_app: answers every message.
        nodes: how many nodes there are.
        run_config: what the apps read as their run configuration.
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, run_config: Mapping[str, UserConfigValue] | None = None
    ) -> None:
        self.client_app = client_app
        self._run = Run.create_empty(secrets.randbits(62))
        # Flower marks messages with the identity of the process's task, which an engine would have set.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self._run.run_id, SERVER_NODE, 1
        self.contexts = {
            _FIRST_NODE + i: Context(
                run_id=self._run.run_id,
                node_id=_FIRST_NODE + i,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i in range(nodes)
        }
        self.failures: dict[str, str] = {}  # client → its first error, with the line of the app's own file
        self._replies: dict[str, Message] = {}
        self._journals: dict[int, MemoryJournal] = {}
        if isinstance(client_app, MarketClientApp):
            client_app.seller.journals = self._journal

    def _journal(self, context: Context) -> SumJournal:
        """The journal of secure sums of a node without a wallet file: in memory, like its context."""
        return self._journals.setdefault(context.node_id, MemoryJournal())

    def set_run(self, run: Run) -> None:
        """Replaces the run that this grid made by that of an engine."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid plays; see Flower's `Grid`."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Makes a message in the way that Flower deprecates, for strategies that still call it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages, each of which is answered at once; returns their numbers."""
        names = []
        for message in messages:
            name = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = name
            self._replies[name] = self.answer(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to messages by number; each is handed out once."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The answers to messages; an answer that takes longer than `timeout` is lost.

        Orders of a round go to the client app together if it can train several clients at once.
        """
        waiting = list(messages)
        replies = []
        app = self.client_app
        many = isinstance(app, MarketClientApp) and app.seller.train_many is not None
        size = _TOGETHER if many and all(wire.SALE in m.content for m in waiting) else 1
        for start in range(0, len(waiting), size):
            some = waiting[start : start + size]
            started = time.monotonic()
            for message in some:
                message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            if size > 1 and len(some) > 1 and isinstance(app, MarketClientApp):
                got = app.seller.sell_many([(m, self.contexts[m.metadata.dst_node_id]) for m in some])
            else:
                got = [self.answer(message) for message in some]
            if timeout is None or (time.monotonic() - started) / len(some) <= timeout:
                replies += got
        return replies

    def answer(self, message: Message) -> Message:
        """What a node answers; its state is kept only if it did not fail."""
        context = self.contexts[message.metadata.dst_node_id]
        state = RecordDict(dict(context.state))
        # On a network every node gets its own copy; here some senders share one record, which mods may change.
        records = message.content.items()
        copied = {k: ConfigRecord(dict(r)) if isinstance(r, ConfigRecord) else r for k, r in records}
        message = Message(RecordDict(copied), metadata=message.metadata)  # type: ignore[call-overload]
        try:
            reply = self.client_app(message, context)
        except Exception as error:  # as an engine: reports any error of a client app, and continues
            context.state = state
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        reply.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        return reply


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int,
    run_config: Mapping[str, UserConfigValue] | None = None,
    grid: InProcessGrid | None = None,
) -> MarketResult:
    """Runs a market in this process and returns its result; for apps of `server_app`.

    The first error of each client is logged at the end, with the line of the app's own file. It is not part of the
    result, since a server must not get it.
    """
    grid = grid or InProcessGrid(client_app, nodes, run_config)
    play_in_process(server_app, client_app, nodes, run_config, grid)
    if not isinstance(server_app, MarketServerApp) or server_app.result is None:
        raise ConfigurationError("this ServerApp runs no market", "make it with pm.flower.server_app")
    for line in failures.summary_lines(grid.failures):
        _log.error("%s", line)
    return server_app.result


def play_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int,
    run_config: Mapping[str, UserConfigValue] | None = None,
    grid: InProcessGrid | None = None,
) -> Context:
    """Runs any server app in this process and returns its context as it left it."""
    grid = grid or InProcessGrid(client_app, nodes, run_config)
    context = Context(
        run_id=grid.run.run_id,
        node_id=SERVER_NODE,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )
    with failures.collected() as found:
        try:
            server_app(grid, context)
        finally:
            grid.failures |= found
    return context
