"""The client: an ordinary app, and three lines, marked with #, that guard the site on which it runs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import privmarket as pm
from guarded_app.task import Net, correct, load_data

app = ClientApp(mods=[pm.flower.GuardMod(policy="site.toml")])  # lets out what the site's policy allows


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on the site's records."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load_data(context.node_config["partition-id"])
    pm.flower.train_privately(message, context, model, images, labels)  # in place of the loop over batches
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the model on the site's records."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load_data(context.node_config["partition-id"])
    right = correct(model, images, labels)
    pm.flower.average_privately("accuracy", right)  # the mean leaves with noise for one record
    metrics = MetricRecord({"accuracy": float(right.mean()), "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
