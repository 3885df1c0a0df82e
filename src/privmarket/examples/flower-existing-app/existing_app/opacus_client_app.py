"""After, for an app that keeps its own optimiser: Opacus clips, and the noise that was sold is added.

What is new beside `plain`: the mod, as in `client_app`, and Opacus around model and optimiser, told by the mod's
record how much noise, which clipping, and how many steps were sold. Opacus' own noise comes from a torch generator,
which keeps 32 bits of any seed: whoever sees an update can try them all. So noise and batches come from a cipher
that the operating system keys. It is added in floating point: weaker than `train_privately`, whose noise is exact
in the bits that leave.

To run it, name `existing_app.opacus_client_app:app` as clientapp in pyproject.toml.
"""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import privmarket as pm
from existing_app.client_app import price
from existing_app.task import Net

market = pm.flower.WalletMod(valuation=price, data_size=140, wallet=8.0, noise="app", model=Net)
app = ClientApp(mods=[market])
market.answer_bids(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    """The steps that were sold, by the app's own optimiser behind Opacus."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from existing_app.task import load_data
    from privmarket.privacy._noise import NoiseSource

    sold = message.content["privmarket-job"]
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    batches = list(load_data(node["partition-id"], node["num-partitions"], context.run_config["batch-size"]))
    images = torch.cat([batch["img"] for batch in batches])
    labels = torch.cat([batch["label"] for batch in batches])
    secret, size = NoiseSource.from_system(), round(sold["expected-batch"])  # public: not the number of records

    def add_noise(optimizer):
        """To the clipped sums, which Opacus has divided by the expected batch."""
        for parameter in optimizer.params:
            noise = torch.from_numpy(secret.standard_normal(tuple(parameter.shape)))
            parameter.grad += noise * (sold["noise-multiplier"] * sold["clip-norm"] / size)

    private = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=sold["learning-rate"]),
        noise_multiplier=0.0,  # `add_noise` adds it
        max_grad_norm=sold["clip-norm"],
        expected_batch_size=size,
    )
    optimizer.attach_step_hook(add_noise)
    for _ in range(sold["steps"]):
        batch = torch.from_numpy(secret.bernoulli(sold["sampling-rate"], len(labels)))  # all where the rate is 1
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(private(images[batch]), labels[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
