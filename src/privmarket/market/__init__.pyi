from ._attacks import AscentAttack as AscentAttack
from ._attacks import GridAttack as GridAttack
from ._attacks import Regret as Regret
from ._audit_report import AuditReport as AuditReport
from ._bid_file import read_bids as read_bids
from ._bids import Bids as Bids
from ._bounds import (
    first_best_bound as first_best_bound,
)
from ._bounds import (
    fluid_bound as fluid_bound,
)
from ._bounds import (
    one_price_bound as one_price_bound,
)
from ._bounds import (
    prior_free_reference as prior_free_reference,
)
from ._collusion import CoalitionAttack as CoalitionAttack
from ._evaluation import judge as judge
from ._exact_optimum import TypeGrid as TypeGrid
from ._exact_optimum import exact_optimum as exact_optimum
from ._facts import MarketFacts as MarketFacts
from ._guarantees import (
    ApproximatelyTruthful as ApproximatelyTruthful,
)
from ._guarantees import (
    BudgetFeasible as BudgetFeasible,
)
from ._guarantees import (
    CollusionProof as CollusionProof,
)
from ._guarantees import (
    IndividuallyRational as IndividuallyRational,
)
from ._guarantees import (
    OutcomeGuarantee as OutcomeGuarantee,
)
from ._guarantees import (
    Truthful as Truthful,
)
from ._guarantees import (
    WithinOffer as WithinOffer,
)
from ._guarantees import (
    lie as lie,
)
from ._guarantees import (
    promises_of as promises_of,
)
from ._guarantees import (
    shortfall as shortfall,
)
from ._mechanism import Mechanism as Mechanism
from ._mechanism import Witness as Witness
from ._menu import POSTED_PRICE as POSTED_PRICE
from ._objectives import (
    AggregateError as AggregateError,
)
from ._objectives import (
    AggregationError as AggregationError,
)
from ._objectives import (
    Objective as Objective,
)
from ._objectives import (
    TotalEpsilon as TotalEpsilon,
)
from ._objectives import (
    TypicalAggregateError as TypicalAggregateError,
)
from ._objectives import (
    objective as objective,
)
from ._outcome import Outcome as Outcome
from ._randomised import RandomisedMechanism as RandomisedMechanism
from ._scenarios import Law as Law
from ._scenarios import scenario as scenario
