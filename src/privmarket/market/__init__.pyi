from ._attacks import (
    AscentAttack as AscentAttack,
    Attack as Attack,
    CoalitionAttack as CoalitionAttack,
    GridAttack as GridAttack,
    Regret as Regret,
    UpwardAttack as UpwardAttack,
)
from ._audit import AuditReport as AuditReport, judge as judge
from ._bids import Bids as Bids, read_bids as read_bids
from ._bounds import (
    first_best_bound as first_best_bound,
    fluid_bound as fluid_bound,
    one_price_bound as one_price_bound,
    prior_free_reference as prior_free_reference,
)
from ._certificate import CertifiedRegret as CertifiedRegret, certified_regret as certified_regret
from ._distributions import Distribution as Distribution, distribution as distribution, scenario as scenario
from ._exact_optimum import TypeGrid as TypeGrid, exact_optimum as exact_optimum
from ._facts import MarketFacts as MarketFacts
from ._guarantees import (
    ApproximatelyTruthful as ApproximatelyTruthful,
    BudgetFeasible as BudgetFeasible,
    CollusionProof as CollusionProof,
    IndividuallyRational as IndividuallyRational,
    OutcomeGuarantee as OutcomeGuarantee,
    Truthful as Truthful,
    WithinOffer as WithinOffer,
    promises_of as promises_of,
)
from ._mechanism import Mechanism as Mechanism, Witness as Witness, WitnessTypes as WitnessTypes
from ._menus import POSTED_PRICE as POSTED_PRICE, MenuCurve as MenuCurve
from ._objectives import (
    AggregateError as AggregateError,
    AggregationError as AggregationError,
    LocalError as LocalError,
    Objective as Objective,
    TotalEpsilon as TotalEpsilon,
    TypicalAggregateError as TypicalAggregateError,
    objective as objective,
)
from ._outcome import Outcome as Outcome
from ._randomised import FixedCoins as FixedCoins, RandomisedMechanism as RandomisedMechanism
