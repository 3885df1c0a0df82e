"""A small federation around a guard: an app of two arrays in Flower's message API, and one in its older API."""

import itertools

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.serverapp import ServerApp

import privmarket as pm
from privmarket.flower._in_process import InProcessGrid, play_in_process
from privmarket.privacy._noise import NoiseSource

START = {"weight": np.zeros((4, 3), dtype=np.float32), "bias": np.zeros(3, dtype=np.float32)}
SITE = """
epsilon_lifetime = 6.0
wallet = "wallet-{client}.jsonl"
[guard]
examples = 60
"""
NODE = 1000  # the first node of an in-process grid


def policy(folder, text=SITE):
    """A site's policy file."""
    place = folder / "site.toml"
    place.write_text(text, encoding="utf-8")
    return place


def wallet(folder, client="0"):
    """What a site's wallet says."""
    return pm.privacy.WalletFile.existing(folder / f"wallet-{client}.jsonl")


def arrays(values=None):
    """A record of arrays, as a server sends it."""
    return ArrayRecord({name: Array(array) for name, array in (values or START).items()})


def plain_app(mods, change=1.0):
    """An app of Flower's message API: its training adds `change` to every weight."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        moved = {k: Array(v.numpy() + np.float32(change)) for k, v in message.content["arrays"].items()}
        metrics = MetricRecord({"train_loss": 0.25, "num-examples": 57})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"accuracy": 0.75, "num-examples": 57})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message, context):
        return Message(RecordDict({"all": ConfigRecord({"labels": [1, 2, 3]})}), reply_to=message)

    return app


class OldClient(NumPyClient):
    """A client of Flower's older API."""

    def get_properties(self, config):
        return {"records": 57}

    def get_parameters(self, config):
        return [np.full(3, 7.0)]

    def fit(self, parameters, config):
        return [p + np.float32(1.0) for p in parameters], 57, {"train_loss": 0.25}

    def evaluate(self, parameters, config):
        return 0.3, 57, {"accuracy": 0.75}


def old_app(mods):
    """An app of Flower's older API."""
    return ClientApp(client_fn=lambda context: OldClient().to_client(), mods=mods)


def serve(strategy, rounds=1, start=None):
    """A server app of Flower's own with this strategy, and the result that it will have."""
    app = ServerApp()
    found = {}

    @app.main()
    def main(grid, context):
        found["result"] = strategy.start(grid, arrays(start), num_rounds=rounds)

    return app, found


def run(strategy, app, nodes=2, rounds=1, start=None, run_config=None):
    """What an unmodified strategy of the message API makes of an app."""
    server, found = serve(strategy, rounds, start)
    play_in_process(server, app, nodes, run_config)
    return found["result"]


def old_start():
    """The first weights, for a strategy of the older API."""
    return ndarrays_to_parameters(list(START.values()))


def ask(app, kind="train", content=None, grid=None, node=NODE):
    """An app's reply to one message."""
    grid = grid or InProcessGrid(app, 2)
    content = (
        content if content is not None else RecordDict({"arrays": arrays(), "config": ConfigRecord({"lr": 0.1})})
    )
    message = Message(content, node, kind)
    message.metadata.__dict__["_message_id"] = "a-message"
    return grid.answer(message)


def seed_noise(monkeypatch):
    """Noise of the system comes from numbered seeds, so that two worlds have the same."""
    numbers = itertools.count()
    seeded = classmethod(lambda source: source.from_seed(next(numbers)))
    monkeypatch.setattr(NoiseSource, "from_system", seeded)
