"""A finished run for people: what one client is given, the rounds as a table, the score over money as a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privmarket._counted import counted
from privmarket._lazy import late, require
from privmarket.rounds import MICRO

if TYPE_CHECKING:
    import pandas
    from matplotlib import figure as figures
    from matplotlib.figure import Figure

    from privmarket.simulation._state import RunResult
else:
    figures = late("matplotlib.figure")
    pandas = late("pandas")
    figures = late("matplotlib.figure")


@dataclass(frozen=True)
class ClientStatement:
    """What a run did to one client.

    Attributes:
        client: its name.
        sales: of each round in which it sold: round (from 1), ε, and money.
        paid: money in all.
        epsilon: what all its sales add up to at δ; None in a run without noise.
        epsilon_if_others_collude: the same if every other seller of every round told the server its noise; None
            under local trust, where it would change nothing.
        wallet_left: share of its wallet that is left; None without a limit.
        unit: what is protected.
        honest_share: of a round's sellers, on which `epsilon` rests under aggregate trust.
        rounds_of_moments: so many of the first rounds sold moments of the inputs instead of updates.
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


def client_statement(result: RunResult, client: str) -> ClientStatement:
    """The statement of one client, by name."""
    place = result.task.place(client)
    row = result.client_rows[place]
    sold = result.sold_epsilon[:, place]
    paid = result.paid_micro[:, place]
    sales = tuple(
        (int(number) + 1, float(sold[number]), int(paid[number]) / MICRO) for number in np.flatnonzero(sold)
    )
    config = result.config
    return ClientStatement(
        client=client,
        sales=sales,
        paid=row["paid"],
        epsilon=row["epsilon_spent"],
        epsilon_if_others_collude=row["epsilon_if_others_collude"],
        delta=config.delta,
        wallet_left=row["wallet_left"],
        unit=result.task.unit,
        honest_share=config.honest_share if config.trust == "aggregate" else None,
        rounds_of_moments=result.rounds_of_moments,
    )


def rounds_frame(result: RunResult) -> pandas.DataFrame:
    """One row per round."""
    require("pandas", "pandas")
    rows = [
        {
            "round": record.number + 1,
            "bidders": record.bidders,
            "sellers": record.sellers,
            "epsilon": record.total_epsilon,
            "paid": record.spent_micro / MICRO,
            result.task.score.name: record.accuracy,
        }
        for record in result.records
    ]
    return pandas.DataFrame(rows)


def run_figure(result: RunResult, path: str | Path | None = None) -> Figure:
    """The headline score on the test records against money paid so far."""
    require("matplotlib", "plots")
    score = result.task.score
    money = np.cumsum([record.spent_micro / MICRO for record in result.records])
    measured = [
        (float(paid), record.accuracy)
        for paid, record in zip(money, result.records, strict=True)
        if record.accuracy is not None
    ]
    figure = figures.Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    x = [paid for paid, _ in measured]
    axes.plot(x, [value for _, value in measured], "o-", color="#D55E00", label="bought")
    if result.score_before is not None:
        assert result.own_records is not None
        axes.axhline(
            result.score_before,
            color="k",
            ls="--",
            lw=0.9,
            label=f"own {counted(result.own_records.records, 'record')}",
        )
    axes.set(xlabel="money paid", ylabel=f"{score.heading} (test records)", title=result.task.name)
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
