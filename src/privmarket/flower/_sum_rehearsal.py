"""Rehearses secure sums: servers that ask for more than the sum, sellers that vanish or lie, on any engine.

The server app runs the honest protocol through a grid that changes its messages, one attack a round, as a server
that cheats would send them. What must come out: sellers refuse by themselves, the attacked round opens nothing and
pays nobody, and an honest round before and after gives what the plain simulation gives.
"""

from __future__ import annotations

import hashlib
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
from flwr.serverapp import Grid

from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.broker._signatures import SigningKey
from privmarket.flower import _wire as wire
from privmarket.flower._engine import Engine, write_app
from privmarket.flower._federation import federation_client, federation_server
from privmarket.flower._in_process import InProcessGrid, run_in_process
from privmarket.flower._rehearsal import kill_on_marker, marker, run_timeout, stretched
from privmarket.flower._result import RoundJson
from privmarket.flower._seller import Job, MarketClientApp, ShareTraining, partition_name
from privmarket.flower._server import MarketServerApp
from privmarket.flower._wire import Arrays
from privmarket.privacy._release import ReleaseGrid
from privmarket.privacy._wallet_store import WalletFile
from privmarket.rounds import micro_units
from privmarket.secagg import (
    Confirmations,
    DeliveredShares,
    Invitation,
    KeyList,
    OpenedShares,
    Parcel,
    SellerMessage,
    ServerMessage,
    SigningIdentity,
    SumTerms,
    SurvivorList,
    honest_sellers,
)
from privmarket.simulation._config import FederationConfig, Training

if TYPE_CHECKING:
    from privmarket.simulation import _federation as simulation
else:
    simulation = late("privmarket.simulation._federation")  # torch: most messages to a client need none

Tamper = Callable[[ServerMessage, int, int], ServerMessage]
"""(message of a step, number of its receiver, sellers in the sum) ↦ the message that is sent instead."""

_NOTES = "answers.json"
_WAITS_PER_ROUND = 7  # bids, keys, shares, checks, masked sums, survivors, opening
_SEED = 11


def _terms(change: Callable[[SumTerms], SumTerms]) -> Tamper:
    """Makes an attack that changes the terms for the second half of the sellers."""

    def tamper(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
        if not isinstance(message, Invitation) or number < sellers // 2:
            return message
        return Invitation(change(message.terms))

    return tamper


def _forged_key(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
    """Half of the sellers are shown a key of the server's own in place of the first seller's."""
    if not isinstance(message, KeyList) or number < sellers // 2:
        return message
    first = replace(message.keys[0], mask_key=SigningIdentity.generate().public_key)
    return KeyList(message.sum, (first, *message.keys[1:]))


def _spoilt_parcels(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
    """What sellers sealed for each other is damaged on the way."""
    if not isinstance(message, DeliveredShares):
        return message
    spoilt = tuple(Parcel(one.seller, bytes(len(one.content))) for one in message.parcels)
    return DeliveredShares(message.sum, spoilt)


def _pretended_drop_outs(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
    """All sellers but as many as must be honest are said to have dropped out: those left could collude."""
    if not isinstance(message, SurvivorList):
        return message
    honest = honest_sellers(sellers, FederationConfig.honest_share)
    return SurvivorList(message.sum, message.survivors[:honest])


def _two_sums(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
    """Half of the sellers are asked for the sum without the first seller, the others for the sum with it."""
    if not isinstance(message, SurvivorList) or number < sellers // 2:
        return message
    return SurvivorList(message.sum, message.survivors[1:])


def _made_up_signatures(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
    """The server signs in the sellers' places."""
    if not isinstance(message, Confirmations):
        return message
    own = SigningIdentity.generate()
    return Confirmations(message.sum, tuple(Parcel(one.seller, own.sign(b"list")) for one in message.signatures))


def _as_it_is(message: ServerMessage, number: int, sellers: int) -> ServerMessage:
    return message


ATTACKS: dict[str, tuple[Tamper, set[str]]] = {
    "a lower threshold": (_terms(lambda terms: replace(terms, honest_share=0.1)), {"honest-share"}),
    "a part of the sellers": (_terms(lambda terms: replace(terms, members=terms.members[1:])), {"cohort"}),
    "integers that wrap": (_terms(lambda terms: replace(terms, bits=terms.bits - 4)), {"noise"}),
    "other noise for some": (_terms(lambda terms: replace(terms, binding=bytes(32))), set()),
    "a forged key": (_forged_key, {"cohort"}),
    "parcels spoilt before training": (_spoilt_parcels, {"cohort"}),
    "more weight than the sold ε allows": (_as_it_is, {"noise"}),
    "drop-outs pretended": (_pretended_drop_outs, {"cohort"}),
    "two sums, one seller in and out": (_two_sums, set()),
    "signatures made up": (_made_up_signatures, {"cohort"}),
}
"""What a server may try, and the words that sellers answer with; none where the sum ends by itself.

A replayed round is asked for by `HostileGrid`."""
REPLAY = "a round replayed"
LYING = "a seller that opens wrong shares"
KILLED = "a seller killed while it trains"
KILLED_AND_LYING = "a seller killed, another one lying"
HONEST = "none"
IN_PROCESS_ATTACKS = (LYING, *ATTACKS, REPLAY, HONEST)
_LIAR = 0
"""The client that lies, where one does."""


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
    _numbers: dict[int, int] = field(default_factory=dict)
    _first: list[Message] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Changes the messages as the attack of this round says, sends them, and returns the replies."""
        outgoing = list(messages)
        if not any(wire.SUM in message.content for message in outgoing):
            return list(self.grid.send_and_receive(outgoing, timeout=timeout))
        number = int(outgoing[0].metadata.group_id)
        attack = self.attacks[number] if number < len(self.attacks) else HONEST
        step = wire.take_sum(outgoing[0].content)
        if isinstance(step, Invitation):
            # Until they say their numbers in the sum, sellers are told apart by the order of their nodes.
            nodes = sorted(message.metadata.dst_node_id for message in outgoing)
            self._numbers = {node: at for at, node in enumerate(nodes)}
        outgoing = [self._changed(message, attack) for message in outgoing]
        if isinstance(step, Invitation) and not self._first:
            self._first = list(outgoing)
        replies = list(self.grid.send_and_receive(outgoing, timeout=timeout))
        self._note(number, replies)
        if attack == REPLAY and isinstance(step, Confirmations):
            # The sum is opened; now the same sellers are asked for the first step of one more, for the same offers.
            again = [_message(m, RecordDict(dict(m.content))) for m in self._first]
            self._note(number, self.grid.send_and_receive(again, timeout=timeout))
        return replies

    def _changed(self, message: Message, attack: str) -> Message:
        """The message that is sent instead; one of its own, as the honest server may send one to everybody."""
        content = RecordDict(
            {k: ConfigRecord(dict(r)) if isinstance(r, ConfigRecord) else r for k, r in message.content.items()}
        )
        if attack in ATTACKS:
            sent = cast(ServerMessage, wire.take_sum(content))
            number = self._numbers[message.metadata.dst_node_id]
            wire.put_sum(content, ATTACKS[attack][0](sent, number, len(self._numbers)))
        if attack == "more weight than the sold ε allows" and wire.SALE in content:
            sale = wire.take(content, wire.Sale)
            wire.put(content, replace(sale, weight=1.001 * sale.weight))
        return _message(message, content)

    def _note(self, number: int, replies: Iterable[Message]) -> None:
        words = self.answers.setdefault(number, {})
        for reply in replies:
            if reply.has_error():
                continue
            refused = wire.take(reply.content, wire.Refusal, None)
            if refused is not None:
                words[refused.reason] = words.get(refused.reason, 0) + 1
                continue
            answered = wire.take_sum(reply.content)
            if isinstance(answered, SellerMessage):
                self._numbers[reply.metadata.src_node_id] = answered.sender


def _message(like: Message, content: RecordDict) -> Message:
    """A message to the same node with this content."""
    meta = like.metadata
    return Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)


@dataclass(frozen=True)
class SumPlan:
    """A rehearsal of secure sums: what is tried in each round, on so many clients that train for real."""

    clients: int = 7
    attacks: tuple[str, ...] = (
        LYING,
        "a lower threshold",
        "two sums, one seller in and out",
        KILLED,
        KILLED_AND_LYING,
    )
    deadline_seconds: float = 60.0

    @property
    def killed(self) -> dict[int, str]:
        """Round → the client that is killed in it: the last one that is left."""
        rounds = [number for number, attack in enumerate(self.attacks) if attack in (KILLED, KILLED_AND_LYING)]
        return {number: str(self.clients - 1 - at) for at, number in enumerate(rounds)}

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
    """The client app of a rehearsal: sellers say when they may be killed, and the first one may lie."""
    chosen = read_sum_plan(plan)
    app = federation_client(chosen.config, Path(folder) / "wallets")
    assert app.seller.share is not None
    app.seller.share = _Mortal(app.seller.share, chosen, Path(folder))
    # Sellers that know each other's keys: all of them sell in every round, but for those that are gone.
    keys = rehearsal_keys(chosen.clients)
    app.seller.identity = lambda context: keys[int(partition_name(context))]
    app.seller.parties = lambda context: [
        key.public for at, key in enumerate(keys) if not marker(Path(folder), str(at)).exists()
    ]
    return _MayLie(app, chosen)


class _MayLie(MarketClientApp):
    """A client app of which one client opens wrong shares of the others' secrets, in the rounds of the plan."""

    def __init__(self, inner: MarketClientApp, plan: SumPlan) -> None:
        super().__init__()
        self.inner = inner
        self.plan = plan
        self.seller = inner.seller

    def __call__(self, message: Message, context: Context) -> Message:
        """The honest client's answer, or a lie."""
        reply = self.inner(message, context)
        lies = partition_name(context) == str(_LIAR) and wire.SUM in message.content
        if not lies or self.plan.attacks[int(message.metadata.group_id)] not in (LYING, KILLED_AND_LYING):
            return reply
        opened = wire.take_sum(reply.content) if wire.SUM in reply.content else None
        if isinstance(opened, OpenedShares):
            wrong = tuple(Parcel(one.seller, _another_share(one.content)) for one in opened.shares)
            wire.put_sum(reply.content, replace(opened, shares=wrong))
        return reply


def _another_share(piece: bytes) -> bytes:
    """A piece of the same number that holds other values."""
    return piece[:2] + bytes(value ^ 1 for value in piece[2:])


def rehearsal_keys(clients: int) -> list[SigningKey]:
    """The signing key of each client, the same in every process."""
    return [SigningKey.from_seed(hashlib.sha256(b"rehearsal %d" % at).digest()) for at in range(clients)]


@dataclass(frozen=True)
class _Mortal:
    """Training in which a client waits to be killed, in the rounds of the plan."""

    inner: ShareTraining
    plan: SumPlan
    folder: Path

    def records(self, context: Context) -> int:
        return self.inner.records(context)

    def share(self, weights: Arrays, job: Job, grid: ReleaseGrid) -> Mapping[str, np.ndarray]:
        if self.plan.killed.get(job.sale.number) == job.client:
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
            if chosen.killed:
                waiting = {int(one) for one in chosen.killed.values()}
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
        f"{'a round with a liar' if plan.attacks[0] == LYING else 'an honest round'} is the plain simulation's, "
        "to the micro-unit and the last digit of accuracy": (
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
        expected = ATTACKS[attack][1]
        # Where sellers that are told different things never meet, there is nothing to refuse, and no sum.
        verdicts[f"{attack}: {'sellers refuse' if expected else 'no two halves meet'}"] = set(words) == expected
    for number, attack in enumerate(plan.attacks):
        if attack == REPLAY:
            verdicts["a round replayed: every seller refuses"] = answers.get(number) == {"unsold": plan.clients}
        if attack in (KILLED, KILLED_AND_LYING):
            gone = plan.killed[number]
            statement = WalletFile(folder / "wallets" / f"client-{gone}.jsonl", float("inf")).statement()
            verdicts[f"round {number + 1}: the killed seller has spent what it did not deliver"] = (
                bool(statement) and statement[-1]["released"] is False
            )
        if attack == KILLED:
            verdicts["the others' sum is opened and paid without the killed seller"] = set(
                rounds[number]["paid_micro"]
            ) == {str(client) for client in range(int(plan.killed[number]))}
        if attack == KILLED_AND_LYING:
            verdicts["one killed and one lying are too many: no sum, and nobody is paid"] = (
                rounds[number]["paid_micro"] == {} and rounds[number]["accuracy"] == rounds[number - 1]["accuracy"]
            )
    return verdicts


def read_sum_plan(text: str) -> SumPlan:
    """Reads a plan from the JSON of its `asdict`."""
    fields = json.loads(text)
    return SumPlan(**{**fields, "attacks": tuple(fields["attacks"])})


def _app_code(plan: SumPlan, folder: Path) -> str:
    return f"""from privmarket.flower import _sum_rehearsal as sum_rehearsal

PLAN = {json.dumps(asdict(plan))!r}
server = sum_rehearsal.server(PLAN, {str(folder)!r})
client = sum_rehearsal.client(PLAN, {str(folder)!r})
"""
