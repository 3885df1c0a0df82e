"""Every score against scikit-learn, with its direction, and what it refuses."""

from dataclasses import fields

import numpy as np
import pytest
from sklearn import metrics

from privmarket.errors import ConfigurationError, DataError, UnknownNameError
from privmarket.tasks import Score, TaskSource, score, score_names
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
