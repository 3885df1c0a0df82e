"""Before: FedAvg with momentum, and clients that train for nothing and release everything.

To run it, name `existing_app.plain:server` and `existing_app.plain:client` in pyproject.toml.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from existing_app.task import accuracy, build_model, load_data

server, client = ServerApp(), ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One pass over the client's records."""
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    images, labels = load_data(node["partition-id"], node["num-partitions"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.split(torch.randperm(len(labels)), 32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg with momentum, tested by the server after every round."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = build_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    strategy = FedAvgM(fraction_evaluate=0.0, server_momentum=0.8)
    start = ArrayRecord(build_model().state_dict())
    strategy.start(grid, start, num_rounds=context.run_config["num-server-rounds"], evaluate_fn=evaluate)
