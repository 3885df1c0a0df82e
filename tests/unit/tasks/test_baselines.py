"""The buyer's own records alone: known answers from another library, and no leak across folds."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge

from privmarket.errors import DataError, UnknownNameError
from privmarket.tasks import _baselines as baselines, own_records_alone


def blobs(rng, records=300, features=6, labels=3, apart=1.2):
    """Gaussian clouds, one per label, that overlap."""
    centres = apart * rng.standard_normal((labels, features))
    codes = rng.integers(labels, size=records)
    return centres[codes] + rng.standard_normal((records, features)), codes


def by_name(models):
    return {model.name: model for model in models}


def test_every_model_is_the_one_another_library_fits():
    rng = np.random.default_rng(1)
    rows, codes = blobs(rng, records=420)
    new = rng.standard_normal((200, rows.shape[1]))
    names = np.array(["ant", "bee", "cat"])
    models = by_name(own_records_alone(rows, names[codes]))
    assert set(models) == {"ridge", "kernel ridge", "logistic regression"}
    one_hot = np.eye(3)[codes]
    scaling = baselines._Scaling.of(rows, each_column=models["ridge"].settings["columns"] == "standardised")
    x = scaling(rows)
    x_new = scaling(new)

    ridge = Ridge(alpha=len(x) * models["ridge"].settings["penalty"]).fit(x, one_hot)
    assert (models["ridge"].predict(new) == names[ridge.predict(x_new).argmax(axis=1)]).all()

    logistic = LogisticRegression(C=1 / (len(x) * models["logistic regression"].settings["penalty"]), tol=1e-8)
    agree = models["logistic regression"].predict(new) == names[logistic.fit(x, codes).predict(x_new)]
    assert agree.mean() >= 0.99

    settings = models["kernel ridge"].settings
    scaling = baselines._Scaling.of(rows, each_column=settings["columns"] == "standardised")
    x = scaling(rows)
    x_new = scaling(new)
    apart = ((x[:, None] - x) ** 2).sum(axis=2)
    median = np.median(apart[np.triu_indices(len(x), 1)])
    kernel = KernelRidge(
        alpha=len(x) * settings["penalty"], kernel="rbf", gamma=0.5 / settings["width"] ** 2 / median
    )
    kernel.fit(x, one_hot - one_hot.mean(axis=0))
    values = kernel.predict(x_new) + one_hot.mean(axis=0)
    assert (models["kernel ridge"].predict(new) == names[values.argmax(axis=1)]).all()


def test_the_best_by_cross_validation_comes_first_and_scores_are_of_new_records():
    rows, codes = blobs(np.random.default_rng(2))
    models = own_records_alone(rows[:200], codes[:200])
    scores = [model.cross_validated for model in models]
    assert scores == sorted(scores, reverse=True)
    for model in models:
        assert model.score(rows[200:], codes[200:]) == (model.predict(rows[200:]) == codes[200:]).mean()
        assert model.records == 200


def test_a_line_is_found_and_a_circle_needs_the_kernel():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((400, 3))
    line = by_name(own_records_alone(rows, rows @ [1.0, -2.0, 0.5] + 7.0, goal="regression"))
    assert set(line) == {"ridge", "kernel ridge"}
    assert line["ridge"].cross_validated > 0.9999
    assert line["ridge"].predict(np.zeros((1, 3))) == pytest.approx(7.0, abs=0.01)

    circle = own_records_alone(rows, (rows**2).sum(axis=1), goal="regression")
    assert circle[0].name == "kernel ridge"
    assert circle[0].cross_validated > 0.95
    assert by_name(circle)["ridge"].cross_validated < 0.1


def test_more_columns_than_records_give_the_same_ridge():
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((40, 90))
    values = rows[:, 0] + 0.1 * rng.standard_normal(40)
    model = by_name(own_records_alone(rows, values, goal="regression"))["ridge"]
    scaling = baselines._Scaling.of(rows, each_column=model.settings["columns"] == "standardised")
    theirs = Ridge(alpha=40 * model.settings["penalty"]).fit(scaling(rows), values)
    new = rng.standard_normal((5, 90))
    np.testing.assert_allclose(model.predict(new), theirs.predict(scaling(new)), rtol=1e-8)


def best_on_noise():
    """The best cross-validated accuracy where labels have nothing to do with inputs; 1/2 is chance."""
    rng = np.random.default_rng(5)
    models = own_records_alone(rng.standard_normal((300, 80)), rng.integers(2, size=300))
    return models[0].cross_validated


def test_labels_without_a_reason_are_not_learned(monkeypatch):
    """Seeded. The limit is 5 standard deviations of 300 coin tosses above 1/2, for the best of some 20 fits."""
    limit = 0.5 + 5 * 0.5 / np.sqrt(300)
    assert best_on_noise() < limit
    everything = lambda problem: [(np.arange(len(problem.targets)),) * 2]  # noqa: E731
    monkeypatch.setattr(baselines._Problem, "folds", everything)
    assert best_on_noise() > limit, "a cross-validation that fits what it predicts is noticed"


def test_the_seed_decides_and_nothing_else():
    rows, codes = blobs(np.random.default_rng(6), records=120)
    first = [(model.name, model.cross_validated) for model in own_records_alone(rows, codes, seed=3)]
    again = [(model.name, model.cross_validated) for model in own_records_alone(rows, codes, seed=3)]
    assert first == again


def test_pictures_are_flattened_and_a_constant_pixel_does_no_harm():
    rng = np.random.default_rng(7)
    rows, codes = blobs(rng, records=150)
    pictures = np.concatenate([rows, np.full((150, 2), 3.0)], axis=1).reshape(150, 2, 4)
    models = own_records_alone(pictures, codes)
    assert all(model.score(pictures, codes) > 0.6 for model in models)


def test_a_search_leaves_its_start():
    """The optimum lies four decades from the start on either side, and is found there."""
    for best in (1e-6, 1e2):
        found, score = baselines._climb(lambda value, best=best: -abs(np.log10(value / best)), 1e-2, 10.0)
        assert found == pytest.approx(best)
        assert score == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "targets", "goal", "error"),
    [
        (np.zeros((9, 2)), np.zeros(8), "regression", DataError),
        (np.zeros((3, 2)), np.zeros(3), "regression", DataError),
        (np.full((9, 2), np.nan), np.zeros(9), "regression", DataError),
        (np.zeros((9, 2)), np.zeros(9), "ranking", UnknownNameError),
    ],
)
def test_what_cannot_be_fitted_is_refused(rows, targets, goal, error):
    with pytest.raises(error):
        own_records_alone(rows, targets, goal=goal)


def test_one_label_is_predicted_for_everybody():
    rows = np.random.default_rng(8).standard_normal((20, 2))
    for model in own_records_alone(rows, np.full(20, "yes")):
        assert model.cross_validated == 1.0
        assert set(model.predict(rows)) == {"yes"}
