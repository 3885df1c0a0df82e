"""Rehearses secure sums: servers that ask for more than the sum, sellers that vanish, on any engine.

The server app runs the honest protocol through a grid that changes its messages, one attack a round, as a server
that cheats would send them. What must come out: sellers refuse by themselves, the attacked round opens nothing and
pays nobody, and an honest round before and after gives what the plain simulation gives.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.serverapp import Grid

from privmarket.federated.config import FederationConfig, Training
from privmarket.federated.shares import honest_sellers
from privmarket.files import write_atomically
from privmarket.flower.cohort import Cohort, new_signing_key
from privmarket.flower.engine import Engine, write_app
from privmarket.flower.federation import federation_client, federation_server
from privmarket.flower.in_process import InProcessGrid, run_in_process
from privmarket.flower.node_seller import Job, MarketClientApp, ShareTraining
from privmarket.flower.rehearsal import kill_on_marker, marker, run_timeout, stretched
from privmarket.flower.result import RoundJson
from privmarket.flower.server import MarketServerApp
from privmarket.flower.sum_memory import AGREE, COHORT, LIST, SURVIVORS
from privmarket.flower.wire import Arrays
from privmarket.lazy import late
from privmarket.privacy.release import ReleaseGrid
from privmarket.privacy.wallet_file import WalletFile
from privmarket.rounds import micro_units

if TYPE_CHECKING:
    from privmarket.federated import simulation
else:
    simulation = late("privmarket.federated.simulation")  # torch: most messages to a client need none

Tamper = Callable[[Message, list[Message]], None]
"""Changes one message of a step in place; all messages of the step are there to look at."""

_NOTES = "answers.json"
_WAITS_PER_ROUND = 6  # bids, set-up, keys, masked sums, survivors, opening
_SEED = 11


def _at(stage: str, change: Callable[[ConfigRecord, Message, list[Message]], None]) -> Tamper:
    """Makes an attack that changes the messages of one step of the protocol."""

    def tamper(message: Message, together: list[Message]) -> None:
        configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
        if configs is not None and configs.get(Key.STAGE) == stage:
            change(configs, message, together)

    return tamper


def _set(
    key: str, change_value: Callable[[float], float]
) -> Callable[[ConfigRecord, Message, list[Message]], None]:
    def change(configs: ConfigRecord, _: Message, __: list[Message]) -> None:
        configs[key] = change_value(cast(float, configs[key]))

    return change


def _in_second_half(message: Message, together: list[Message]) -> bool:
    nodes = sorted(one.metadata.dst_node_id for one in together)
    return nodes.index(message.metadata.dst_node_id) >= len(nodes) // 2


def _swap_cohort(configs: ConfigRecord, message: Message, together: list[Message]) -> None:
    """Half of the sellers are shown a signing key of the server's own in place of the first seller's."""
    if _in_second_half(message, together):
        extra = message.content.config_records[COHORT]
        first, *others = Cohort.read(cast(bytes, extra[LIST])).members
        extra[LIST] = Cohort.of([replace(first, signing=new_signing_key()[1]), *others]).write()


def _two_sums(configs: ConfigRecord, message: Message, together: list[Message]) -> None:
    """Half of the sellers are asked for the sum without the first seller, the others for the sum with it."""
    if _in_second_half(message, together):
        bits = bytearray(cast(bytes, configs[SURVIVORS]))
        first = next(at for at in range(8 * len(bits)) if bits[at // 8] >> at % 8 & 1)
        bits[first // 8] &= ~(1 << first % 8)
        configs[SURVIVORS] = bytes(bits)


def _pretended_drop_outs(configs: ConfigRecord, message: Message, together: list[Message]) -> None:
    """All sellers but as many as must be honest are said to have dropped out: those left could collude."""
    bits = np.unpackbits(np.frombuffer(cast(bytes, configs[SURVIVORS]), dtype=np.uint8), bitorder="little")
    there = np.flatnonzero(bits)
    bits[there[honest_sellers(there.size, FederationConfig.honest_share) :]] = 0
    configs[SURVIVORS] = np.packbits(bits, bitorder="little").tobytes()


def _both_ways(configs: ConfigRecord, message: Message, together: list[Message]) -> None:
    """The first survivor is said to have dropped out, too."""
    configs[Key.DEAD_NODE_ID_LIST] = configs[Key.ACTIVE_NODE_ID_LIST][:1]  # type: ignore[index]


def _order(**changes: Callable[[float], float]) -> Tamper:
    """Makes an attack that changes these fields of every order."""

    def tamper(message: Message, _: list[Message]) -> None:
        order = message.content.config_records.get("fitins.config")
        if order is not None:
            for key, change in changes.items():
                order[key] = change(cast(float, order[key]))

    return tamper


ATTACKS: dict[str, tuple[Tamper, set[str]]] = {
    "a lower threshold": (_at(Stage.SETUP, _set(Key.THRESHOLD, lambda _: 2)), {"honest-share"}),
    "keys in fewer pieces": (_at(Stage.SETUP, _set(Key.SHARE_NUMBER, lambda n: n - 1)), {"honest-share"}),
    "a cohort with a seller swapped": (_at(Stage.SHARE_KEYS, _swap_cohort), {"cohort"}),
    "integers cut off": (_at(Stage.SETUP, _set(Key.CLIPPING_RANGE, lambda r: r / 1024)), {"noise"}),
    "more weight than the sold ε allows": (_order(weight=lambda w: 1.001 * w), {"noise"}),
    "noise of sellers that are not there": (_order(sellers=lambda n: n + 1), {"honest-share"}),
    "drop-outs pretended": (_at(AGREE, _pretended_drop_outs), {"honest-share", "cohort"}),
    "two sums, one seller in and out": (_at(AGREE, _two_sums), {"cohort"}),
    "keys of one seller both ways": (_at(Stage.UNMASK, _both_ways), {"cohort"}),
}
"""What a server may try, and the words that sellers answer with. A replayed round is asked for by `HostileGrid`."""
REPLAY = "a round replayed"
KILLED = "a seller killed while it trains"
HONEST = "none"
IN_PROCESS_ATTACKS = (HONEST, *ATTACKS, REPLAY, HONEST)


@dataclass(eq=False)
class HostileGrid:
    """A grid that changes a server's messages, round by round, and keeps what sellers answered.

    Attributes:
        attacks: what is tried in each round.
        answers: round → word of a refusal → how many sellers said it.
    """

    grid: Grid
    attacks: tuple[str, ...]
    answers: dict[int, dict[str, int]] = field(default_factory=dict)
    _first: list[Message] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Changes the messages as the attack of this round says, sends them, and returns the replies."""
        outgoing = list(messages)
        in_sum = [m for m in outgoing if RECORD_KEY_CONFIGS in m.content]
        if not in_sum:
            return list(self.grid.send_and_receive(outgoing, timeout=timeout))
        number = int(in_sum[0].metadata.group_id) - 1
        attack = self.attacks[number] if number < len(self.attacks) else HONEST
        outgoing = [_copied(message) for message in outgoing]
        for message in outgoing if attack in ATTACKS else ():
            ATTACKS[attack][0](message, outgoing)
        stage = in_sum[0].content.config_records[RECORD_KEY_CONFIGS].get(Key.STAGE)
        if stage == Stage.SETUP and not self._first:
            self._first = [_copied(message) for message in outgoing]
        replies = list(self.grid.send_and_receive(outgoing, timeout=timeout))
        self._note(number, replies)
        if attack == REPLAY and stage == Stage.UNMASK:
            # The sum is opened; now the same sellers are asked for the first step of one more, for the same offers.
            self._note(number, self.grid.send_and_receive([_copied(m) for m in self._first], timeout=timeout))
        return replies

    def _note(self, number: int, replies: Iterable[Message]) -> None:
        words = self.answers.setdefault(number, {})
        for reply in replies:
            if reply.has_error():
                word = str(reply.error.reason)
                words[word] = words.get(word, 0) + 1


def _copied(message: Message) -> Message:
    """A message of its own: the protocol sends one record to everybody, and an attack may not."""
    content = {k: ConfigRecord(dict(r)) if isinstance(r, ConfigRecord) else r for k, r in message.content.items()}
    meta = message.metadata
    return Message(RecordDict(content), meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)


@dataclass(frozen=True)
class SumPlan:
    """A rehearsal of secure sums: what is tried in each round, on so many clients that train for real."""

    clients: int = 7
    attacks: tuple[str, ...] = (HONEST, "a lower threshold", "two sums, one seller in and out", KILLED)
    deadline_seconds: float = 60.0

    @property
    def config(self) -> FederationConfig:
        """The same market for the plain simulation; everybody sells."""
        return FederationConfig(
            clients=self.clients,
            rounds=len(self.attacks),
            budget=2.0 * self.clients,
            evaluate_every=1,
            trust="aggregate",
            mechanism="ration",
            mechanism_settings={"unit_price": 1.0},
            training=Training(model="logistic"),
            seed=_SEED,
        )


def server(plan: str, folder: str) -> MarketServerApp:
    """The server app of a rehearsal: the honest one, behind a hostile grid."""
    chosen = read_sum_plan(plan)
    honest = federation_server(
        chosen.config, bid_seconds=chosen.deadline_seconds, deadline_seconds=chosen.deadline_seconds, receipts=False
    )
    app = MarketServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        hostile = HostileGrid(grid, chosen.attacks)
        try:
            honest(hostile, context)  # type: ignore[arg-type]
        finally:
            write_atomically(Path(folder) / _NOTES, json.dumps(hostile.answers))
        app.result = honest.result

    return app


def client(plan: str, folder: str) -> MarketClientApp:
    """The client app of a rehearsal: honest; the last client says when it may be killed."""
    chosen = read_sum_plan(plan)
    app = federation_client(chosen.config, Path(folder) / "wallets")
    assert app.seller.share is not None
    app.seller.share = _Mortal(app.seller.share, chosen, Path(folder))
    return app


@dataclass(frozen=True)
class _Mortal:
    """Training in which the last client waits to be killed, in the round of the plan."""

    inner: ShareTraining
    plan: SumPlan
    folder: Path

    def records(self, context: Context) -> int:
        return self.inner.records(context)

    def share(self, weights: Arrays, job: Job, grid: ReleaseGrid) -> Mapping[str, np.ndarray]:
        last = job.client == str(self.plan.clients - 1)
        if last and self.plan.attacks[job.sale.number] == KILLED:
            marker(self.folder, job.client).touch()
            time.sleep(3600)
        return self.inner.share(weights, job, grid)


def rehearse_sums(
    folder: Path, plan: SumPlan | None = None, *, deployment: bool = True, stretch: bool = False
) -> dict[str, Any]:
    """Runs a rehearsal in `folder`, on SuperNodes or in this process; what came out, a verdict on every promise.

    Args:
        stretch: whether the deadline grows with the time that the SuperNodes take to start.
    """
    chosen = plan or SumPlan()
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    ended: dict[str, int] = {}
    logs: dict[str, str] = {}
    if deployment:
        with Engine(folder, chosen.clients) as engine:
            engine.await_nodes()
            if stretch:
                chosen = replace(chosen, deadline_seconds=stretched(chosen.deadline_seconds, engine.ready_seconds))
            app = write_app(folder / "app", _app_code(chosen, folder), {})
            if KILLED in chosen.attacks:
                waiting = {chosen.clients - 1}
                threading.Thread(target=kill_on_marker, args=(engine, waiting, folder), daemon=True).start()
            patience = run_timeout(len(chosen.attacks), _WAITS_PER_ROUND, chosen.deadline_seconds)
            result = engine.run(app, timeout_seconds=patience)
            ended = engine.ended_alone()
            logs = {name: engine.tail(name) for name in ended}
    else:
        text = json.dumps(asdict(chosen))
        sellers = client(text, str(folder))
        grid = InProcessGrid(sellers, chosen.clients)
        result = run_in_process(server(text, str(folder)), sellers, chosen.clients, grid=grid).to_json()
    answers = {int(k): v for k, v in json.loads((folder / _NOTES).read_text()).items()}
    found = sum_verdicts(chosen, result["rounds"], answers, folder)
    return {
        "plan": asdict(chosen),
        "engine": f"SuperLink and {chosen.clients} SuperNodes" if deployment else "in-process",
        "versions": {name: version(name) for name in ("privmarket", "flwr", "torch")},
        "seconds": round(time.perf_counter() - started, 1),
        "round_seconds": result.get("round_seconds", []),
        "answers": answers,
        "rounds": result["rounds"],
        "verdicts": found,
        "ended_alone": ended,
        "logs": {} if all(found.values()) else logs,
    }


def sum_verdicts(
    plan: SumPlan, rounds: list[RoundJson], answers: Mapping[int, Mapping[str, int]], folder: Path
) -> dict[str, bool]:
    """Compares what came out with what the plan promises: promise → whether it was kept."""
    budget = micro_units(plan.config.budget)
    tried = {number: attack for number, attack in enumerate(plan.attacks) if attack in ATTACKS}
    plain = simulation.run(plan.config.replace(rounds=1)).records[0]
    first = rounds[0]
    verdicts = {
        "every round ended": len(rounds) == len(plan.attacks),
        "an honest round is the plain simulation's, to the micro-unit and the last digit of accuracy": (
            first["paid_micro"] == plain.paid_micro and first["accuracy"] == plain.accuracy
        ),
        "money adds up": all(sum(r["paid_micro"].values()) + r["refunded_micro"] == budget for r in rounds),
        "who sold in an attacked round is charged at most that, and nobody is paid": all(
            rounds[number]["paid_micro"] == {} and rounds[number]["refunded_micro"] == budget for number in tried
        ),
        "an attacked round shows nothing: the model stands still": all(
            rounds[number]["accuracy"] == rounds[number - 1]["accuracy"] for number in tried if number
        ),
    }
    for number, attack in tried.items():
        words = answers.get(number, {})
        verdicts[f"{attack}: sellers refuse"] = set(words) == ATTACKS[attack][1]
    for number, attack in enumerate(plan.attacks):
        if attack == REPLAY:
            verdicts["a round replayed: every seller refuses"] = answers.get(number) == {"unsold": plan.clients}
        if attack == KILLED:
            gone = str(plan.clients - 1)
            statement = WalletFile(folder / "wallets" / f"client-{gone}.jsonl", float("inf")).statement()
            others = {str(c) for c in range(plan.clients - 1)}
            verdicts["the others' sum is opened and paid without the killed seller"] = (
                set(rounds[number]["paid_micro"]) == others
            )
            verdicts["the killed seller has spent what it did not deliver"] = (
                bool(statement) and statement[-1]["released"] is False
            )
    return verdicts


def read_sum_plan(text: str) -> SumPlan:
    """Reads a plan from the JSON of its `asdict`."""
    fields = json.loads(text)
    return SumPlan(**{**fields, "attacks": tuple(fields["attacks"])})


def _app_code(plan: SumPlan, folder: Path) -> str:
    return f"""from privmarket.flower import sum_rehearsal

PLAN = {json.dumps(asdict(plan))!r}
server = sum_rehearsal.server(PLAN, {str(folder)!r})
client = sum_rehearsal.client(PLAN, {str(folder)!r})
"""
