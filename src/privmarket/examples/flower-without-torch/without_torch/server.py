"""The buyer: FedAvg on NumPy arrays, behind an auction."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import privmarket as pm
from without_torch.task import accuracy, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg behind an auction."""
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), budget=context.run_config["budget"])
    strategy.start(
        grid,
        ArrayRecord({name: Array(array) for name, array in start().items()}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the weights on the server's own records."""
    return MetricRecord({"accuracy": accuracy({name: array.numpy() for name, array in arrays.items()})})
