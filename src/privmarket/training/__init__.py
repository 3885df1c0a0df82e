"""One private-gradient engine for any torch module: what a client computes between a sale and its release.

>>> from torch import nn
>>> from privmarket.training import PrivateModel
>>> PrivateModel(nn.Sequential(nn.Flatten(), nn.Linear(784, 10))).parameters
7850

- `PrivateModel`: a module whose trainable weights are one flat vector, with a loss that has one value per record.
- `ClientRecords`, `LocalPlan`, `private_updates`, `private_shares`: a client's training in a round, with noise;
  `plain_updates` without. `one_thread` keeps torch to one thread.
- `clipped_sums`, `gradient_sums`: sums in which no record counts for more than the clip norm, before noise.
- `require_per_record`, `require_supported`: refuse a module in which records mix, before anything is reserved.
- `method_for`, `add_rule`: how a module is differentiated, and how to teach the engine an operation.
- `mlp`, `logistic`, `cnn`, `build_network`, `build_model`: the networks that are built in.
- `clipped_sum`, `noisy_sum`: the same sums for gradients of any framework, as NumPy arrays; without torch.
- `cross_entropy` and other losses that never raise an error.

Each name is imported when it is first used, and torch with it; `dir` lists them.
"""

# To read the code, begin with `private_updates` in `_local.py`. `_clipping.py` clips gradients and adds them up,
# `_gradients.py` runs the passes, `_layers.py` has a rule for each operation of torch, `_row_gradients.py` the
# per-record gradients that rules record, `_arithmetic.py` the bounds on rounding. `_check.py` tries a module
# before it is used.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
