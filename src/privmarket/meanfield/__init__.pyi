from ._assumptions import (
    Assumptions as Assumptions,
    Slope as Slope,
    check_assumptions as check_assumptions,
    payment_slope as payment_slope,
)
from ._equilibrium import (
    BidFunction as BidFunction,
    Equilibrium as Equilibrium,
    Note as Note,
    Result as Result,
    Statistics as Statistics,
    Surface as Surface,
    load_bid_function as load_bid_function,
    truthful as truthful,
)
from ._game import DiscreteGame as DiscreteGame, Flow as Flow
from ._grid import Grid as Grid, Mesh as Mesh
from ._markets import (
    MenuMarket as MenuMarket,
    QuadraticMarket as QuadraticMarket,
    RepresentativeMarket as RepresentativeMarket,
)
from ._methods import (
    METHODS as METHODS,
    BestResponse as BestResponse,
    FictitiousPlay as FictitiousPlay,
    Method as Method,
    OnlineMirrorDescent as OnlineMirrorDescent,
)
from ._nash_gap import FiniteGame as FiniteGame, FiniteRun as FiniteRun, NashGap as NashGap, nash_gap as nash_gap
from ._problem import Population as Population, Problem as Problem
from ._schemes import (
    SCHEMES as SCHEMES,
    AccuracyOrder as AccuracyOrder,
    BudgetScheme as BudgetScheme,
    ExplicitUpwind as ExplicitUpwind,
    ImplicitUpwind as ImplicitUpwind,
)
from ._solver import exploitability as exploitability, solve as solve
from ._valuations import (
    Diffusion as Diffusion,
    MeanReverting as MeanReverting,
    Transition as Transition,
    ValuationProcess as ValuationProcess,
)
