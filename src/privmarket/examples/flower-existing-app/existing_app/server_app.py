"""After: the same FedAvg, which now buys the privacy that it uses. Lines that are new are marked `# market`."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import privmarket as pm  # market
from existing_app.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg behind an auction, and save the model."""
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=0.0)
    budget = context.run_config["budget"]  # market: money per round
    strategy = pm.flower.AuctionStrategy(strategy, model=Net, budget=budget)  # market
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the model on the server's own records."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return MetricRecord({"accuracy": test(model, load_test_data(), device)})
