"""The page of the variations: each section changes one thing in the runs of RQ4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from privmarket._figures import line_look, new_figure
from privmarket_studies.free_baseline import own_records_line
from privmarket_studies.reproduce import models_section, variations as runs
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.document import (
    NOT_COMPUTED,
    Block,
    Figure,
    ResultPage,
    Results,
    Table,
    Text,
    failure_text,
    prose,
)
from privmarket_studies.reproduce.statistics import DECIDED, Measured, compare
from privmarket_studies.reproduce.variations import TITLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_SEEDS = range(10)
_REFERENCE = "the reference"


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    found = _Found(results)
    blocks: list[Block] = [
        prose("variations-set-up", answer=_learned(found).markdown),
        Text(f"{own_records_line(('mnist', 'cifar10'), 'local')} ([How](../free-baseline/README.md).)"),
        Text("## The price of truthfulness, under both trusts"),
        Figure("variations-trust", _TRUST, lambda: _draw(found)),
        _trust_table(found),
        prose("variations-trust-words"),
        Text("## Clients that learn, clients that look ahead"),
        prose("variations-strategies"),
        _learning_table(found),
        _ahead_table(found),
        Text("## Unequal data, and valuations that follow from it"),
        prose("variations-clients"),
        _clients_table(found),
        Text("## How updates are weighted"),
        _weights_table(found),
        Text("## A thousand clients"),
        _scale_table(found),
        Text("## The paper's models"),
        *models_section.blocks(results),
        *failure_text(results),
    ]
    return ResultPage("variations", TITLE, blocks)


_TRUST = (
    "Final accuracy against money paid, mean over seeds; lines join the two budgets. `jsam` is told every client's "
    "cost."
)


class _Found:
    """Finished runs, by what was asked for."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.scale = Scale(quick=any(r.cell.config["dataset"] == "digits" for r in results.all("federated")))

    def by_seed(
        self, name: str, row: str, plan: dict[str, object] | None = None, **where: Unpack[runs.Where]
    ) -> dict[int, float]:
        """A figure of the runs of `variations.run_of`, by seed."""
        cells = {seed: runs.run_of(self.scale, row, seed, plan, **where) for seed in _SEEDS}
        return self.figures(name, cells.values())

    def figures(self, name: str, cells: Iterable[Cell]) -> dict[int, float]:
        """A figure of these cells, by seed; cells that were not computed are left out."""
        pairs = ((cell.seed, self.results.get(cell)) for cell in cells)
        return {seed: float(result[name]) for seed, result in pairs if result is not None and name in result}

    def absent(self, row: str) -> str:
        """What a table shows without a run."""
        stale = any(r.cell.config.get("mechanism") == row for r in self.results.outdated)
        return "older weights" if stale else NOT_COMPUTED


def _text(values: dict[int, float], spec: str, absent: str, factor: float = 1.0) -> str:
    return Measured.of(factor * v for v in values.values()).text(spec) if values else absent


def _seeds(values: dict[int, float]) -> str:
    return str(len(values))


def _difference(a: dict[int, float], b: dict[int, float]) -> str:
    """a − b in points with its 95 % interval, over shared seeds."""
    points = compare({s: 100 * v for s, v in a.items()}, {s: 100 * v for s, v in b.items()})
    return NOT_COMPUTED if points is None else points.text()


def _entry(a: dict[int, float], b: dict[int, float]) -> str:
    """The difference of two runs, in the form that a table shows."""
    points = compare({s: 100 * v for s, v in a.items()}, {s: 100 * v for s, v in b.items()})
    return NOT_COMPUTED if points is None else points.entry()


def _trust_table(found: _Found) -> Table:
    rows = []
    for trust in runs.TRUSTS:
        for budget in runs.BUDGETS:
            best = found.by_seed("accuracy", "jsam", {"trust": trust}, budget=budget)
            for row in runs.TRUTHFUL:
                accuracy, spent, sellers, largest = (
                    found.by_seed(name, row, {"trust": trust}, budget=budget)
                    for name in ("accuracy", "spent", "sellers_per_round", "largest_epsilon_spent")
                )
                absent = found.absent(row)
                rows.append(
                    [
                        trust,
                        f"{budget:g}",
                        row,
                        _text(accuracy, ".2f", absent, 100),
                        _REFERENCE if row == "jsam" else _entry(accuracy, best),
                        _text(spent, ",.0f", absent),
                        _text(sellers, ".0f", absent),
                        _text(largest, ".1f", absent),
                        _seeds(accuracy),
                    ]
                )
    head = ("trust", "budget a round", "mechanism", "accuracy, %", "points against jsam")
    columns = (*head, "spent", "sellers a round", "largest total ε", "seeds")
    caption = f"MNIST, α = 0.1, 100 clients, 100 rounds, logistic model on fixed features; {DECIDED}"
    return Table("variations-trust", caption, columns, rows)


def _learned(found: _Found) -> Text:
    def price(row: str, strategy: str) -> str:
        plans: list[dict[str, object]] = [{"strategy": way} for way in ("truthful", "learning")]
        each = {plan["strategy"]: _prices(found, row, plan) for plan in plans}
        shared = each["truthful"].keys() & each["learning"].keys()
        return _text({seed: each[strategy][seed] for seed in shared}, ".3f", NOT_COMPUTED)

    def against(row: str, plan: dict[str, object]) -> str:
        return _difference(found.by_seed("accuracy", row, plan), found.by_seed("accuracy", row))

    def trust_price(row: str, trust: str, budget: float) -> str:
        a, b = (found.by_seed("accuracy", r, {"trust": trust}, budget=budget) for r in (row, "jsam"))
        return _difference(a, b)

    computed = all(found.by_seed("accuracy", row, {"strategy": "learning"}) for row in ("jsam", "mean-field-menu"))
    measured = all(found.by_seed("accuracy", "mean-field-menu", plan) for plan in runs.CLIENTS.values())
    return prose(
        "variations-learned",
        price=price,
        against=against,
        clients=runs.CLIENTS,
        computed=computed,
        measured=measured,
        trust_price=trust_price,
        low=runs.BUDGETS[0],
    )


def _strategy_row(found: _Found, row: str, plan: dict[str, object], **where: Unpack[runs.Where]) -> list[str]:
    absent = found.absent(row)

    def text(name: str, spec: str, factor: float = 1.0) -> str:
        return _text(found.by_seed(name, row, plan, **where), spec, absent, factor)

    spent, surplus = (found.by_seed(name, row, plan, **where) for name in ("spent", "surplus"))
    partly = f" ({len(surplus)} of {len(spent)} seeds)" if 0 < len(surplus) < len(spent) else ""
    return [
        text("accuracy", ".2f", 100),
        _text(_prices(found, row, plan, **where), ".3f", absent),
        text("mean_epsilon", ",.0f", _sales(found, row, plan, **where)),
        text("spent", ",.0f"),
        # Some cells of RQ4 are older than this figure.
        _text(surplus, ",.0f", "not recorded" if spent else absent) + partly,
        text("largest_epsilon_spent", ".1f"),
        _seeds(spent),
    ]


def _sales(found: _Found, row: str, plan: dict[str, object], **where: Unpack[runs.Where]) -> int:
    """The most sales that such a run can have: clients times rounds."""
    cell = runs.run_of(found.scale, row, 0, plan, **where)
    return int(cell.config["clients"] * cell.config["rounds"])


def _prices(found: _Found, row: str, plan: dict[str, object], **where: Unpack[runs.Where]) -> dict[int, float]:
    """Money per unit of ε, by seed."""
    sales = _sales(found, row, plan, **where)
    spent, mean = (found.by_seed(name, row, plan, **where) for name in ("spent", "mean_epsilon"))
    return {s: spent[s] / (sales * mean[s]) for s in spent.keys() & mean.keys() if mean[s] > 0}


_STRATEGY_COLUMNS = (
    "accuracy, %",
    "price per ε",
    "ε bought",
    "spent",
    "clients' surplus",
    "largest total ε",
    "seeds",
)


def _learning_table(found: _Found) -> Table:
    rows = [
        [row, way, *_strategy_row(found, row, {"strategy": way})]
        for row in runs.LEARNED_AGAINST
        for way in ("truthful", "learning")
    ]
    caption = "MNIST, α = 0.1, 100 clients, B = 50, 100 rounds; mean ± std over seeds"
    return Table("variations-learning", caption, ("mechanism", "clients", *_STRATEGY_COLUMNS), rows)


def _ahead_table(found: _Found) -> Table:
    where: runs.Where = {"alpha": 0.5, "budget": runs.BUDGETS[0], "wallet": runs.WALLET}
    rows = [[way, *_strategy_row(found, "mean-field-menu", {"strategy": way}, **where)] for way in runs.STRATEGIES]
    caption = (
        f"Under a lifetime cap of ε = {runs.WALLET:g}: mean-field-menu, MNIST, α = 0.5, 100 clients, "
        f"B = {runs.BUDGETS[0]:g}, 100 rounds; mean ± std over seeds"
    )
    return Table("variations-ahead", caption, ("clients", *_STRATEGY_COLUMNS), rows)


def _clients_table(found: _Found) -> Table:
    rows = []
    for name, plan in runs.CLIENTS.items():
        for row in ("pac", "mean-field-menu"):
            absent = found.absent(row)
            accuracy = found.by_seed("accuracy", row, plan)
            texts = [
                _text(accuracy, ".2f", absent, 100),
                _text(found.by_seed("sellers_per_round", row, plan), ".0f", absent),
                _text(found.by_seed("mean_epsilon", row, plan), ".2f", absent),
                _text(found.by_seed("spent", row, plan), ",.0f", absent),
            ]
            rows.append([name, row, *texts, _seeds(accuracy)])
    columns = ("clients", "mechanism", "accuracy, %", "sellers a round", "mean ε a round", "spent", "seeds")
    return Table("variations-clients", "MNIST, α = 0.1, 100 clients, B = 50, 100 rounds", columns, rows)


def _weights_table(found: _Found) -> Table:
    base = found.by_seed("accuracy", "mean-field-menu", {"aggregation": "epsilon-squared"})
    rows = []
    for name in runs.AGGREGATIONS:
        accuracy = found.by_seed("accuracy", "mean-field-menu", {"aggregation": name})
        against = _REFERENCE if name == "epsilon-squared" else _entry(accuracy, base)
        rows.append([name, _text(accuracy, ".2f", NOT_COMPUTED, 100), against, _seeds(accuracy)])
    columns = ("weights", "accuracy, %", "points against ε²", "seeds")
    caption = f"mean-field-menu, local trust, MNIST, α = 0.1, 100 clients, B = 50, 100 rounds; {DECIDED}"
    return Table("variations-weights", caption, columns, rows)


def _scale_table(found: _Found) -> Table:
    rows = []
    for row in ("mean-field-menu", "pac"):
        hundred = found.by_seed("accuracy", row, alpha=0.5)
        cells = [cell for cell in runs.many_cells(found.scale) if cell.config["mechanism"] == row]
        many = found.figures("accuracy", cells)
        rows.append(
            [
                row,
                _text(hundred, ".2f", found.absent(row), 100),
                _text(many, ".2f", found.absent(row), 100),
                _text(found.figures("sellers_per_round", cells), ".0f", found.absent(row)),
                _text(found.figures("largest_epsilon_spent", cells), ".1f", found.absent(row)),
                f"{len(hundred)} / {len(many)}",
            ]
        )
    columns = ("mechanism", "100 clients, %", "1,000 clients, %", "sellers of 1,000", "largest total ε", "seeds")
    caption = "MNIST, α = 0.5, 100 rounds, the same money per client (B = 50 and 500)"
    return Table("variations-scale", caption, columns, rows)


def _draw(found: _Found) -> Drawing:
    drawing = new_figure(9.0, 4.2)
    panels = drawing.subplots(1, 2, sharey=True)
    for axes, trust in zip(panels, runs.TRUSTS, strict=True):
        for row in runs.TRUTHFUL:
            points = []
            for budget in runs.BUDGETS:
                accuracy, spent = (
                    found.by_seed(name, row, {"trust": trust}, budget=budget) for name in ("accuracy", "spent")
                )
                if accuracy:
                    points.append(
                        (Measured.of(spent.values()).mean, Measured.of(100 * v for v in accuracy.values()))
                    )
            if points:
                at, mean, std = [x for x, _ in points], [m.mean for _, m in points], [m.std for _, m in points]
                axes.errorbar(at, mean, yerr=std, lw=1.3, label=row, **line_look(row))
        axes.set(xscale="log", title=f"{trust} trust", xlabel="money paid in all")
        axes.set_xticks([1_000, 2_000, 5_000], ["1,000", "2,000", "5,000"])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("final test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return drawing
