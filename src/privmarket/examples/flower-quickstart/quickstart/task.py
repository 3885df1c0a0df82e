"""The task: a small network on scikit-learn's handwritten digits, split evenly over the clients."""

TEST_RECORDS = 360


def build_model():
    """The network; torch is imported here, so that a client can bid without it."""
    from torch import nn

    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits():
    """(images, labels), pixels between 0 and 1."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16.0).astype("float32"), labels.astype("int64")


def client_records(context):
    """The records of one client: every n-th of those that are not for testing."""
    images, labels = digits()
    mine = slice(TEST_RECORDS + context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return images[mine], labels[mine]


def accuracy(model):
    """Share of the test records that the model gets right."""
    import torch

    images, labels = digits()
    with torch.no_grad():
        guessed = model(torch.from_numpy(images[:TEST_RECORDS])).argmax(1).numpy()
    return (guessed == labels[:TEST_RECORDS]).mean()
