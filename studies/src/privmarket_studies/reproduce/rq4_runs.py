"""The federated cells of RQ4, sorted by what they are: the matrix, matched, capped, literal, and larger runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from privmarket.simulation._config import MODES
from privmarket_studies.reproduce.cache import Record
from privmarket_studies.reproduce.cells import Result
from privmarket_studies.reproduce.document import NOT_COMPUTED, OUTDATED, Results
from privmarket_studies.reproduce.rq4 import ROWS
from privmarket_studies.reproduce.statistics import Measured


@dataclass(frozen=True)
class Group:
    """Runs that differ in mechanism and seed only; alpha is None for the matrix, which has several."""

    dataset: str
    model: str
    rounds: int
    clients: int
    budget: float
    alpha: float | None = None


def partition_name(alpha: float | None) -> str:
    """The name that tables give to a split of the records."""
    return "IID" if alpha is None else f"α = {alpha:g}"


def row_of(record: Record) -> str:
    """The name of a record's row in tables: its mechanism, or `no-dp`."""
    return str(record.cell.config["mechanism"]) or "no-dp"


class Runs:
    """The finished runs of RQ4, found by row, split and setting."""

    def __init__(self, results: Results) -> None:
        self._runs = [r for r in results.all("federated") if r.result is not None]
        self._refused = [r for r in results.outdated if r.cell.kind == "federated"]
        self._outdated = {row_of(r) for r in self._refused}
        plain = [r for r in self._runs if _kind(r) == "plain" and row_of(r) != "no-dp"]
        groups = Counter(_group(r) for r in plain)
        self.main: Group | None = groups.most_common(1)[0][0] if groups else None
        self.seeds = len({r.cell.seed for r in plain if _group(r) == self.main})
        found = {row_of(r) for r in self._runs if self._in_main(r)}
        self.rows = [row for row in ROWS if row in found | self._outdated]
        others = {(_group(r), r.cell.config["alpha"]) for r in plain if _group(r) != self.main}
        self.others = sorted(
            (Group(g.dataset, g.model, g.rounds, g.clients, g.budget, alpha) for g, alpha in others),
            key=lambda g: (g.dataset != "mnist", g.dataset, -(g.alpha or 9)),
        )

    def main_text(self) -> str:
        """The settings of the matrix in a few words."""
        g = self.main
        return (
            "" if g is None else f"{g.dataset}, {g.clients} clients, B = {g.budget:g}, {g.rounds} rounds, {g.model}"
        )

    def _in_main(self, record: Record) -> bool:
        """Whether a record belongs to the matrix: its data set, model, clients and money; No-DP with any rounds."""
        g, c = self.main, record.cell.config
        if g is None or _kind(record) != "plain" or (c["dataset"], c["training"]["model"]) != (g.dataset, g.model):
            return False
        if (c["clients"], c["budget"]) != (g.clients, g.budget):
            return False
        return row_of(record) == "no-dp" or c["rounds"] == g.rounds

    def absent(self, row: str) -> str:
        """What a table shows without a run: `older weights` if the rule's runs were refused."""
        return OUTDATED if row in self._outdated else NOT_COMPUTED

    def records(self, row: str, alpha: float | None) -> list[Result]:
        """The results of this row of the matrix, one per seed."""
        return [
            r.result
            for r in self._runs
            if self._in_main(r) and row_of(r) == row and r.cell.config["alpha"] == alpha and r.result
        ]

    def measured(self, name: str, row: str, alpha: float | None) -> Measured | None:
        """A figure of the matrix over seeds."""
        return _over([r[name] for r in self.records(row, alpha)])

    def by_seed(self, name: str, row: str, alpha: float | None) -> dict[int, float]:
        """A figure of the matrix, by seed."""
        mine = (r for r in self._runs if self._in_main(r) and row_of(r) == row and r.cell.config["alpha"] == alpha)
        return {r.cell.seed: r.result[name] for r in mine if r.result}

    def curve(self, row: str, alpha: float | None) -> dict[int, Measured]:
        """Accuracy by round, where every seed measured it."""
        return _shared_curve([r["curve"] for r in self.records(row, alpha)])

    def curve_in(self, group: Group, row: str) -> dict[int, Measured]:
        """Accuracy by round in a larger run, where every seed measured it."""
        return _shared_curve([r.result["curve"] for r in self._runs if r.result and _belongs(r, group, row)])

    def beside_paper(self, dataset: str, alpha: float, row: str) -> Measured | None:
        """The matrix where it is of this data set, otherwise the runs on other data."""
        if self.main and self.main.dataset == dataset:
            return self.measured("accuracy", row, alpha)
        for group in self.others:
            if (group.dataset, group.alpha) == (dataset, alpha) and (found := self.in_group(group, row)):
                return found
        return None

    def in_group(self, group: Group, row: str) -> Measured | None:
        """Final accuracy in a larger run."""
        return _over([r.result["accuracy"] for r in self._runs if r.result and _belongs(r, group, row)])

    def everywhere(self, dataset: str, row: str) -> list[Measured]:
        """Final accuracies of a row on a data set: every split of the matrix, and every larger run."""
        found = [self.in_group(group, row) for group in self.others if group.dataset == dataset]
        if self.main is not None and self.main.dataset == dataset:
            splits = {r.cell.config["alpha"] for r in self._runs if self._in_main(r)}
            found += [self.measured("accuracy", row, alpha) for alpha in splits]
        return [one for one in found if one is not None]

    def outdated_in(self, group: Group, row: str) -> bool:
        """Whether a larger run was refused because it is older than the weights."""
        return any(_belongs(r, group, row) for r in self._refused)

    def seeds_text(self, kind: str) -> str:
        """How many seeds the matrix has, and how many the `matched` or `capped` runs have."""
        others = len({r.cell.seed for r in self._runs if _kind(r) == kind})
        return f"mean ± std over {self.seeds} seeds; {kind} runs: {others} seed{'s' if others != 1 else ''}"

    def _special(self, kind: str, row: str) -> list[Record]:
        return [r for r in self._runs if _kind(r) == kind and row_of(r) == row]

    @property
    def matched_at(self) -> float | None:
        """The mean ε that matched runs sell."""
        return next((r.cell.config["matched"] for r in self._runs if _kind(r) == "matched"), None)

    def matched(self, name: str, row: str) -> Measured | None:
        """A figure of the matched runs."""
        return _over([r.result[name] for r in self._special("matched", row) if r.result])

    def matched_range(self, row: str) -> tuple[float, float]:
        """The least and the largest mean ε of any round of any matched run."""
        pairs = [r.result["mean_epsilon_range"] for r in self._special("matched", row) if r.result]
        return min(p[0] for p in pairs), max(p[1] for p in pairs)

    @property
    def wallets(self) -> list[float]:
        """Lifetime caps that were tried."""
        return sorted({r.cell.config["wallet"] for r in self._runs if _kind(r) == "capped"})

    def capped(self, name: str, row: str, cap: float) -> Measured | None:
        """A figure of the runs under a lifetime cap."""
        found = [r for r in self._special("capped", row) if r.cell.config["wallet"] == cap]
        return _over([r.result[name] for r in found if r.result])

    def literal(self) -> dict[str, str] | None:
        """The figures of the paper-literal run, in which noise is added to the weights; None if there is none."""
        for r in self._runs:
            if _kind(r) == "literal" and r.result:
                rounds = r.cell.config["rounds"]
                return {"accuracy": f"{100 * r.result['accuracy']:.1f}", "rounds": str(rounds)}
        return None

    def target(self, alpha: float | None) -> float:
        """95 % of the accuracy that No-DP reaches on this split."""
        plain = self.measured("accuracy", "no-dp", alpha)
        return 0.95 * plain.mean if plain else 0.9

    @staticmethod
    def money_until(result: Result, target: float) -> float | None:
        """Money spent at the first measured round that reaches the target."""
        for number in sorted(result["curve"], key=int):
            if result["curve"][number] >= target:
                return float(result["money"][number])
        return None


def _kind(record: Record) -> str:
    config = record.cell.config
    if config.get("plan"):
        return "varied"
    if MODES[config["mode"]].on_pixels:  # the paper as printed
        return "literal"
    if config["matched"] is not None:
        return "matched"
    return "plain" if config["wallet"] is None else "capped"


def _belongs(record: Record, group: Group, row: str) -> bool:
    config = record.cell.config
    if _kind(record) != "plain" or row_of(record) != row or config["alpha"] != group.alpha:
        return False
    same = (config["dataset"], config["training"]["model"]) == (group.dataset, group.model)
    return same and (row == "no-dp" or config["rounds"] == group.rounds)


def _group(record: Record) -> Group:
    c = record.cell.config
    return Group(c["dataset"], c["training"]["model"], c["rounds"], c["clients"], c["budget"])


def _shared_curve(found: list[dict[str, float]]) -> dict[int, Measured]:
    shared = sorted((n for n in (found[0] if found else {}) if all(n in c for c in found)), key=int)
    return {int(n): Measured.of(c[n] for c in found) for n in shared}


def _over(values: list[float]) -> Measured | None:
    known = [v for v in values if v is not None]
    return Measured.of(known) if known else None
