"""A finished run: its scores, its cost, and each client's sales; as JSON, tables, a figure, a model."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from privmarket._counted import counted
from privmarket._figures import new_figure, write
from privmarket._lazy import late, require
from privmarket.errors import DataError
from privmarket.market._bids import Array, Bids
from privmarket.privacy._accountant import RdpAccountants, certify
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._release import FLOAT_WARNING
from privmarket.privacy._wallet import Wallets
from privmarket.rounds import MICRO, RoundRecord
from privmarket.secagg import alone_noise_multiplier, honest_per_cohort
from privmarket.simulation._config import FederationConfig, statistics_words

if TYPE_CHECKING:
    import pandas
    import torch
    from torch import nn

    from privmarket import training
    from privmarket._figures import Figure
    from privmarket.simulation import _model_file as model_files
    from privmarket.simulation._moments import Whitening
    from privmarket.simulation._own_records import OwnRecords
    from privmarket.tasks import Task, _models as models
else:  # a server reads statements without torch, and tables and figures are extras
    pandas = late("pandas")
    torch = late("torch")
    training = late("privmarket.training")
    model_files = late("privmarket.simulation._model_file")
    models = late("privmarket.tasks._models")


@dataclass(frozen=True)
class UnitPrices:
    """Money per unit of ε, over all sales of a run.

    Attributes:
        paid: what was paid.
        asked: what the sellers asked, in the mean over the ε they sold.
        highest: the highest ask of any client.
    """

    paid: float
    asked: float
    highest: float

    @classmethod
    def mean(cls, several: Sequence[UnitPrices]) -> UnitPrices | None:
        """The mean over runs; None of none."""
        if not several:
            return None
        paid, asked, highest = np.mean([(one.paid, one.asked, one.highest) for one in several], axis=0).tolist()
        return cls(paid, asked, highest)

    @property
    def is_too_much(self) -> bool:
        """Whether more than twice the highest ask was paid.

        At the highest ask as a price everybody would sell all that they offer, so no more could be bought. The
        factor of two leaves room for rules whose prices are fixed before asks are known.
        """
        return self.paid > 2.0 * self.highest

    def sentence(self) -> str:
        """What was paid and asked; if it was too much, that less would do."""
        said = f"Paid {_money(self.paid)} per unit of ε, where sellers asked {_money(self.asked)} in the mean."
        if self.is_too_much:
            said += (
                f" No client asks more than {_money(self.highest)}: at that price everybody would sell all that "
                "they offer. Try a smaller budget, or another rule."
            )
        return said


def _money(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """A finished run.

    Attributes:
        weights: (parameters,) the final model.
        wallets: every client's releases and what its wallet has left.
        types: the clients' true (v, ε) in the last round.
        task: what was learned from whose records.
        scores: every score of the final model on the test records; None where there are none.
        own_records: the models of the buyer's own records and their scores; None without such records.
        whitening: the public map of inputs with which it was trained, made from bought or public moments; None
            without. `weights` are those of the task's own module in either case.
        gain_error: standard error of `gain` from the choice of test records; see `Task.gain_error`.
    """

    config: FederationConfig
    records: tuple[RoundRecord, ...]
    weights: np.ndarray
    wallets: Wallets
    types: Bids
    seconds: float
    task: Task
    scores: dict[str, float] | None = None
    own_records: OwnRecords | None = None
    whitening: Whitening | None = None
    gain_error: float | None = None

    @property
    def score(self) -> float:
        """The headline score of the final model on the test records.

        Raises:
            DataError: the task has no test records.
        """
        if self.scores is None:
            raise DataError(f"the task {self.task.name!r} has no test records", "give test=… or test_share=…")
        return self.scores[self.task.score.name]

    @property
    def score_before(self) -> float | None:
        """The same score of the best model of the buyer's own records alone; None without such records."""
        return None if self.own_records is None else self.own_records.scores[self.task.score.name]

    @property
    def gain(self) -> float | None:
        """How much better the score is than before; positive is better. None without a score before."""
        before = self.score_before
        return None if before is None else self.task.score.gain(before, self.score)

    @property
    def accuracy(self) -> float:
        """The test accuracy of the final model.

        Raises:
            DataError: accuracy is not among the task's scores.
        """
        if self.scores is None or "accuracy" not in self.scores:
            raise DataError(f"accuracy is no score of the task {self.task.name!r}", "use `score` or `scores`")
        return self.scores["accuracy"]

    @cached_property
    def model(self) -> nn.Module:
        """The final model: the task's module with its weights, in evaluation mode."""
        built = training.PrivateModel(self.task.build_model(self.config.seed), self.task.loss)
        return built.load(torch.from_numpy(self.weights)).eval()

    def save_model(self, path: str | Path) -> Path:
        """Writes the model to a .safetensors file, and a JSON card beside it; see `privmarket predict`."""
        return model_files.write_model(self.model, model_card(self), path)

    def export_onnx(self, path: str | Path) -> Path:
        """Writes the model as ONNX, if torch can and the package `onnxscript` is there; returns the path.

        Raises:
            ConfigurationError: the module cannot be exported.
        """
        inputs = self.task.private.inputs
        example = torch.from_numpy(np.zeros((2, *inputs.shape[1:]), dtype=inputs.dtype))
        return model_files.export_onnx(self.model, example, path)

    @cached_property
    def client_rows(self) -> list[ClientRow]:
        """One row per client, in the order of the task: sales, pay and total ε."""
        return client_table(self)

    def statement(self, client: str) -> ClientStatement:
        """The statement of one client: its sales, its pay, and what they add up to."""
        place = self.task.place(client)
        row = self.client_rows[place]
        sold = self.sold_epsilon[:, place]
        paid = self.paid_micro[:, place]
        sales = tuple(
            (int(number) + 1, float(sold[number]), int(paid[number]) / MICRO) for number in np.flatnonzero(sold)
        )
        return ClientStatement(
            client=client,
            sales=sales,
            paid=row["paid"],
            epsilon=row["epsilon_spent"],
            epsilon_if_others_collude=row["epsilon_if_others_collude"],
            delta=self.config.delta,
            wallet_left=row["wallet_left"],
            unit=self.task.unit,
            honest_share=self.config.honest_share if self.config.trust == "aggregate" else None,
            rounds_of_moments=self.rounds_of_moments,
        )

    def to_frame(self) -> pandas.DataFrame:
        """One row per round: bidders, sellers, ε, money, score; needs pandas."""
        require("pandas", "pandas")
        rows = [
            {
                "round": record.number + 1,
                "bidders": record.bidders,
                "sellers": record.sellers,
                "epsilon": record.total_epsilon,
                "paid": record.spent_micro / MICRO,
                self.task.score.name: record.accuracy,
            }
            for record in self.records
        ]
        return pandas.DataFrame(rows)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The score over money, with what the buyer had before; saved to `path` if given. Needs matplotlib."""
        require("matplotlib", "plots")
        score = self.task.score
        money = np.cumsum([record.spent_micro / MICRO for record in self.records])
        measured = [
            (float(paid), record.accuracy)
            for paid, record in zip(money, self.records, strict=True)
            if record.accuracy is not None
        ]
        figure = new_figure(5.2, 3.4)
        axes = figure.subplots()
        x = [paid for paid, _ in measured]
        axes.plot(x, [value for _, value in measured], "o-", color="#D55E00", label="bought")
        if self.score_before is not None:
            assert self.own_records is not None
            axes.axhline(
                self.score_before,
                color="k",
                ls="--",
                lw=0.9,
                label=f"own {counted(self.own_records.records, 'record')}",
            )
        axes.set(xlabel="money paid so far", ylabel=f"{score.heading} on test records", title=self.task.name)
        if score.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        axes.grid(alpha=0.25)
        axes.legend(loc="best", fontsize=8)
        if path is not None:
            write(figure, path)
        return figure

    def __repr__(self) -> str:
        score = self.task.score
        after = "no test records" if self.scores is None else f"{score.heading} {score.format(self.score)}"
        before = self.score_before
        had = "" if before is None else f" (own records: {score.format(before)})"
        return (
            f"RunResult({self.task.name!r}, {len(self.task.clients)} clients, {len(self.records)} rounds, "
            f"paid {self.spent:,.2f}, {after}{had})"
        )

    @cached_property
    def prices(self) -> UnitPrices | None:
        """What a unit of ε cost; None where nothing was sold, or where asks are drawn anew every round."""
        sold = self.sold_epsilon.sum(axis=0)
        if not sold.sum() or self.config.types == "redrawn":
            return None
        asks = self.types.valuation
        return UnitPrices(self.spent / float(sold.sum()), float(np.average(asks, weights=sold)), float(asks.max()))

    @cached_property
    def place(self) -> dict[str, int]:
        """Client → its place in arrays."""
        return {client: i for i, client in enumerate(self.task.clients)}

    @property
    def rounds_of_moments(self) -> int:
        """How many of the first rounds sold moments of the inputs instead of updates: 1 or 0."""
        return min(1, len(self.records)) if self.config.statistics == "moments" else 0

    @property
    def spent(self) -> float:
        """The money paid in all rounds together."""
        return sum(r.spent_micro for r in self.records) / MICRO

    @cached_property
    def sold_epsilon(self) -> Array:
        """(rounds, clients) ε of what each client released in each round."""
        sold = np.zeros((len(self.records), self.config.clients))
        for row, record in zip(sold, self.records, strict=True):
            row[[self.place[client] for client in record.sold_epsilon]] = list(record.sold_epsilon.values())
        return sold

    @cached_property
    def paid_micro(self) -> NDArray[np.int64]:
        """(rounds, clients) money that each client got in each round, micro-units."""
        paid = np.zeros((len(self.records), self.config.clients), dtype=np.int64)
        for row, record in zip(paid, self.records, strict=True):
            row[[self.place[client] for client in record.paid_micro]] = list(record.paid_micro.values())
        return paid


@dataclass(frozen=True)
class ClientStatement:
    """The sales, pay and privacy of one client in a run.

    Attributes:
        client: its name.
        sales: for each round in which it sold: round (from 1), ε, and money.
        paid: money in all.
        epsilon: what all its sales add up to at δ; None in a run without noise.
        epsilon_if_others_collude: the same if all other sellers tell the server their noise; None under local
            trust, where that changes nothing.
        wallet_left: share of its wallet that is left; None without a limit.
        unit: what is protected.
        honest_share: of a round's sellers, on which `epsilon` rests under aggregate trust.
        rounds_of_moments: the number of first rounds that sold moments of the inputs instead of updates.
    """

    client: str
    sales: tuple[tuple[int, float, float], ...]
    paid: float
    epsilon: float | None
    epsilon_if_others_collude: float | None
    delta: float
    wallet_left: float | None
    unit: str
    honest_share: float | None
    rounds_of_moments: int = 0

    def to_json(self) -> dict[str, object]:
        """The statement as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.client}: {counted(len(self.sales), 'sale')}, {self.paid:,.2f} paid"]
        if self.epsilon is None:
            lines.append("This run added no noise: there is no privacy to state.")
        elif self.honest_share is None:
            lines.append(
                f"All of it together is (ε = {self.epsilon:.3g}, δ = {self.delta:g})-private for one {self.unit}, "
                "against anybody who sees what you sent."
            )
        else:
            lines.append(
                f"All of it together is (ε = {self.epsilon:.3g}, δ = {self.delta:g})-private for one {self.unit}, "
                f"if {self.honest_share:.0%} of each round's sellers are honest; ε = "
                f"{self.epsilon_if_others_collude:.3g} if all others collude."
            )
        if self.wallet_left is not None:
            lines.append(f"Left in the wallet: {self.wallet_left:.0%}.")
        for number, epsilon, money in self.sales:
            what = ", means and second moments" if number <= self.rounds_of_moments else ""
            lines.append(f"  round {number}: ε = {epsilon:.3g}, {money:,.2f}{what}")
        return "\n".join(lines)


class ClientRow(TypedDict):
    """One client of a run; a field is None if there is nothing to state."""

    client: int
    name: str
    valuation: float
    epsilon_per_round: float
    sales: int
    paid: float
    epsilon_spent: float | None
    epsilon_if_others_collude: float | None
    wallet_left: float | None


class RunSummary(TypedDict):
    """A run as plain data: its configuration, versions, time, totals, clients and rounds."""

    config: dict[str, object]
    versions: dict[str, str]
    seconds: float
    score_name: str
    score: float | None
    scores: dict[str, float]
    score_before: float | None
    gain_error: float | None
    own_records: dict[str, object] | None
    accuracy: NotRequired[float]
    spent: float
    epsilon_bought: float
    prices: dict[str, float] | None
    sellers_per_round: float
    largest_epsilon_spent: float | None
    largest_epsilon_if_others_collude: float | None
    arithmetic: str | None
    statistics: NotRequired[dict[str, object]]
    dropped: dict[str, dict[str, str]]
    clients: list[ClientRow]
    rounds: NotRequired[list[dict[str, object]]]


def client_table(result: RunResult) -> list[ClientRow]:
    """One row per client: its type, how often it sold, what it was paid, its total ε, what its wallet has left."""
    clients = result.config.clients
    history = result.wallets.history
    accountants = RdpAccountants(clients)
    for events in history:
        accountants.compose(events)
    epsilon = accountants.get_epsilon(result.config.delta)
    paid = result.paid_micro.sum(axis=0)
    sales = [sum(event is not None for event in sold) for sold in zip(*history, strict=True)] or [0] * clients
    left = result.wallets.remaining_share
    alone = _epsilon_if_others_collude(result)
    private = result.config.privacy.is_private
    return [
        {
            "client": i,
            "name": result.task.clients[i],
            "valuation": float(result.types.valuation[i]),
            "epsilon_per_round": float(result.types.epsilon[i]),
            "sales": sales[i],
            "paid": int(paid[i]) / MICRO,
            # Without noise nothing is spent: there is no finite ε to state.
            "epsilon_spent": (float(epsilon[i]) if sales[i] else 0.0) if private else None,
            "epsilon_if_others_collude": None if alone is None else float(alone[i]),
            "wallet_left": float(left[i]) if np.isfinite(result.wallets.cap_epsilon[i]) else None,
        }
        for i in range(clients)
    ]


def _epsilon_if_others_collude(result: RunResult) -> Array | None:
    """(clients,) total ε of each client's own shares alone; None where updates are private on their own."""
    rounds = events_if_others_collude(result)
    if rounds is None:
        return None
    accountants = RdpAccountants(result.config.clients)
    for events in rounds:
        accountants.compose(events)
    return accountants.get_epsilon(result.config.delta)


def events_if_others_collude(result: RunResult) -> list[list[PrivacyEvent | None]] | None:
    """For each round and client, a release with only its own part of the round's noise; None where it sold nothing.

    None instead of a list if the run's updates are private on their own, or not at all.
    """
    config = result.config
    if config.trust != "aggregate" or not config.privacy.is_private:
        return None
    family = ReleaseFamily.of(config.training, config.delta)
    rounds = []
    for record in result.records:
        events: list[PrivacyEvent | None] = [None] * config.clients
        if record.sold_epsilon:
            honest = honest_per_cohort(len(record.sold_epsilon), config.honest_share)
            sold = family.noise_multiplier(list(record.sold_epsilon.values()))
            alone = alone_noise_multiplier(sold, honest).tolist()
            for client, noise_multiplier in zip(record.sold_epsilon, alone, strict=True):
                events[result.place[client]] = family.release(noise_multiplier)
        rounds.append(events)
    return rounds


def arithmetic_of(config: FederationConfig) -> str:
    """The arithmetic in which the run's releases are private, `exact`, or the warning that they are not."""
    exact = config.training.arithmetic == "exact" or config.trust == "aggregate"
    return "exact" if exact else f"float: {FLOAT_WARNING}"


def brief(result: RunResult, command: str) -> dict[str, object]:
    """What is kept of a run as a result file: totals, the accuracy curve, and the command that gives it again."""
    summary = summarise(result, rounds=False)
    return {
        "command": command,
        **{name: value for name, value in summary.items() if name != "clients"},
        "clients_that_sold": sum(row["sales"] > 0 for row in summary["clients"]),
        "accuracy_by_round": {
            str(r.number + 1): round(r.accuracy, 4) for r in result.records if r.accuracy is not None
        },
    }


def summarise(result: RunResult, *, rounds: bool = True) -> RunSummary:
    """Configuration, versions, time, totals, clients and, if wanted, every round."""
    records = result.records
    table = result.client_rows
    private = result.config.privacy.is_private
    summary: RunSummary = {
        "config": result.config.to_json(),
        "versions": {
            "privmarket": version("privmarket"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
        "seconds": round(result.seconds, 3),
        "score_name": result.task.score.name,
        "score": None if result.scores is None else result.score,
        "scores": result.scores or {},
        "score_before": result.score_before,
        "gain_error": result.gain_error,
        "own_records": None if result.own_records is None else result.own_records.to_json(),
        "spent": result.spent,
        "epsilon_bought": sum(r.total_epsilon for r in records),
        "prices": None if result.prices is None else asdict(result.prices),
        "sellers_per_round": float(np.mean([r.sellers for r in records])),
        "largest_epsilon_spent": _largest(row["epsilon_spent"] for row in table),
        "largest_epsilon_if_others_collude": _largest(row["epsilon_if_others_collude"] for row in table),
        # Shares of a secure sum are integers always.
        "arithmetic": arithmetic_of(result.config) if private else None,
        "dropped": {str(r.number): r.dropped for r in records if r.dropped},
        "clients": table,
    }
    if result.scores is not None and "accuracy" in result.scores:
        summary["accuracy"] = result.scores["accuracy"]
    if result.config.statistics != "none":
        summary["statistics"] = _statistics_row(result)
    if rounds:
        summary["rounds"] = [
            _round_row(record, by_accuracy=result.task.score.name == "accuracy") for record in records
        ]
        for row in summary["rounds"][: result.rounds_of_moments]:
            row["sold"] = "moments"
    return summary


def _statistics_row(result: RunResult) -> dict[str, object]:
    """How inputs were whitened and what that cost; the cost is also part of the totals."""
    sale = result.records[: result.rounds_of_moments]
    row: dict[str, object] = {
        "kind": result.config.statistics,
        "said": statistics_words(result.config),
        "sellers": sum(record.sellers for record in sale),
        "spent": sum(record.spent_micro for record in sale) / MICRO,
        "epsilon_bought": sum(record.total_epsilon for record in sale),
    }
    if result.whitening is not None:
        row["inputs"] = result.whitening.moments.inputs
        row["noise"] = result.whitening.moments.deviation
    return row


def _round_row(record: RoundRecord, *, by_accuracy: bool) -> dict[str, object]:
    """A round as JSON data; the headline score is called accuracy only where it is one."""
    row = asdict(record)
    row["score"] = row["accuracy"]
    if not by_accuracy:
        del row["accuracy"]
    return row


def _largest(values: Iterable[float | None]) -> float | None:
    """The largest of the values that are not None; None if there are none."""
    return max((value for value in values if value is not None), default=None)


def model_card(result: RunResult) -> dict[str, object]:
    """The card of a run's model, as JSON data."""
    task = result.task
    config = result.config
    return {
        **model_files.task_card(task),
        "score": {
            "name": task.score.name,
            "better": task.score.direction,
            "before": result.score_before,
            "after": None if result.scores is None else result.score,
            "all": result.scores,
        },
        "own_records": None if result.own_records is None else result.own_records.to_json(),
        "money": result.spent,
        "rounds": len(result.records),
        "privacy": privacy_of(result),
        "settings": config.to_json(),
    }


def privacy_of(result: RunResult) -> dict[str, object]:
    """The privacy that the run cost: the certificate of the client that released most, and its assumptions."""
    config = result.config
    said: dict[str, object] = {
        "unit": result.task.unit,
        "delta": config.delta,
        "trust": config.trust,
        "honest_share": config.honest_share if config.trust == "aggregate" else None,
        "mode": config.mode,
        "largest_epsilon": None,
    }
    if config.statistics != "none":
        said["statistics"] = statistics_words(config)
    if not config.privacy.is_private:
        return said | {"note": "no noise was added: there is no privacy to state"}
    sold = np.flatnonzero(result.sold_epsilon.any(axis=0)).tolist()
    histories = [[entry[i] for entry in result.wallets.history if entry[i] is not None] for i in sold]
    if not histories:
        return said | {"largest_epsilon": 0.0}
    certificates = [certify(events, config.delta, unit=result.task.unit) for events in histories]
    worst = max(certificates, key=lambda one: one.epsilon)
    return said | {"largest_epsilon": worst.epsilon, "certificate": asdict(worst)}
