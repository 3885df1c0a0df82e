"""A client in NumPy: it says how each record pulls at the weights; clipping, batches and noise are done for it."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import privmarket as pm
from without_torch.task import client_records, gradients

market = pm.flower.WalletMod(valuation=0.3, data_size=140, wallet=8.0, noise="records")
app = ClientApp(mods=[market])
market.answer_bids(app)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the weights for the ε that was sold."""
    images, labels = client_records(context)
    weights = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    trained = pm.flower.train_arrays_privately(
        msg, context, weights, lambda now, rows: gradients(now, images[rows], labels[rows]), len(labels)
    )
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
