from ._arithmetic import conventional_products as conventional_products
from ._check import (
    ModelError as ModelError,
)
from ._check import (
    Objection as Objection,
)
from ._check import (
    layer_findings as layer_findings,
)
from ._check import (
    plausible_inputs as plausible_inputs,
)
from ._check import (
    require_per_record as require_per_record,
)
from ._check import (
    require_supported as require_supported,
)
from ._check import (
    row_findings as row_findings,
)
from ._engine import (
    ClientRecords as ClientRecords,
)
from ._engine import (
    ClippedSums as ClippedSums,
)
from ._engine import (
    Method as Method,
)
from ._engine import (
    Sample as Sample,
)
from ._engine import (
    clipped_sums as clipped_sums,
)
from ._engine import (
    each_clipped_sum as each_clipped_sum,
)
from ._engine import (
    gradient_sums as gradient_sums,
)
from ._engine import (
    method_for as method_for,
)
from ._local import (
    FULL_BATCH_CHUNK as FULL_BATCH_CHUNK,
)
from ._local import (
    SMALL_BATCH_CHUNK as SMALL_BATCH_CHUNK,
)
from ._local import (
    UNITS as UNITS,
)
from ._local import (
    LocalPlan as LocalPlan,
)
from ._local import (
    NoisySum as NoisySum,
)
from ._local import (
    by_person as by_person,
)
from ._local import (
    plain_updates as plain_updates,
)
from ._local import (
    private_shares as private_shares,
)
from ._local import (
    private_updates as private_updates,
)
from ._losses import (
    LOSSES as LOSSES,
)
from ._losses import (
    Loss as Loss,
)
from ._losses import (
    absolute_error as absolute_error,
)
from ._losses import (
    binary_cross_entropy as binary_cross_entropy,
)
from ._losses import (
    cross_entropy as cross_entropy,
)
from ._losses import (
    inner_product as inner_product,
)
from ._losses import (
    squared_error as squared_error,
)
from ._model import Arrays as Arrays
from ._model import Column as Column
from ._model import PrivateModel as PrivateModel
from ._model import usable_inputs as usable_inputs
from ._networks import (
    NETWORKS as NETWORKS,
)
from ._networks import (
    build_model as build_model,
)
from ._networks import (
    build_network as build_network,
)
from ._networks import (
    cnn as cnn,
)
from ._networks import (
    logistic as logistic,
)
from ._networks import (
    mlp as mlp,
)
from ._numpy import clipped_sum as clipped_sum
from ._numpy import noisy_sum as noisy_sum
