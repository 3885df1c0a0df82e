"""What is loaded when: a client that only bids never loads torch, `import privmarket` neither torch nor Flower."""

import subprocess
import sys

BID = """
import sys
import privmarket as pm
assert not {"torch", "flwr", "scipy.stats"} & set(sys.modules), "import privmarket"
from flwr.app import Context, Message, RecordDict
from privmarket.flower import _wire as wire
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import Terms

def data(context):
    import torch
    return torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)

def model():
    import torch
    return torch.nn.Sequential(torch.nn.Linear(4, 2))

app = pm.flower.client_app(
    model=model, data=data, valuation=0.5, epsilon=1.0, wallet=pm.privacy.WalletFile(sys.argv[1] + "/w.jsonl", 8.0)
)
pm.flower.server_app(model=model, budget=1.0)  # naming a server beside it loads nothing either
context = Context(1, 7, {"partition-id": 0}, RecordDict(), {})
family = ReleaseFamily()
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

def ask(content, kind):
    message = Message(content, 7, kind)
    message.metadata.__dict__["_message_id"] = "m"
    return app(message, context)

call = wire.put(RecordDict(), Terms(0, 1000, family, 5.0, 2, "run"))
assert wire.take(ask(call, wire.BID).content, wire.Answer).epsilon == 1.0
wire.put(call, wire.Receipt("run", 0, 5))
ask(call, wire.RECEIPT)
print("torch" in sys.modules)
order = RecordDict({wire.WEIGHTS: wire.write_arrays(
    {"0.weight": __import__("numpy").zeros((2, 4), "float32"), "0.bias": __import__("numpy").zeros(2, "float32")}
)})
wire.put(order, wire.Sale("run", 0, 1.0, 5, family, 1.0, 1.0, 1.0))
assert wire.take(ask(order, wire.TRAIN).content, wire.Refusal, None) is None
print("torch" in sys.modules)
from privmarket.training import require_supported
require_supported(model())
print("opacus" in sys.modules)
"""


def test_bids_are_answered_without_torch(tmp_path):
    """And training loads it: the check can fail. Layers that we know need no Opacus, neither there nor before."""
    done = subprocess.run(
        [sys.executable, "-c", BID, str(tmp_path)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True", "False"]


def test_no_module_that_moves_messages_loads_torch():
    modules = (
        "client",
        "seller",
        "fleet",
        "grid_market",
        "wire",
        "settings",
        "server",
        "mod",
        "strategy",
        "engine",
    )
    names = ", ".join(f"privmarket.flower._{name}" for name in modules)
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=800, check=False).returncode == 0
