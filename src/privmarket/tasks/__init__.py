"""What is learned from whose records: tasks, their records, schemas, scores and models.

A `Task` keeps three kinds of records apart: private ones, which the clients sell access to; public ones, which the
buyer owns; and test records. Nothing about private records is used for free: scales, categories and classes come
from a schema or from public records.

>>> import privmarket as pm
>>> pm.task("breast-cancer")
Task('breast-cancer', classification, 10 clients, 410 private, 41 public, 114 test records)

- `Task.from_csv`, `Task.from_arrays`, `task` (by name, see `task_names`), `load_task` (from a Python file): make a
  task; `Task.from_own_records` that of a buyer who holds none of the sellers' records. `Records` holds records as
  arrays; `declared_size` is the public, rounded number of a client's records.
- `Schema`, `Column`, `LabelColumn`, `draft_schema`, `read_table`: what is publicly known of a table. `Pipeline`
  turns its rows into inputs, and `TargetScale` a regression's label into targets.
- `Score`, `score`, `score_names`: measures of a model. `model_names`: models that can be given by name.
- `Dataset`, `load_dataset`, `get_dataset`, `data_folder`, `dataset_files`: data sets and their files.
- `with_features`, `feature_names`: fixed public transforms of pictures.
- `iid_partition`, `dirichlet_partition`, `dirichlet_sizes_partition`, `label_distance`: share records out among
  clients.
- `own_records_alone`, `FittedBaseline`: models of the buyer's own records, without any sale.

Each name is imported when it is first used; `dir` lists them.
"""

# To read the code, begin with `_task.py`. A table goes through `_tables.py` (cells), `_schema.py` (what is known),
# `_pipeline.py` (cells to inputs) and `_from_table.py` (who holds which rows).

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
