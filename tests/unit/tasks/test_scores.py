"""Every score against scikit-learn, with its direction, and what it refuses."""

from dataclasses import fields, replace

import numpy as np
import pytest
from sklearn import metrics

from privmarket.errors import ConfigurationError, DataError, UnknownNameError
from privmarket.tasks import Score, Task, TaskSource, score, score_names
from privmarket.tasks._scores import chosen_scores


def softmax(logits):
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def classes_and_logits(classes, seed=0, rows=300):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, rows)])
    logits = rng.normal(size=(labels.size, classes)).round(1)  # rounded, so that there are ties
    logits[np.arange(labels.size), labels] += 0.7
    return logits.astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_classification_scores_are_those_of_scikit_learn(classes):
    logits, labels = classes_and_logits(classes)
    chosen = logits.argmax(axis=1)
    shares = softmax(logits.astype(np.float64))
    theirs = {
        "accuracy": metrics.accuracy_score(labels, chosen),
        "balanced-accuracy": metrics.balanced_accuracy_score(labels, chosen),
        "log-loss": metrics.log_loss(labels, shares),
    }
    if classes == 2:
        theirs["auc"] = metrics.roc_auc_score(labels, logits[:, 1].astype(float) - logits[:, 0])
    else:
        theirs["auc"] = metrics.roc_auc_score(labels, shares, multi_class="ovr")
    assert set(theirs) == set(score_names("classification"))
    for name, value in theirs.items():
        assert score(name).value(logits, labels) == pytest.approx(value, abs=1e-9), name


def test_regression_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    true = rng.normal(100, 15, 200)
    guess = (true + rng.normal(0, 9, 200)).astype(np.float32)
    theirs = {
        "r2": metrics.r2_score(true, guess),
        "mae": metrics.mean_absolute_error(true, guess),
        "rmse": metrics.root_mean_squared_error(true, guess),
    }
    assert set(theirs) == set(score_names("regression"))
    for name, value in theirs.items():
        assert score(name).value(guess, true) == pytest.approx(value, rel=1e-9), name


def test_every_score_is_shown_where_it_fits_and_named_in_the_help():
    two, three = (chosen_scores(None, "classification", classes) for classes in (2, 3))
    assert [one.name for one in two] == ["auc", *(one.name for one in three)]
    assert {one.name for one in two} == set(score_names("classification"))
    assert [one.name for one in chosen_scores(None, "regression", 0)] == list(score_names("regression"))
    [option] = [field for field in fields(TaskSource) if field.name == "score"]
    assert option.metadata["help"] == f"Headline score: {', '.join(score_names())}."


def test_a_wrong_area_is_caught():
    """The comparison sees a rank statistic that ignores ties."""
    logits, labels = classes_and_logits(2)
    ranks = np.argsort(np.argsort(logits[:, 1] - logits[:, 0])) + 1
    positive = labels == 1
    wrong = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    wrong /= positive.sum() * (~positive).sum()
    assert abs(wrong - score("auc").value(logits, labels)) > 1e-4


def test_direction_gain_and_text():
    assert [name for name in score_names() if score(name).direction == "lower"] == ["log-loss", "mae", "rmse"]
    assert score("mae").gain(5.0, 4.0) == 1.0
    assert score("auc").gain(0.7, 0.8) == pytest.approx(0.1)
    assert score("accuracy").format(0.841) == "84.1 %"
    assert score("auc").format(0.7131) == "0.713"
    assert score("r2").heading == "R²"


def test_scores_that_cannot_be_computed_are_refused():
    with pytest.raises(DataError, match=r"AUC needs records of every class"):
        score("auc").value(np.zeros((4, 2)), np.zeros(4, dtype=int))
    with pytest.raises(DataError, match="different values"):
        score("r2").value(np.ones(3), np.ones(3))


def test_the_headline_comes_first_and_the_usual_ones_follow():
    assert next(one.name for one in chosen_scores(None, "classification", 2)) == "auc"
    assert next(one.name for one in chosen_scores(None, "classification", 5)) == "accuracy"
    assert [one.name for one in chosen_scores("mae", "regression", 0)] == ["mae", "r2", "rmse"]

    def share_of_zeros(outputs, labels):
        return float((labels == 0).mean())

    own = chosen_scores([share_of_zeros, "log-loss"], "classification", 2)
    assert [one.name for one in own][:2] == ["share_of_zeros", "log-loss"]
    lower = Score("cost", share_of_zeros, higher_is_better=False)
    assert chosen_scores(lower, "own", 0) == (lower,)


def test_scores_of_another_goal_and_unknown_ones_are_refused():
    with pytest.raises(ConfigurationError, match="'r2' does not fit a classification"):
        chosen_scores("r2", "classification", 2)
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        chosen_scores("acuracy", "classification", 2)
    with pytest.raises(ConfigurationError, match="no score"):
        chosen_scores(None, "own", 0)


# --- how much of a gain the choice of test records explains


def two_models(rng, rows):
    """(labels, outputs, outputs) of two models that are often right about the same records."""
    labels = rng.integers(0, 2, rows)
    common = rng.normal(size=rows) + 1.5 * (labels - 0.5)
    margins = [common + 0.5 * rng.normal(size=rows), common + 0.4 * labels + 0.7 * rng.normal(size=rows)]
    return labels, *(np.stack([-margin / 2, margin / 2], axis=1) for margin in margins)


def measured_on(labels, score, **changes):
    rows = np.zeros((len(labels), 2), dtype=np.float32)
    task = Task.from_arrays(rows, labels, clients=["a", "b"] * (len(labels) // 2), classes=2, test=(rows, labels))
    return task.replace(score=score, **changes)


@pytest.mark.parametrize("name", ["accuracy", "auc"])
def test_the_error_of_a_gain_is_how_much_it_varies_over_test_records(name):
    rng = np.random.default_rng(0)
    value = score(name).value
    gains = []
    for _ in range(400):
        labels, before, after = two_models(rng, 300)
        gains.append(value(after, labels) - value(before, labels))
    labels, before, after = two_models(np.random.default_rng(1), 300)
    task = measured_on(labels, name)
    assert task.gain_error(before, after) == pytest.approx(np.std(gains), rel=0.2)
    assert task.gain_error(before, before) == 0.0, "the same records for both models"


def test_records_of_one_person_are_drawn_together():
    labels, before, after = two_models(np.random.default_rng(2), 60)
    ten = [np.repeat(one, 10, axis=0) for one in (labels, before, after)]
    task = measured_on(ten[0], "accuracy")
    apart = task.gain_error(*ten[1:])
    together = task.replace(test=replace(task.test, persons=np.repeat(np.arange(60), 10)))
    assert together.gain_error(*ten[1:]) == pytest.approx(10**0.5 * apart, rel=0.25)


def test_a_score_that_no_draw_of_the_records_has_gives_no_error():
    _, before, after = two_models(np.random.default_rng(3), 6)
    task = measured_on(np.array([0, 1] * 3), "accuracy")
    assert task.gain_error(before, after) is not None
    assert task.replace(test=None).gain_error(before, after) is None
    both = task.replace(score=Score("both", lambda outputs, labels: 1 / (len(set(labels.tolist())) - 1)))
    assert both.gain_error(before, after) == 0.0, "draws without one of the classes are left out"
