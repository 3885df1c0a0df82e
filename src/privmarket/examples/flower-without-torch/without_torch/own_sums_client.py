"""Any other framework: the app computes its own clipped sums and keeps its own loop, with noise="app".

JAX, for instance, gives per-record gradients by `jax.vmap(jax.grad(loss), (None, 0, 0))`; NumPy stands for it here.
The record `privmarket-job` says what was sold. `pm.training.noisy_sum` adds the noise exactly, from the operating
system's generator. Nobody checks such an app from outside: its owner's promise rests on these lines.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import privmarket as pm
from privmarket.privacy._noise import NoiseSource
from without_torch.task import client_records, gradients

market = pm.flower.WalletMod(valuation=0.3, data_size=140, wallet=8.0, noise="app")
app = ClientApp(mods=[market])
market.answer_bids(app)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """The steps that were sold."""
    images, labels = client_records(context)
    coef, intercept = (msg.content["arrays"][name].numpy().copy() for name in ("coef", "intercept"))
    sold, secret = msg.content["privmarket-job"], NoiseSource.from_system()
    for _ in range(sold["steps"]):
        batch = np.flatnonzero(secret.bernoulli(sold["sampling-rate"], len(labels)))
        each = gradients({"coef": coef, "intercept": intercept}, images[batch], labels[batch])
        flat = np.concatenate([each["coef"].reshape(len(batch), -1), each["intercept"]], axis=1)
        released = pm.training.noisy_sum(
            pm.training.clipped_sum(flat, sold["clip-norm"]),
            clip_norm=sold["clip-norm"],
            noise_multiplier=sold["noise-multiplier"],
            records=len(labels),
            source=secret,
        )
        step = released * np.float32(sold["learning-rate"] / sold["expected-batch"])
        coef -= step[: coef.size].reshape(coef.shape)
        intercept -= step[coef.size :]
    arrays = ArrayRecord({"coef": Array(coef), "intercept": Array(intercept)})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
