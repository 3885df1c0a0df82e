"""After: the client bids, trains for what it sold, and lets nothing else out.

What is new beside `plain`: the mod, which holds the wallet and answers bids, and one private step in place of the
loop over batches. torch is imported where it is needed, so that bids are answered without it.
"""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import privmarket as pm


def price(context: Context) -> float:
    """What a unit of ε costs here: 0.1 for the first client, more for each further one."""
    return 0.1 + 0.1 * context.node_config["partition-id"]


def build_model():
    """The model, which the mod looks at before it sells: one in which records mix is refused."""
    from existing_app.task import build_model

    return build_model()


# At most ε = 20 in a lifetime; each node keeps its own wallet in a file of its own.
market = pm.flower.WalletMod(
    valuation=price, epsilon=3.0, data_size=140.0, wallet=20.0, noise="app", model=build_model
)
app = ClientApp(mods=[market])
market.answer_bids(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One private step, for the ε that this client sold."""
    from existing_app.task import load_data

    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    images, labels = load_data(node["partition-id"], node["num-partitions"])
    pm.flower.train_privately(message, context, model, images, labels)
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
