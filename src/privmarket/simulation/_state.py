"""What a run carries from round to round, what it leaves behind, and both as a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import DataError
from privmarket.market._bids import Array, Bids
from privmarket.privacy._wallet import Wallets
from privmarket.rounds import MICRO, RoundRecord
from privmarket.simulation._checkpoint import Checkpoint
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._global_model import ServerState
from privmarket.simulation._moments import Moments, Whitening
from privmarket.training import PrivateModel

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

    from privmarket.simulation import _model_file as model_files
    from privmarket.simulation import _statements as statements
    from privmarket.simulation import _summary as summaries
    from privmarket.simulation._before import OwnRecords
    from privmarket.simulation._statements import ClientStatement
    from privmarket.simulation._summary import ClientRow
    from privmarket.tasks import Task
else:
    model_files = late("privmarket.simulation._model_file")
    statements = late("privmarket.simulation._statements")
    summaries = late("privmarket.simulation._summary")


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything that a run carries from one round to the next.

    Attributes:
        whitening: the public map of inputs on which the server's weights stand; None where inputs are as they are.
    """

    next_round: int
    server: ServerState
    wallets: Wallets
    remaining_micro: int
    records: tuple[RoundRecord, ...]
    whitening: Whitening | None = None


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """A finished run.

    Attributes:
        weights: (parameters,) the final model.
        wallets: every client's releases and what its wallet has left.
        types: the clients' true (v, ε) in the last round.
        task: what was learned from whose records.
        scores: every score of the final model on the test records; None where there are none.
        own_records: what the buyer's own records give for nothing; None where it has none.
        whitening: the public map of inputs on which it was trained, made of bought or public moments; None where
            inputs were as they are. `weights` are those of the task's own module all the same.
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
        """The same score of the best model of the buyer's own records, bought for nothing; None without any."""
        return None if self.own_records is None else self.own_records.scores[self.task.score.name]

    @property
    def gain(self) -> float | None:
        """How much better the score is than before, above 0 for better whatever its direction; None without it."""
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
        built = PrivateModel(self.task.build_model(self.config.seed), self.task.loss)
        return built.load(torch.from_numpy(self.weights)).eval()

    def save_model(self, path: str | Path) -> Path:
        """Writes the model to a .safetensors file, and a JSON card beside it; see `privmarket predict`."""
        return model_files.save_model(self, path)

    def export_onnx(self, path: str | Path) -> Path:
        """Writes the model as ONNX, where torch can export it."""
        return model_files.export_onnx(self, path)

    @cached_property
    def client_rows(self) -> list[ClientRow]:
        """One row per client, in the order of the task: sales, pay and total ε."""
        return summaries.client_table(self)

    def statement(self, client: str) -> ClientStatement:
        """What one client would be given: its sales, its pay, and what they add up to."""
        return statements.client_statement(self, client)

    def to_frame(self) -> pandas.DataFrame:
        """One row per round: bidders, sellers, ε, money, score; needs pandas."""
        return statements.rounds_frame(self)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The score over money, with what the buyer had before; saved to `path` if given. Needs matplotlib."""
        return statements.run_figure(self, path)

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
    def place(self) -> dict[str, int]:
        """Where each client stands in arrays."""
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


def to_checkpoint(config: FederationConfig, state: RunState) -> Checkpoint:
    """Weights, wallets, money and records together: they cannot get out of step."""
    server = state.server
    arrays = {"weights": server.weights, "direction": server.direction, "averaged": server.averaged}
    if state.whitening is not None:
        moments = state.whitening.moments
        known = {"mean": moments.mean, "covariance": moments.covariance, "noise": np.array(moments.deviation)}
        arrays |= {name: torch.from_numpy(array) for name, array in known.items()}
    data = {
        "config": config.to_json(),
        "next_round": state.next_round,
        "remaining_micro": state.remaining_micro,
        "wallets": state.wallets.to_json(),
        "records": [asdict(r) for r in state.records],
    }
    return Checkpoint({name: array.numpy() for name, array in arrays.items()}, data)


def from_checkpoint(saved: Checkpoint) -> RunState:
    """Restores the state that `to_checkpoint` wrote."""
    server = ServerState(*(torch.from_numpy(saved.arrays[n]) for n in ("weights", "direction", "averaged")))
    data = saved.data
    whitening = None
    if "covariance" in saved.arrays:
        known = saved.arrays
        whitening = Whitening(Moments(known["mean"], known["covariance"], float(known["noise"])))
    return RunState(
        data["next_round"],
        server,
        Wallets.from_json(data["wallets"]),
        data["remaining_micro"],
        tuple(RoundRecord(**r) for r in data["records"]),
        whitening,
    )
