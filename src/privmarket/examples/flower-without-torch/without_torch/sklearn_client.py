"""A scikit-learn client: its linear model is trained privately from outside, and predicts as always.

`partial_fit` cannot be private: it clips no record and adds no noise, and what it writes into `coef_` shows every
record that it saw. So the weights are taken out of the estimator, trained by `train_arrays_privately` on the same
loss, and put back. This works for what scikit-learn trains by gradients of a sum over records: SGDClassifier,
SGDRegressor, LogisticRegression, Ridge, MLPs. Trees, forests, boosting and nearest neighbours have no such sum.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import SGDClassifier

import privmarket as pm
from without_torch.task import CLASSES, client_records, gradients

market = pm.flower.WalletMod(valuation=0.3, data_size=140, wallet=8.0, noise="records")
app = ClientApp(mods=[market])
market.answer_bids(app)


def estimator(weights):
    """scikit-learn's model with these weights: ready for `predict` and `score`."""
    model = SGDClassifier(loss="log_loss")
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = weights["coef"], weights["intercept"]
    return model


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the estimator's weights for the ε that was sold."""
    images, labels = client_records(context)
    model = estimator({name: array.numpy() for name, array in msg.content["arrays"].items()})
    weights = {"coef": model.coef_, "intercept": model.intercept_}
    trained = pm.flower.train_arrays_privately(
        msg, context, weights, lambda now, rows: gradients(now, images[rows], labels[rows]), len(labels)
    )
    model = estimator(trained)
    arrays = ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
