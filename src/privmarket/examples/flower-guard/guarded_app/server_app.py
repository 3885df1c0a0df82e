"""The server: Flower's own FedAvg, and nothing of privmarket."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from guarded_app.task import Net, test_accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg, tested by the server after every round."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"test-accuracy": test_accuracy(model)})

    torch.manual_seed(0)
    start = ArrayRecord(Net().state_dict())
    FedAvg().start(grid, start, num_rounds=context.run_config["num-server-rounds"], evaluate_fn=evaluate)
