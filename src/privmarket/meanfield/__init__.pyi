from ._bid_function import (
    BidFunction as BidFunction,
)
from ._bid_function import (
    Surface as Surface,
)
from ._bid_function import (
    load_bid_function as load_bid_function,
)
from ._bid_function import (
    truthful as truthful,
)
from ._game import DiscreteGame as DiscreteGame
from ._game import Flow as Flow
from ._grid import Grid as Grid
from ._grid import Mesh as Mesh
from ._problem import Problem as Problem
from ._representative import (
    MenuMarket as MenuMarket,
)
from ._representative import (
    QuadraticMarket as QuadraticMarket,
)
from ._representative import (
    RepresentativeMarket as RepresentativeMarket,
)
from ._schemes import (
    SCHEMES as SCHEMES,
)
from ._schemes import (
    BudgetScheme as BudgetScheme,
)
from ._schemes import (
    ExplicitUpwind as ExplicitUpwind,
)
from ._schemes import (
    ImplicitUpwind as ImplicitUpwind,
)
from ._solver import (
    Equilibrium as Equilibrium,
)
from ._solver import (
    Note as Note,
)
from ._solver import (
    Result as Result,
)
from ._solver import (
    Statistics as Statistics,
)
from ._solver import (
    exploitability as exploitability,
)
from ._solver import (
    solve as solve,
)
