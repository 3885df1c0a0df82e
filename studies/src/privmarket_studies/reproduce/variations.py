"""Federated runs with one thing changed: trust, how clients report, who holds how much, weights, models, scale."""

from __future__ import annotations

from typing import TypedDict

from privmarket._settings import identity
from privmarket.simulation._config import Training
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.rq4 import MATRIX_TRAINING, ROWS, federated_cell, quick_rounds

TITLE = "Variations: other trust, other clients, other models"
# Full information first: what every truthful rule is held against.
TRUTHFUL = ("jsam", "pac", "mean-field-menu", "ration")
BUDGETS = (10.0, 50.0)
TRUSTS = ("local", "aggregate")
STRATEGIES = ("truthful", "equilibrium", "learning")
LEARNED_AGAINST = ("jsam", "k-plus-one-price", "mean-field-menu", "mfg-regretnet")
AGGREGATIONS = ("epsilon", "epsilon-squared", "optimal")
WALLET = 8.0
# sizes, valuations: who holds how much, and where valuations come from.
CLIENTS: dict[str, dict[str, object]] = {
    "equal sizes, v drawn": {},
    "sizes by Dirichlet, v drawn": {"sizes": "dirichlet"},
    "equal sizes, v = Δ": {"valuations": "measured", "valuation_weights": "0,0,1"},
    "sizes by Dirichlet, v = Δ": {"sizes": "dirichlet", "valuations": "measured", "valuation_weights": "0,0,1"},
}
ALPHA = 0.1
# model: data set, rounds, share of a seller's records that a round draws.
MODELS = {"mlp": ("mnist", 40, 1.0), "cnn": ("cifar10", 20, 0.1)}
MODEL_ROWS = ("mean-field-menu", "mfg-regretnet", "pac", "no-noise")
_DIGITS: dict[str, object] = {**MATRIX_TRAINING, "features": "none", "clip_norm": 1.0, "server_rate": 1.0}


class Where(TypedDict, total=False):
    """Where a run of `run_of` differs from its defaults."""

    alpha: float
    budget: float
    wallet: float | None


def run_of(
    scale: Scale,
    row: str,
    seed: int,
    plan: dict[str, object] | None = None,
    *,
    alpha: float = ALPHA,
    budget: float = 50.0,
    wallet: float | None = None,
) -> Cell:
    """One run; without a changed plan it is the cell of RQ4."""
    dataset, clients, rounds, training = ("mnist", 100, 100, MATRIX_TRAINING)
    if scale.quick:
        dataset, clients, rounds, training, budget = ("digits", 20, quick_rounds(wallet), _DIGITS, budget / 5)
    cell = federated_cell(
        dataset, alpha, row, seed, rounds=rounds, training=training, clients=clients, budget=budget, wallet=wallet
    )
    changed = {name: value for name, value in (plan or {}).items() if value != _DEFAULTS.get(name)}
    return Cell(cell.kind, {**cell.config, "plan": changed}, seed, cell.cost) if changed else cell


_DEFAULTS = {"trust": "local", "strategy": "truthful", "aggregation": "epsilon-squared"}


def trust_cells(scale: Scale) -> list[Cell]:
    """What truthfulness costs against full information, under both trusts, for two budgets.

    Runs that are also in RQ4's matrix have its five seeds.
    """
    made = [
        run_of(scale, row, seed, {"trust": trust}, budget=budget)
        for seed in scale.seeds_or(3, 1)
        for trust in TRUSTS[::-1]
        for budget in (BUDGETS[1:] if scale.quick else BUDGETS[::-1])
        for row in TRUTHFUL
    ]
    return made + [run_of(scale, row, seed) for row in TRUTHFUL if row in ROWS for seed in scale.seeds_or(5, 1)]


def strategy_cells(scale: Scale) -> list[Cell]:
    """Clients that learn against rules of both kinds, and clients that look ahead under a lifetime cap."""
    seeds = scale.seeds_or(3, 1)
    learning = [
        run_of(scale, row, seed, {"strategy": strategy})
        for seed in seeds
        for row in LEARNED_AGAINST
        for strategy in ("truthful", "learning")
    ]
    ahead = [
        run_of(scale, "mean-field-menu", seed, {"strategy": strategy}, alpha=0.5, budget=BUDGETS[0], wallet=WALLET)
        for seed in seeds
        for strategy in _ways(scale)
    ]
    return learning + ahead


def _ways(scale: Scale) -> tuple[str, ...]:
    # Solving the clients' game takes half a minute, longer than all the rest of the quick form.
    return ("truthful", "learning") if scale.quick else STRATEGIES


def client_cells(scale: Scale) -> list[Cell]:
    """The cells of runs with unequal data, and with valuations that follow from it."""
    return [
        run_of(scale, row, seed, plan)
        for seed in scale.seeds_or(3, 1)
        for plan in CLIENTS.values()
        for row in ("pac", "mean-field-menu")
    ]


def weight_cells(scale: Scale) -> list[Cell]:
    """The paper's α ∝ ε, the inverse-variance α ∝ ε², and P2's optimum."""
    return [
        run_of(scale, "mean-field-menu", seed, {"aggregation": name})
        for seed in scale.seeds_or(3, 1)
        for name in AGGREGATIONS
    ]


def model_cells(scale: Scale) -> list[Cell]:
    """The paper's own models: an MLP on MNIST's pixels, a CNN on CIFAR-10.

    Beside each the same sellers without noise, and No-DP. A clipped gradient per record through the CNN costs
    milliseconds, so its rounds draw a tenth of each seller's records (Poisson); an epoch of everybody's records
    costs half a minute, so its No-DP has one seed.
    """
    if scale.quick:
        return []
    tried, once = scale.seeds_or(3, 1), scale.seeds_or(1, 1)
    bought = [model_cell(name, row, seed) for seed in tried for name in MODELS for row in MODEL_ROWS]
    plain = [model_cell(name, "no-dp", seed) for name, seeds in (("mlp", tried), ("cnn", once)) for seed in seeds]
    return bought + plain


def model_cell(model: str, row: str, seed: int) -> Cell:
    """A run of one of the paper's models: `row` is a mechanism, `no-noise` (the menu's sellers) or `no-dp`."""
    dataset, rounds, sampled = MODELS[model]
    rule, mode = ("mean-field-menu", row) if row == "no-noise" else (row, "private")
    return federated_cell(dataset, 0.5, rule, seed, rounds=rounds, training=pixels(model, sampled), mode=mode)


def pixels(model: str, sampling_rate: float) -> dict[str, object]:
    """A model on pixels, one step a round."""
    changes = {"model": model, "clip_norm": 1.0, "server_rate": 2.0, "final_rate": 0.2, "averaging": 0.9}
    return {**identity(Training()), **changes, "sampling_rate": sampling_rate}


def scale_cells(scale: Scale) -> list[Cell]:
    """A thousand clients with the same money each, and a hundred."""
    rows = ("mean-field-menu", "pac")
    hundred = [run_of(scale, row, seed, alpha=0.5) for seed in scale.seeds_or(3, 1) for row in rows]
    return [*many_cells(scale), *hundred]


def many_cells(scale: Scale) -> list[Cell]:
    """The cells of runs with a thousand clients instead of a hundred."""
    clients, budget = (100, 50.0) if scale.quick else (1000, 500.0)
    small, large = ("digits", quick_rounds(), _DIGITS), ("mnist", 100, MATRIX_TRAINING)
    dataset, rounds, training = small if scale.quick else large
    return [
        federated_cell(dataset, 0.5, row, seed, rounds=rounds, training=training, clients=clients, budget=budget)
        for seed in scale.seeds_or(3, 1)
        for row in ("mean-field-menu", "pac")
    ]


def cells(scale: Scale) -> list[Cell]:
    """All of them, the most telling first; runs that two sections share are listed once."""
    parts = (trust_cells, strategy_cells, client_cells, weight_cells, scale_cells, model_cells)
    made = [cell for part in parts for cell in part(scale)]
    return list({cell.slot: cell for cell in made}.values())
