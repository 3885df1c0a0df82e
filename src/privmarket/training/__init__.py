"""One private-gradient engine for any torch module: clipped sums of per-record gradients, local steps, a model
check.

- `PrivateModel`: a module whose trainable weights are one flat vector, with a loss that has one value per record.
- `ClientRecords`, `LocalPlan`, `private_updates`, `private_shares`, `plain_updates`: a client's training in a
  round.
- `clipped_sums`, `gradient_sums`: what a step adds up, before noise.
- `mlp`, `logistic`, `cnn`, `build_network`, `build_model`: the networks that are built in.
- `require_per_record`, `require_supported`: refuse a module in which records mix, before anything is reserved.
- `clipped_sum`, `noisy_sum`: the same sums for gradients of any framework, as NumPy arrays; without torch.
- `cross_entropy` and other losses that never raise an error.

Each name is imported when it is first used, and torch with it; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
