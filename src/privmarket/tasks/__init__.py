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

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
