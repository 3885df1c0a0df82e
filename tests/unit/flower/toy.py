"""A market of six clients whose training is an array of their own: everything but the learning is real."""

import itertools
import math

import numpy as np

import privmarket as pm
from privmarket.flower import _wire as wire
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._policy import SellerPolicy

CLIENTS, BUDGET = 6, 4.0
VALUATIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
START = {"a": np.zeros((2, 3), dtype=np.float32), "b": np.zeros(4, dtype=np.float32)}


# Six sellers that nobody registered: more than the defaults of a policy allow under aggregate trust.
OPEN_TO_SUMS = SellerPolicy(
    epsilon_per_sale=math.inf,
    epsilon_lifetime=math.inf,
    trust=("local", "aggregate"),
    minimum_cohort=2,
    register="none",
)


def partition(context):
    return int(context.node_config["partition-id"])


def train(weights, job):
    """Global minus local weights: one, plus the client's own noise."""
    return {
        name: np.ones_like(array) + np.float32(job.noise_multiplier) * job.noise.standard_normal(array.shape)
        for name, array in weights.items()
    }


def seed_noise(monkeypatch):
    """Noise of the system comes from numbered seeds: for tests of what is learnt, not of where noise is from."""
    numbers = itertools.count()
    seeded = classmethod(lambda source: source.from_seed(next(numbers)))
    monkeypatch.setattr(NoiseSource, "from_system", seeded)


def client(train=train, **options):
    options = {"valuation": lambda context: VALUATIONS[partition(context)], "epsilon": 1.0, **options}
    options.setdefault("wallet", "unlimited")
    if options.get("secure_aggregation"):
        options.setdefault("policy", OPEN_TO_SUMS)
    return pm.flower.client_app(train, **options)


def server(**options):
    options = {"mechanism": "proportional-share", "budget": BUDGET, "rounds": 2, "momentum": 0.0, **options}
    merit = lambda weights: weights["b"].sum()  # noqa: E731
    return pm.flower.server_app(initial_weights=lambda: START, evaluate=merit, **options)


class Wire(pm.flower.InProcessGrid):
    """Keeps what went over the wire, and can tamper with it: `tamper(message)` before, `after(reply)` behind."""

    def __init__(self, app, nodes=CLIENTS, tamper=None, after=None, run_config=None):
        super().__init__(app, nodes, run_config)
        self.sent, self.answered = [], []
        self.tamper, self.after = tamper, after

    def answer(self, message):
        if self.tamper:
            message = self.tamper(message) or message
        self.sent.append(message)
        reply = super().answer(message)
        if self.after:
            reply = self.after(reply) or reply
        self.answered.append(reply)
        return reply

    def orders(self):
        """(node, sale) of every order that was sent."""
        return [
            (m.metadata.dst_node_id, wire.take(m.content, wire.Sale))
            for m in self.sent
            if wire.NAMES[wire.Sale] in m.content
        ]


def refusal_of(message):
    """The word of a refusal; None for any other answer."""
    found = wire.take(message.content, wire.Refusal, None)
    return None if found is None else found.reason


def play(app=None, market=None, **options):
    """Runs the market; returns its result and the wire."""
    grid = Wire(app or client(), **options)
    return pm.flower.run_in_process(market or server(), grid.client_app, CLIENTS, grid=grid), grid


def balanced(result):
    """Whether every round's money adds up: Σ paid + refunded = budget."""
    return all(
        sum(r.paid_micro.values()) + r.refunded_micro == int(BUDGET * 1_000_000) and r.spent_micro >= 0
        for r in result.records
    )
