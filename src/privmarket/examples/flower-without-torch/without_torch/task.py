"""Softmax regression on scikit-learn's digits, in NumPy: weights, per-record gradients, accuracy."""

import numpy as np
from sklearn.datasets import load_digits

TEST_RECORDS = 360
CLASSES = 10


def digits():
    """(images, labels), pixels between 0 and 1."""
    images, labels = load_digits(return_X_y=True)
    return (images / 16.0).astype(np.float32), labels.astype(np.int64)


def client_records(context):
    """The records of one client: every n-th of those that are not for testing."""
    images, labels = digits()
    mine = slice(TEST_RECORDS + context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return images[mine], labels[mine]


def start():
    """The first weights."""
    return {"coef": np.zeros((CLASSES, 64), np.float32), "intercept": np.zeros(CLASSES, np.float32)}


def gradients(weights, images, labels):
    """The gradient of each record's loss: coef (records, classes, 64), intercept (records, classes)."""
    scores = images @ weights["coef"].T + weights["intercept"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    slopes = odds / odds.sum(axis=1, keepdims=True)
    slopes[np.arange(len(labels)), labels] -= 1.0
    return {"coef": slopes[:, :, None] * images[:, None, :], "intercept": slopes}


def accuracy(weights):
    """The share of test records that the weights get right."""
    images, labels = digits()
    found = (images[:TEST_RECORDS] @ weights["coef"].T + weights["intercept"]).argmax(axis=1)
    return float((found == labels[:TEST_RECORDS]).mean())
