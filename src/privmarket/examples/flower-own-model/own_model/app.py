"""The whole app: what the server buys, and what a client sells.

Your model is imported where it is needed, not here: this module is loaded for every message, and calls for bids are
answered several seconds faster without torch.
"""

import privmarket as pm


def build():
    """Makes the model that server and clients train."""
    from own_model.net import build

    return build()


def accuracy(model):
    """The share of test records that the model gets right."""
    from own_model.net import accuracy

    return accuracy(model)


def loss(outputs, labels):
    """The loss of each record, (records,)."""
    from own_model.net import smooth_loss

    return smooth_loss(outputs, labels)


def data(context):
    """The images and labels of one client, by its partition."""
    from own_model.net import TEST_RECORDS, records

    images, labels = records()
    mine = slice(TEST_RECORDS + context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return images[mine], labels[mine]


server = pm.flower.server_app(model=build, evaluate=accuracy, budget=15.0, rounds=5, momentum=0.0)
client = pm.flower.client_app(
    model=build, data=data, loss=loss, valuation=0.3, data_size=140, epsilon=3.0, wallet="unlimited"
)
