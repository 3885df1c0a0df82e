"""After: the same FedAvgM with momentum, which now buys the privacy that it uses.

What is new beside `plain`: the strategy is wrapped, and the market reports at the end.
"""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

import privmarket as pm
from existing_app.task import accuracy, build_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvgM behind an auction, tested by the server after every round."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = build_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    rounds = context.run_config["num-server-rounds"]
    strategy = pm.flower.AuctionStrategy(
        FedAvgM(fraction_evaluate=0.0, server_momentum=0.8),
        model=build_model,
        mechanism="mean-field-menu",
        budget=context.run_config["budget"],  # per round
        rounds=rounds,
        clip_norm=1.0,
        learning_rate=2.0,
        expected_batch=140.0,  # public: about how many records a client has
    )
    start = ArrayRecord(build_model().state_dict())
    result = strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluate)
    strategy.report(context, result)
