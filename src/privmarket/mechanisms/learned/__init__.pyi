from ._dm_regretnet import DmRegretNet as DmRegretNet
from ._learned_mechanism import (
    LearnedMechanism as LearnedMechanism,
    OutsideTraining as OutsideTraining,
    network_mechanism as network_mechanism,
)
from ._literal import MfgRegretNetLiteral as MfgRegretNetLiteral
from ._losses import (
    Batch as Batch,
    Lagrangian as Lagrangian,
    Loss as Loss,
    Penalty as Penalty,
    Steering as Steering,
)
from ._markets import Markets as Markets, Trade as Trade
from ._menunet import MfgMenuNet as MfgMenuNet
from ._mfg_regretnet import MfgRegretNet as MfgRegretNet
from ._networks import (
    AuctionNetwork as AuctionNetwork,
    MenuLadder as MenuLadder,
    keep_promises as keep_promises,
    multilayer as multilayer,
    within_budget as within_budget,
)
from ._objectives import TrainingObjective as TrainingObjective, reference_quantity as reference_quantity
from ._regretformer import RegretFormer as RegretFormer
from ._regretnet import RegretNet as RegretNet
from ._session import EarlyStop as EarlyStop
from ._train import TrainingResult as TrainingResult, train as train
from ._trainer import TrainingStep as TrainingStep
