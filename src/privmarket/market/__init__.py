"""What is traded, what a rule promises, and how far it is from the best. NumPy and SciPy, float64.

Begin with `Bids`, `Mechanism` and `Outcome`: a mechanism takes bids and a budget and returns an outcome.

- Bids: `Bids`, and `read_bids` for CSV files. This is where a bid is checked.
- Rules: `Mechanism`, `RandomisedMechanism`, `Outcome`, and `MarketFacts`, which a rule may be told beforehand.
  Menus of prices are `MenuCurve`s; `POSTED_PRICE` is the simplest.
- Promises: `IndividuallyRational`, `BudgetFeasible`, `WithinOffer`, `Truthful`, `ApproximatelyTruthful` and
  `CollusionProof` are checks that can be run (`promises_of` lists those of a rule). A broken one has a `Witness`.
- Attacks search misreports, from below: `GridAttack`, `AscentAttack`, `UpwardAttack`, `CoalitionAttack` return a
  `Regret`. `certified_regret` bounds the gain of any misreport from above.
- Clients: `distribution` makes a `Distribution` of a scenario's name, a CSV file, SciPy's distributions or an own
  object; `scenario` takes a name.
- The buyer's aim is an `Objective`: `TotalEpsilon`, `AggregationError`, `AggregateError`, `TypicalAggregateError`,
  `LocalError`.
- How much a budget can buy: `fluid_bound`, `one_price_bound`, `first_best_bound`, `prior_free_reference`, and for
  up to 4 clients `exact_optimum` on a `TypeGrid`.
- `judge` counts what an outcome breaks; `privmarket.audit` puts everything together in an `AuditReport`.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
