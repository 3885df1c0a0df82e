"""The buyer: what it pays for, and how it trains with it."""

import privmarket as pm
from quickstart.task import accuracy, build_model

app = pm.flower.server_app(
    model=build_model,
    evaluate=accuracy,
    mechanism="mean-field-menu",
    budget=10.0,  # per round
    rounds=10,
    clip_norm=1.0,
    expected_batch=140.0,  # public: about how many records a client has
    server_rate=4.0,
    momentum=0.9,
    evaluate_every=1,
)
