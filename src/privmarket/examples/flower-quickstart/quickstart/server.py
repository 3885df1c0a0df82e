"""The buyer: what it pays for, and how it trains with it."""

import privmarket as pm
from quickstart.task import accuracy, build_model

app = pm.flower.server_app(
    model=build_model,
    evaluate=accuracy,
    mechanism="mean-field-menu",
    budget=10.0,  # per round
    rounds=10,
    evaluate_every=1,
)
