"""A regression on a table: what the buyer's own records give for nothing, and what money adds.

The table is scikit-learn's diabetes data: ten measurements of 442 patients, and how far the disease had gone a year
later. Five clinics hold 70 patients each; the buyer owns 30, and 62 measure the result.
"""

import privmarket as pm

CLINICS = 5


def task():
    """Which records are whose, the model, and how it is measured; the target is scaled by the buyer's records."""
    import numpy as np
    from sklearn.datasets import load_diabetes

    inputs, target = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(target))
    x, y = (20.0 * inputs[order]).astype("float32"), target[order].astype("float32")
    private = slice(0, 70 * CLINICS)
    return pm.Task.from_arrays(
        x[private],
        y[private],
        clients=np.repeat([f"clinic {i}" for i in range(CLINICS)], 70),
        public=(x[350:380], y[350:380]),
        test=(x[380:], y[380:]),
        goal="regression",
        model="linear",
        name="diabetes",
    )


server = pm.flower.server_app(task=task, rounds=10, budget=10.0, momentum=0.0, evaluate_every=1)
client = pm.flower.client_app(task=task, valuation=0.3, data_size=70, wallet=8.0)
