"""Learned mechanisms: rules with trained weights, and all that is needed to train a rule of one's own.

- `train` (also `privmarket.train`) trains a rule for a distribution of clients and returns a `TrainingResult`.
- `AuctionNetwork` is what a network of your own derives from: write `__init__` and `forward(markets) -> Trade`.
  `Markets` and `Trade` are its input and answer, `MenuLadder`, `multilayer` and `within_budget` parts to build it
  from.
- `TrainingObjective` is what the buyer wants, `Loss` what a training step makes small; both may be functions.
- `RegretNet`, `DmRegretNet`, `RegretFormer`, `MfgRegretNet`, `MfgRegretNetLiteral` and `MfgMenuNet` are the rules
  that ship with weights. `privmarket.mechanism("regretnet")` is the usual way to them.

The page docs/how-to/your-own-network.md shows a whole network. This is the only auction code that imports torch,
and only where a network is trained or run: `MfgMenuNet` runs on NumPy.
"""

# To read the code, begin with `_networks.py` (what a network is), then `_trainer.py` (a training step) and
# `_session.py` (the run on disk). Each rule has its own file.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
