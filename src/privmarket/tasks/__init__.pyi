from ._baselines import FittedBaseline as FittedBaseline
from ._baselines import own_records_alone as own_records_alone
from ._builtin import task as task
from ._builtin import task_names as task_names
from ._builtin import task_of as task_of
from ._datasets import (
    Dataset as Dataset,
)
from ._datasets import (
    data_folder as data_folder,
)
from ._datasets import (
    dataset_files as dataset_files,
)
from ._datasets import (
    load_dataset as load_dataset,
)
from ._downloads import get_dataset as get_dataset
from ._draft import draft_schema as draft_schema
from ._features import feature_names as feature_names
from ._features import with_features as with_features
from ._from_table import TaskRecords as TaskRecords
from ._loading import load_task as load_task
from ._models import (
    builder_from_json as builder_from_json,
)
from ._models import (
    builder_to_json as builder_to_json,
)
from ._models import (
    model_names as model_names,
)
from ._partition import (
    dirichlet_partition as dirichlet_partition,
)
from ._partition import (
    dirichlet_sizes_partition as dirichlet_sizes_partition,
)
from ._partition import (
    drawn_parts as drawn_parts,
)
from ._partition import (
    iid_partition as iid_partition,
)
from ._partition import (
    label_distance as label_distance,
)
from ._pipeline import Pipeline as Pipeline
from ._pipeline import TargetScale as TargetScale
from ._records import Records as Records
from ._records import declared_size as declared_size
from ._schema import Column as Column
from ._schema import LabelColumn as LabelColumn
from ._schema import Schema as Schema
from ._scores import Score as Score
from ._scores import score as score
from ._scores import score_names as score_names
from ._source import SOURCE_OPTIONS as SOURCE_OPTIONS
from ._source import TaskSource as TaskSource
from ._tables import read_table as read_table
from ._task import Task as Task
