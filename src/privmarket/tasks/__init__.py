"""What is learned from whose records.

`own_records_alone` says what the buyer's own records give without any sale: the figure that the accuracy of a
bought model has to be compared with. Needs NumPy and SciPy, not torch.
"""

from privmarket.tasks._baselines import FittedBaseline, own_records_alone

__all__ = ["FittedBaseline", "own_records_alone"]
