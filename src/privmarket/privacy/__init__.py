"""Privacy that is sold: what was released, how much noise it needs, what it costs, what is left.

- `events`: what was released.
- `gaussian`, `renyi`: closed forms of one noisy step.
- `calibration`, `tables`: how much noise a sold ε needs.
- `accountant`, `certificate`, `statement`: what many releases cost together.
- `wallet`, `wallet_measures`, `wallet_store`, `wallet_file`: lifetime caps, and where they are stored.
- `release`, `integer_noise`, `noise`: the release kernel, its exact noise, and its random bits.
- `policy`, `policy_file`: what a seller agrees to.
- `words`: what a sale promises, in words.
- `release_audit`: lower bounds on ε from attacks on releases.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
