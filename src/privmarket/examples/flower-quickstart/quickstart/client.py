"""The sellers: each has its own price, its own records, and a wallet on its own disk that outlives the run."""

import privmarket as pm
from quickstart.task import build_model, client_records


def price(context):
    """What a unit of ε costs: 0.1 for the first client, more for each further one."""
    return 0.1 + 0.1 * context.node_config["partition-id"]


app = pm.flower.client_app(
    model=build_model,
    data=client_records,
    valuation=price,
    data_size=140,  # declared, and public: about how many records there are
    wallet=8.0,  # at most ε = 8 in a lifetime, whoever asks and however often
)
