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

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.training._arithmetic import conventional_products
    from privmarket.training._check import (
        ModelError,
        Objection,
        layer_findings,
        plausible_inputs,
        require_per_record,
        require_supported,
        row_findings,
    )
    from privmarket.training._engine import (
        ClientRecords,
        ClippedSums,
        Method,
        Sample,
        clipped_sums,
        each_clipped_sum,
        gradient_sums,
        method_for,
    )
    from privmarket.training._local import (
        FULL_BATCH_CHUNK,
        SMALL_BATCH_CHUNK,
        UNITS,
        LocalPlan,
        NoisySum,
        by_person,
        plain_updates,
        private_shares,
        private_updates,
    )
    from privmarket.training._losses import (
        LOSSES,
        Loss,
        absolute_error,
        binary_cross_entropy,
        cross_entropy,
        inner_product,
        squared_error,
    )
    from privmarket.training._model import Arrays, Column, PrivateModel, usable_inputs
    from privmarket.training._networks import NETWORKS, build_model, build_network, cnn, logistic, mlp
    from privmarket.training._numpy import clipped_sum, noisy_sum

__all__ = [
    "FULL_BATCH_CHUNK",
    "LOSSES",
    "NETWORKS",
    "SMALL_BATCH_CHUNK",
    "UNITS",
    "Arrays",
    "ClientRecords",
    "ClippedSums",
    "Column",
    "LocalPlan",
    "Loss",
    "Method",
    "ModelError",
    "NoisySum",
    "Objection",
    "PrivateModel",
    "Sample",
    "absolute_error",
    "binary_cross_entropy",
    "build_model",
    "build_network",
    "by_person",
    "clipped_sum",
    "clipped_sums",
    "cnn",
    "conventional_products",
    "cross_entropy",
    "each_clipped_sum",
    "gradient_sums",
    "inner_product",
    "layer_findings",
    "logistic",
    "method_for",
    "mlp",
    "noisy_sum",
    "plain_updates",
    "plausible_inputs",
    "private_shares",
    "private_updates",
    "require_per_record",
    "require_supported",
    "row_findings",
    "squared_error",
    "usable_inputs",
]

# public name → the module that defines it
_HOMES = {
    "FULL_BATCH_CHUNK": f"{__name__}._local",
    "LOSSES": f"{__name__}._losses",
    "NETWORKS": f"{__name__}._networks",
    "SMALL_BATCH_CHUNK": f"{__name__}._local",
    "UNITS": f"{__name__}._local",
    "Arrays": f"{__name__}._model",
    "ClientRecords": f"{__name__}._engine",
    "ClippedSums": f"{__name__}._engine",
    "Column": f"{__name__}._model",
    "LocalPlan": f"{__name__}._local",
    "Loss": f"{__name__}._losses",
    "Method": f"{__name__}._engine",
    "ModelError": f"{__name__}._check",
    "NoisySum": f"{__name__}._local",
    "Objection": f"{__name__}._check",
    "PrivateModel": f"{__name__}._model",
    "Sample": f"{__name__}._engine",
    "absolute_error": f"{__name__}._losses",
    "binary_cross_entropy": f"{__name__}._losses",
    "build_model": f"{__name__}._networks",
    "build_network": f"{__name__}._networks",
    "by_person": f"{__name__}._local",
    "clipped_sum": f"{__name__}._numpy",
    "clipped_sums": f"{__name__}._engine",
    "cnn": f"{__name__}._networks",
    "conventional_products": f"{__name__}._arithmetic",
    "cross_entropy": f"{__name__}._losses",
    "each_clipped_sum": f"{__name__}._engine",
    "gradient_sums": f"{__name__}._engine",
    "layer_findings": f"{__name__}._check",
    "logistic": f"{__name__}._networks",
    "method_for": f"{__name__}._engine",
    "mlp": f"{__name__}._networks",
    "noisy_sum": f"{__name__}._numpy",
    "plain_updates": f"{__name__}._local",
    "plausible_inputs": f"{__name__}._check",
    "private_shares": f"{__name__}._local",
    "private_updates": f"{__name__}._local",
    "require_per_record": f"{__name__}._check",
    "require_supported": f"{__name__}._check",
    "row_findings": f"{__name__}._check",
    "inner_product": f"{__name__}._losses",
    "squared_error": f"{__name__}._losses",
    "usable_inputs": f"{__name__}._model",
}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
