"""Would somebody else have had a better free baseline? Models of the own records by scikit-learn alone.

The free baseline of the study chooses its plain models by cross-validated accuracy. Where one class is rare and the
score is an AUC, accuracy hardly tells models apart, so here the same records are fitted by another library, each
model tuned by log loss or by AUC in cross-validation. No private record is read; test records give the AUCs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.what_money_buys.runs import task_of

FOLDS = 5
Array = NDArray[np.float64]


def run(config: Config, seed: int, scratch: Path) -> Result:
    """AUC on test records of each model: `auc`, by its name.

    Config: a task of two classes, public.
    """
    from sklearn.metrics import log_loss, roc_auc_score

    del scratch
    task = task_of(config, seed)
    assert task.public is not None
    assert task.test is not None
    known, truth = _rows(task.public.inputs), np.asarray(task.public.labels, dtype=np.int64)
    new = _rows(task.test.inputs)

    def by_loss(right: NDArray[np.int64], told: Array) -> float:
        return -float(log_loss(right, told))

    def by_area(right: NDArray[np.int64], told: Array) -> float:
        return float(roc_auc_score(right, told))

    tuned = {
        "logistic regression, by log loss": (_logistic(), by_loss),
        "logistic regression, by AUC": (_logistic(), by_area),
        "ridge, by AUC": (_ridge(), by_area),
        "kernel ridge, by AUC": (_kernel_ridge(known.shape[1]), by_area),
    }
    found = {}
    for name, (models, good) in tuned.items():
        scores = [good(truth, _held_out(make, known, truth, seed)) for make in models]
        best = models[int(np.argmax(scores))]()
        found[name] = float(roc_auc_score(task.test.labels, _told(best.fit(known, truth), new)))
    return {"auc": found}


def _rows(inputs: NDArray[np.generic]) -> Array:
    return np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)


def _told(model: Any, inputs: Array) -> Array:
    """(rows,) probability of the second class, or the fitted value of its indicator."""
    told = model.predict_proba(inputs)[:, 1] if hasattr(model, "predict_proba") else model.predict(inputs)
    return np.asarray(told, dtype=np.float64)


def _held_out(make: Callable[[], Any], inputs: Array, labels: NDArray[np.int64], seed: int) -> Array:
    """(rows,) what models told that were fitted without the row's fold."""
    from sklearn.model_selection import StratifiedKFold

    told = np.zeros(len(labels))
    for fitted, rest in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(inputs, labels):
        told[rest] = _told(make().fit(inputs[fitted], labels[fitted]), inputs[rest])
    return told


def _logistic() -> Sequence[Callable[[], Any]]:
    from sklearn.linear_model import LogisticRegression

    return [_scaled(LogisticRegression, C=float(c), max_iter=3000) for c in np.geomspace(1e-3, 1e2, 11)]


def _ridge() -> Sequence[Callable[[], Any]]:
    from sklearn.linear_model import Ridge

    return [_scaled(Ridge, alpha=float(a)) for a in np.geomspace(1e-1, 1e4, 11)]


def _kernel_ridge(columns: int) -> Sequence[Callable[[], Any]]:
    from sklearn.kernel_ridge import KernelRidge

    widths = np.geomspace(0.01, 1.0, 5) / columns
    grid = [(float(a), float(g)) for a in np.geomspace(1e-2, 1e2, 7) for g in widths]
    return [_scaled(KernelRidge, kernel="rbf", alpha=a, gamma=g) for a, g in grid]


def _scaled(model: Callable[..., Any], **settings: Any) -> Callable[[], Any]:
    """A maker of the model on standardised columns."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return lambda: make_pipeline(StandardScaler(), model(**settings))
