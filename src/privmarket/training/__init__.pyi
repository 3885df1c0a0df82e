from ._arithmetic import conventional_products as conventional_products, one_thread as one_thread
from ._check import (
    ModelError as ModelError,
    Objection as Objection,
    layer_findings as layer_findings,
    plausible_inputs as plausible_inputs,
    require_per_record as require_per_record,
    require_supported as require_supported,
    row_findings as row_findings,
)
from ._clipping import (
    ClientRecords as ClientRecords,
    ClippedSums as ClippedSums,
    Sample as Sample,
    clipped_sums as clipped_sums,
    each_clipped_sum as each_clipped_sum,
    gradient_sums as gradient_sums,
)
from ._gradients import Method as Method, method_for as method_for
from ._layers import add_rule as add_rule
from ._local import (
    FULL_BATCH_CHUNK as FULL_BATCH_CHUNK,
    SMALL_BATCH_CHUNK as SMALL_BATCH_CHUNK,
    UNITS as UNITS,
    LocalPlan as LocalPlan,
    NoisySum as NoisySum,
    by_person as by_person,
    plain_updates as plain_updates,
    private_shares as private_shares,
    private_updates as private_updates,
)
from ._losses import (
    LOSSES as LOSSES,
    Loss as Loss,
    absolute_error as absolute_error,
    binary_cross_entropy as binary_cross_entropy,
    cross_entropy as cross_entropy,
    inner_product as inner_product,
    squared_error as squared_error,
)
from ._model import Arrays as Arrays, Column as Column, PrivateModel as PrivateModel, usable_inputs as usable_inputs
from ._networks import (
    NETWORKS as NETWORKS,
    build_model as build_model,
    build_network as build_network,
    cnn as cnn,
    logistic as logistic,
    mlp as mlp,
)
from ._numpy import clipped_sum as clipped_sum, noisy_sum as noisy_sum
