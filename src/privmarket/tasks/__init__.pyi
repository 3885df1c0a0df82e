from ._baselines import FittedBaseline as FittedBaseline, own_records_alone as own_records_alone
from ._builtin import task as task, task_names as task_names, task_of as task_of
from ._datasets import (
    Dataset as Dataset,
    data_folder as data_folder,
    dataset_files as dataset_files,
    load_dataset as load_dataset,
)
from ._downloads import get_dataset as get_dataset
from ._draft import draft_schema as draft_schema
from ._features import feature_names as feature_names, with_features as with_features
from ._models import (
    builder_from_json as builder_from_json,
    builder_to_json as builder_to_json,
    model_names as model_names,
)
from ._partition import (
    dirichlet_partition as dirichlet_partition,
    dirichlet_sizes_partition as dirichlet_sizes_partition,
    drawn_parts as drawn_parts,
    iid_partition as iid_partition,
    label_distance as label_distance,
)
from ._pipeline import Pipeline as Pipeline, TargetScale as TargetScale
from ._records import Records as Records, TaskRecords as TaskRecords, declared_size as declared_size
from ._schema import Column as Column, LabelColumn as LabelColumn, Schema as Schema
from ._scores import Score as Score, score as score, score_names as score_names
from ._source import SOURCE_OPTIONS as SOURCE_OPTIONS, TaskSource as TaskSource, load_task as load_task
from ._tables import read_table as read_table
from ._task import Task as Task
