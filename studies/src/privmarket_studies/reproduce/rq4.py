"""RQ4: how accurate a model the market buys, and how close the solved game is to an equilibrium."""

from __future__ import annotations

from functools import partial

from privmarket._settings import identity
from privmarket.simulation._config import Training
from privmarket.simulation._pool import plain_rate
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.federated import training_settings

# Rules that keep a budget: a round holds the money in escrow, and an overspending rule cannot clear.
ROWS = (
    "pac",
    "k-plus-one-price",
    "csra",
    "jsam",
    "mfg-pricing:literal",
    "proportional-share",
    "mean-field-menu",
    "mfg-menunet",
    "regretnet",
    "dm-regretnet",
    "mfg-regretnet",
    "no-dp",
)
FEW = ("pac", "csra", "mean-field-menu", "mfg-regretnet", "no-dp")
ALPHAS = (None, 0.5, 0.1)
MATCHED_EPSILON = 0.4
WALLETS = (2.0, 8.0)
# The matrix: a linear model on the recommended features, 2 to 3 times faster than the recommended MLP and, on the
# validation records of docs/results/federated/selection, about a point less accurate.
MATRIX_TRAINING: dict[str, object] = {
    "model": "logistic",
    "features": "centred-gradients",
    "steps": 1,
    "sampling_rate": 1.0,
    "clip_norm": 4.0,
    "local_rate": 1.0,
    "server_rate": 4.0,
    "final_rate": 0.1,
    "momentum": 0.9,
    "averaging": 0.9,
}
NASH_SIZES = (10, 30, 100, 300)


def cells(scale: Scale) -> list[Cell]:
    """The matrix first, seed by seed, so that a stopped run has whole columns; then the smaller studies."""
    made = _quick_cells(scale) if scale.quick else _full_cells(scale)
    sizes = NASH_SIZES[:3] if scale.quick else NASH_SIZES
    grid, runs = ("16x16x20", 2) if scale.quick else ("48x48x40", 5)
    made += [
        Cell(
            "nash",
            {"population": p, "rule": "mean-field-menu", "clients": n, "grid": grid, "runs": runs},
            seed,
            0.5 + n / 300,
        )
        for p in ("iid", "non-iid")
        for n in sizes
        for seed in scale.seeds_or(3, 2)
    ]
    return made


def _full_cells(scale: Scale) -> list[Cell]:
    logistic = MATRIX_TRAINING
    # Five seeds for the rows of the paper's Table V, three for what goes beyond it.
    paired, seeds = scale.seeds_or(5, 2), scale.seeds_or(3, 2)
    made = [
        federated_cell("mnist", alpha, row, seed, rounds=100, training=logistic)
        for alpha in (0.5, 0.1, None)
        for seed in paired
        for row in ROWS
    ]
    made += [
        federated_cell("mnist", 0.1, row, seed, rounds=100, training=logistic, matched=MATCHED_EPSILON)
        for seed in seeds
        for row in ROWS[:-1]
    ]
    made += [
        federated_cell("mnist", 0.5, row, seed, rounds=100, training=logistic, wallet=wallet)
        for seed in seeds
        for wallet in WALLETS
        for row in FEW[:-1]
    ]
    made += [
        federated_cell(dataset, 0.5, row, seed, rounds=100, training=training_settings(dataset, model="logistic"))
        for dataset, rows, tried in (("cifar10", ROWS, paired), ("fashion-mnist", FEW, seeds))
        for seed in tried
        for row in rows
    ]
    made += [
        federated_cell("mnist", alpha, row, seed, rounds=200, training=training_settings("mnist"))
        for alpha in (0.5, 0.1)
        for seed in seeds
        for row in ("mean-field-menu", "mfg-regretnet")
    ]
    made.append(federated_cell("mnist", 0.5, "mean-field-menu", 0, rounds=5, training=_pixels(), mode="literal"))
    return made


def _quick_cells(scale: Scale) -> list[Cell]:
    small = partial(federated_cell, "digits", clients=20, budget=10.0, training=training_settings("digits"))
    seeds = scale.seeds_or(2, 2)
    made = [small(alpha, row, s, rounds=quick_rounds()) for s in seeds for alpha in ALPHAS for row in ROWS]
    made += [
        small(0.1, row, s, rounds=quick_rounds(), matched=MATCHED_EPSILON / 2) for s in seeds for row in ROWS[:-1]
    ]
    made += [
        small(0.5, row, s, rounds=quick_rounds(w), wallet=w) for s in seeds for w in WALLETS for row in FEW[:-1]
    ]
    logistic = {**_pixels(), "model": "logistic"}
    return [*made, small(0.5, "mean-field-menu", 0, rounds=2, training=logistic, mode="literal")]


def quick_rounds(wallet: float | None = None) -> int:
    """Rounds of a quick run: few, and enough for lifetime caps to be reached."""
    return 3 if wallet is None else 6


def _pixels() -> dict[str, object]:
    """The training settings of the paper's MLP on pixels."""
    return identity(Training())


def federated_cell(
    dataset: str,
    alpha: float | None,
    row: str,
    seed: int,
    *,
    rounds: int,
    training: dict[str, object],
    clients: int = 100,
    budget: float = 50.0,
    wallet: float | None = None,
    matched: float | None = None,
    mode: str = "private",
) -> Cell:
    """A run of RQ4: `row` is a mechanism or `no-dp`, `alpha` None for an even split of the records."""
    plain = row == "no-dp"
    config = {
        "dataset": dataset,
        "alpha": alpha,
        "mechanism": "" if plain else row,
        "settings": _settings(row, training),
        "mode": "no-dp" if plain else mode,
        "clients": clients,
        "budget": budget,
        "rounds": rounds,
        "wallet": wallet,
        "matched": matched,
        "training": training,
    }
    heavy = 3.0 if training["model"] != "logistic" else 1.0
    return Cell("federated", config, seed, cost=rounds / 100 * heavy)


def _settings(row: str, training: dict[str, object]) -> dict[str, object]:
    if row == "no-dp":
        # Names the step size of plain FedAvg, so that runs with another one are other cells.
        return {"plain_rate": plain_rate(str(training["model"]), str(training["features"]))}
    return {"objective": "aggregation-error"} if row == "mfg-menunet" else {}
