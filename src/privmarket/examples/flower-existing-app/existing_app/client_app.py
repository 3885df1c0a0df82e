"""After: the client bids, trains for what it sold, and lets nothing else out. New lines are marked `# market`."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import privmarket as pm  # market
from existing_app.task import Net, load_data


def price(context: Context) -> float:
    """What a unit of ε costs here: 0.1 for the first client, more for each further one."""
    return 0.1 + 0.1 * context.node_config["partition-id"]


# market: about how many records there are, the most ε in a lifetime, and what is clipped and noised
market = pm.flower.WalletMod(valuation=price, data_size=140, wallet=8.0, noise="records", model=Net)
app = ClientApp(mods=[market])  # market
market.answer_bids(app)  # market


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data, for the ε that this client sold."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    trainloader = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    pm.flower.train_privately(msg, context, model.to(device), trainloader)  # market: in place of train_fn
    metrics = MetricRecord({"num-examples": len(trainloader.dataset)})  # market: no loss, which nobody accounts for
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
