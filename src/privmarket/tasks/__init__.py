"""What is learned from whose records: tasks, their records, schemas, scores and models.

A `Task` keeps three kinds of records apart: private ones, which the clients sell access to; public ones, which the
buyer owns; and test records. It comes from a file (`Task.from_csv`), from arrays (`Task.from_arrays`), by name
(`task`) or from a Python file (`load_task`). Nothing about private records is used for free: scales, categories and
classes come from a schema or from public records.

- `Task`, `Records`, `declared_size`: the task itself.
- `task`, `task_names`, `load_task`: tasks by name.
- `Schema`, `Column`, `LabelColumn`, `Pipeline`, `draft_schema`, `read_table`: tables, and how they become inputs.
- `Score`, `score`, `score_names`: what a model is measured by.
- `Dataset`, `load_dataset`, `get_dataset`, `data_folder`, `dataset_files`: data sets and where their files are.
- `with_features`, `feature_names`: fixed public transforms of pictures.
- `iid_partition`, `dirichlet_partition`, `dirichlet_sizes_partition`, `label_distance`: clients that are drawn.
- `own_records_alone`, `FittedBaseline`: what the buyer's own records give without any sale.
- `model_names`: models that can be named.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.tasks._baselines import FittedBaseline, own_records_alone
    from privmarket.tasks._builtin import task, task_names, task_of
    from privmarket.tasks._datasets import Dataset, data_folder, dataset_files, load_dataset
    from privmarket.tasks._downloads import get_dataset
    from privmarket.tasks._draft import draft_schema
    from privmarket.tasks._features import feature_names, with_features
    from privmarket.tasks._from_table import TaskRecords
    from privmarket.tasks._loading import load_task
    from privmarket.tasks._models import builder_from_json, builder_to_json, model_names
    from privmarket.tasks._partition import (
        dirichlet_partition,
        dirichlet_sizes_partition,
        drawn_parts,
        iid_partition,
        label_distance,
    )
    from privmarket.tasks._pipeline import Pipeline, TargetScale
    from privmarket.tasks._records import Records, declared_size
    from privmarket.tasks._schema import Column, LabelColumn, Schema
    from privmarket.tasks._scores import Score, score, score_names
    from privmarket.tasks._source import SOURCE_OPTIONS, TaskSource
    from privmarket.tasks._tables import read_table
    from privmarket.tasks._task import Task

__all__ = [
    "SOURCE_OPTIONS",
    "Column",
    "Dataset",
    "FittedBaseline",
    "LabelColumn",
    "Pipeline",
    "Records",
    "Schema",
    "Score",
    "TargetScale",
    "Task",
    "TaskRecords",
    "TaskSource",
    "builder_from_json",
    "builder_to_json",
    "data_folder",
    "dataset_files",
    "declared_size",
    "dirichlet_partition",
    "dirichlet_sizes_partition",
    "draft_schema",
    "drawn_parts",
    "feature_names",
    "get_dataset",
    "iid_partition",
    "label_distance",
    "load_dataset",
    "load_task",
    "model_names",
    "own_records_alone",
    "read_table",
    "score",
    "score_names",
    "task",
    "task_names",
    "task_of",
    "with_features",
]

# public name → the module that defines it
_HOMES = {
    "SOURCE_OPTIONS": "privmarket.tasks._source",
    "Column": "privmarket.tasks._schema",
    "Dataset": "privmarket.tasks._datasets",
    "FittedBaseline": "privmarket.tasks._baselines",
    "LabelColumn": "privmarket.tasks._schema",
    "Pipeline": "privmarket.tasks._pipeline",
    "Records": "privmarket.tasks._records",
    "Schema": "privmarket.tasks._schema",
    "Score": "privmarket.tasks._scores",
    "TargetScale": "privmarket.tasks._pipeline",
    "Task": "privmarket.tasks._task",
    "TaskRecords": "privmarket.tasks._from_table",
    "TaskSource": "privmarket.tasks._source",
    "builder_from_json": "privmarket.tasks._models",
    "builder_to_json": "privmarket.tasks._models",
    "data_folder": "privmarket.tasks._datasets",
    "dataset_files": "privmarket.tasks._datasets",
    "declared_size": "privmarket.tasks._records",
    "dirichlet_partition": "privmarket.tasks._partition",
    "dirichlet_sizes_partition": "privmarket.tasks._partition",
    "draft_schema": "privmarket.tasks._draft",
    "drawn_parts": "privmarket.tasks._partition",
    "feature_names": "privmarket.tasks._features",
    "get_dataset": "privmarket.tasks._downloads",
    "iid_partition": "privmarket.tasks._partition",
    "label_distance": "privmarket.tasks._partition",
    "load_dataset": "privmarket.tasks._datasets",
    "load_task": "privmarket.tasks._loading",
    "model_names": "privmarket.tasks._models",
    "own_records_alone": "privmarket.tasks._baselines",
    "read_table": "privmarket.tasks._tables",
    "score": "privmarket.tasks._scores",
    "score_names": "privmarket.tasks._scores",
    "task": "privmarket.tasks._builtin",
    "task_names": "privmarket.tasks._builtin",
    "task_of": "privmarket.tasks._builtin",
    "with_features": "privmarket.tasks._features",
}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
