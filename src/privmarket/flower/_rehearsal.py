"""Rehearses a deployed market: real SuperNodes, of which some are killed, late, broken or replay a sale.

A SuperLink and its SuperNodes run on loopback as processes of their own. Clients misbehave as told, each in its own
process; one SuperNode is killed while its client trains, one more poses as a client that is there already. What
must come out: every round ends, who delivered is paid what the plain simulation says, nobody else is paid, the
money adds up, and the killed client's wallet has spent.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context

from privmarket._lazy import late
from privmarket.flower._engine import Engine, write_app
from privmarket.flower._federation import federation_client, federation_server
from privmarket.flower._result import RoundJson
from privmarket.flower._seller import Job, MarketClientApp, TrainFunction, partition_name
from privmarket.flower._server import MarketServerApp, server_app
from privmarket.flower._wire import Arrays
from privmarket.privacy._wallet_store import WalletFile
from privmarket.rounds import Offer, Round, Terms, micro_units
from privmarket.simulation._bidding import client_types
from privmarket.simulation._config import FederationConfig, Training

if TYPE_CHECKING:
    from privmarket.simulation import _federation as simulation
else:
    simulation = late("privmarket.simulation._federation")

KINDS = ("nan", "shape", "late", "killed", "replay")
_SEED = 11
_POLL_SECONDS = 0.1
# A message to a SuperNode starts a process that imports more than the node itself did; all of them start at once.
_DEADLINE_OVER_START = 5.0
_START_SECONDS = 300.0


@dataclass(frozen=True)
class Fault:
    """What a client does wrong, and in which round."""

    client: int
    kind: str
    number: int


@dataclass(frozen=True)
class RehearsalPlan:
    """A rehearsal.

    Attributes:
        deadline_seconds: how long the server waits for updates; a late client answers after it.
        impostor: whether one more SuperNode claims to be client 0.
        light: updates are noise alone, made without torch or records; the market is the same.
    """

    clients: int = 6
    rounds: int = 3
    deadline_seconds: float = 40.0
    faults: tuple[Fault, ...] = (
        Fault(1, "nan", 1),
        Fault(2, "shape", 1),
        Fault(3, "late", 1),
        Fault(4, "killed", 1),
        Fault(5, "replay", 2),
    )
    impostor: bool = True
    light: bool = False

    @property
    def timeout_seconds(self) -> float:
        """When a rehearsal is given up: later than all deadlines of its rounds together, and the start."""
        return run_timeout(self.rounds, 2, self.deadline_seconds)

    @property
    def config(self) -> FederationConfig:
        """The same market for the plain simulation; its budget lets everybody sell."""
        return FederationConfig(
            clients=self.clients,
            rounds=self.rounds,
            budget=5.0 * self.clients,
            evaluate_every=1,
            training=Training(model="logistic"),
            seed=_SEED,
        )


def server(plan: str) -> MarketServerApp:
    """The server app of a rehearsal; the plan as JSON."""
    chosen = read_plan(plan)
    extra: dict[str, Any] = {
        "bid_seconds": chosen.deadline_seconds,
        "deadline_seconds": chosen.deadline_seconds,
        "receipts": False,
        # The impostor counts: it must be there to be turned away.
        "min_nodes": chosen.clients + chosen.impostor,
    }
    if not chosen.light:
        return federation_server(chosen.config, **extra)
    config = chosen.config
    return server_app(
        initial_weights=lambda: {"weights": np.zeros(16, dtype=np.float32)},
        **{"budget": config.budget, "rounds": config.rounds, "mechanism": config.mechanism, **extra},
    )


def client(plan: str, folder: str) -> MarketClientApp:
    """The client app of a rehearsal: an honest client whose training a fault may spoil."""
    chosen = read_plan(plan)
    app = federation_client(chosen.config, Path(folder) / "wallets")
    if chosen.light:
        app.seller.train = _noise_alone
        app.seller.offer = lambda terms, context: _type(chosen, terms, context)
    app.seller.train = spoiled(app.seller.train, chosen, Path(folder))
    app.seller.train_many = None
    return app


def _noise_alone(weights: Arrays, job: Job) -> Arrays:
    return {name: job.noise_multiplier * job.noise.standard_normal(w.shape) for name, w in weights.items()}


def _type(plan: RehearsalPlan, terms: Terms, context: Context) -> Offer:
    number = int(partition_name(context))
    types = client_types(plan.config, terms.number)
    return Offer(float(types.valuation[number]), float(types.epsilon[number]))


def spoiled(train: TrainFunction, plan: RehearsalPlan, folder: Path) -> TrainFunction:
    """Training that goes wrong where the plan says so."""
    faults = {(str(f.client), f.number): f.kind for f in plan.faults}

    def spoil(weights: Arrays, job: Job) -> Mapping[str, np.ndarray]:
        kind = faults.get((job.client, job.sale.number))
        if kind == "killed":
            marker(folder, job.client).touch()
            time.sleep(3600)
        update = dict(train(weights, job))
        kept = folder / f"update-{job.client}.npz"
        if kind == "replay":
            with np.load(kept) as old:
                return dict(old)
        np.savez(kept, **update)  # type: ignore[arg-type]
        name = next(iter(update))
        if kind == "nan":
            update[name] = np.where(np.arange(update[name].size) == 7, np.nan, update[name]).astype(np.float32)
        elif kind == "shape":
            update[name] = update[name][:-1]
        elif kind == "late":
            time.sleep(plan.deadline_seconds + 10.0)
        return update

    return spoil


def marker(folder: Path, client: str) -> Path:
    """The file by which a client says that it is training and may be killed now."""
    return folder / f"training-{client}"


def rehearse(folder: Path, plan: RehearsalPlan | None = None, *, stretch: bool = False) -> dict[str, Any]:
    """Runs a rehearsal in `folder` and returns what came out, with a verdict on every promise.

    Args:
        stretch: whether the deadline grows with the time that the SuperNodes take to start: a busy machine answers
            late, and would break promises that the code keeps.
    """
    chosen = plan or RehearsalPlan()
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with Engine(folder, chosen.clients) as engine:
        if chosen.impostor:
            engine.start_node(chosen.clients, {"partition-id": 0})
        engine.await_nodes()
        if stretch:
            chosen = replace(chosen, deadline_seconds=stretched(chosen.deadline_seconds, engine.ready_seconds))
        app = write_app(folder / "app", _app_code(chosen, folder), {})
        waiting = {fault.client for fault in chosen.faults if fault.kind == "killed"}
        threading.Thread(target=kill_on_marker, args=(engine, waiting, folder), daemon=True).start()
        result = engine.run(app, timeout_seconds=chosen.timeout_seconds)
        ended = engine.ended_alone()
        logs = {name: engine.tail(name) for name in [*ended, *_nodes_to_ask(chosen, result["rounds"])]}
    found = verdicts(chosen, result["rounds"], folder)
    return {
        "plan": asdict(chosen),
        "versions": {name: version(name) for name in ("privmarket", "flwr", "torch")},
        "seconds": round(time.perf_counter() - started, 1),
        "rounds": result["rounds"],
        "verdicts": found,
        "ended_alone": ended,
        "logs": {} if all(found.values()) else logs,
    }


def stretched(deadline_seconds: float, ready_seconds: float) -> float:
    """A deadline for a machine on which SuperLink and SuperNodes took so long to start."""
    return float(np.ceil(max(deadline_seconds, _DEADLINE_OVER_START * ready_seconds)))


def run_timeout(rounds: int, waits: int, deadline_seconds: float) -> float:
    """When a run is given up in which every round waits so many times for clients, for the whole deadline."""
    return _START_SECONDS + rounds * (waits * deadline_seconds + 60.0)


def _nodes_to_ask(plan: RehearsalPlan, rounds: list[RoundJson]) -> list[str]:
    """Nodes of clients that were to be paid in a round and were not: their logs may say why."""
    gone = _expected_drops(plan)
    everybody = {str(c) for c in range(plan.clients)}
    missing = {
        client
        for r in rounds
        for client in everybody - gone[r["number"]] - set(r["paid_micro"]) - _busy(plan, r["number"])
    }
    return [f"node-{client}" for client in sorted(missing, key=int)]


def verdicts(plan: RehearsalPlan, rounds: list[RoundJson], folder: Path) -> dict[str, bool]:
    """Promise → whether it was kept."""
    gone = _expected_drops(plan)
    budget = micro_units(plan.config.budget)
    killed = [f for f in plan.faults if f.kind == "killed"]
    wallets = [WalletFile(folder / "wallets" / f"client-{f.client}.jsonl", np.inf).statement() for f in killed]
    return {
        "every round ended": len(rounds) == plan.rounds,
        "payments are the plain simulation's among those who bid, to the micro-unit": all(
            r["paid_micro"] == {c: micro for c, micro in _plain_payments(plan, r).items() if c not in r["dropped"]}
            for r in rounds
        ),
        "who delivered is paid": all(
            set(r["paid_micro"])
            >= {str(c) for c in range(plan.clients)} - gone[r["number"]] - _busy(plan, r["number"])
            for r in rounds
        ),
        "who misbehaved is not paid": all(
            not (gone[r["number"]] & set(r["paid_micro"])) and gone[r["number"]] >= set(r["dropped"])
            for r in rounds
        ),
        "money adds up": all(
            sum(r["paid_micro"].values()) + r["refunded_micro"] == budget and r["spent_micro"] <= budget
            for r in rounds
        ),
        "nobody is paid twice in a round": all(r["bidders"] <= plan.clients for r in rounds),
        "the killed client has spent what it did not deliver": all(
            statement and statement[-1]["released"] is False for statement in wallets
        ),
    }


def _plain_payments(plan: RehearsalPlan, record: RoundJson) -> dict[str, int]:
    """client → what it sells for in the plain simulation's auction, held among those who bid here.

    A client that is dead, or still busy with a late update, does not bid, and prices move. Everybody who bids sells
    in this market, so who bid is who was paid or dropped.
    """
    present = sorted({*record["paid_micro"], *record["dropped"]}, key=int)
    if len(present) != record["bidders"]:
        return {}
    with simulation.Federation(plan.config) as federation:
        types = federation.types(record["number"])
        number = record["number"]
        terms = Terms(
            number, micro_units(plan.config.budget), federation.family, federation.distribution.epsilon_max
        )
        v, epsilon, size = types.valuation, types.epsilon, federation.sizes
        places = {client: federation.place[client] for client in present}
        offers = {c: Offer(float(v[at]), float(epsilon[at]), float(size[at])) for c, at in places.items()}
        awards = Round.publish(terms).bid(offers).clear(federation.mechanism).awards
    return {client: award.payment_micro for client, award in awards.items()}


def _busy(plan: RehearsalPlan, number: int) -> set[str]:
    """Who may miss a round because it still works on a late update."""
    return {str(f.client) for f in plan.faults if f.kind == "late" and f.number < number}


def _expected_drops(plan: RehearsalPlan) -> dict[int, set[str]]:
    """round → who cannot be paid: who misbehaves in it, and who was killed before."""
    return {
        number: {
            str(f.client) for f in plan.faults if f.number == number or (f.kind == "killed" and f.number < number)
        }
        for number in range(plan.rounds)
    }


def kill_on_marker(engine: Engine, waiting: set[int], folder: Path) -> None:
    """Kills the SuperNodes of these clients, each when it says that it is training."""
    while waiting:
        for client in [c for c in waiting if marker(folder, str(c)).exists()]:
            engine.kill_node(client)
            waiting.remove(client)
        time.sleep(_POLL_SECONDS)


def read_plan(text: str) -> RehearsalPlan:
    """The plan that `asdict` gave, from JSON."""
    fields = json.loads(text)
    return RehearsalPlan(**{**fields, "faults": tuple(Fault(**fault) for fault in fields["faults"])})


def _app_code(plan: RehearsalPlan, folder: Path) -> str:
    return f"""from privmarket.flower import _rehearsal as rehearsal

PLAN = {json.dumps(asdict(plan))!r}
server = rehearsal.server(PLAN)
client = rehearsal.client(PLAN, {str(folder.absolute())!r})
"""
