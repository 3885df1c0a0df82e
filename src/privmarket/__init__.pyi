from . import (
    broker as broker,
)
from . import (
    flower as flower,
)
from . import (
    market as market,
)
from . import (
    meanfield as meanfield,
)
from . import (
    mechanisms as mechanisms,
)
from . import (
    privacy as privacy,
)
from . import (
    rounds as rounds,
)
from . import (
    secagg as secagg,
)
from . import (
    simulation as simulation,
)
from . import (
    tasks as tasks,
)
from . import (
    training as training,
)
from .broker._client import BrokerClient as BrokerClient
from .errors import PrivmarketError as PrivmarketError
from .market._bids import Bids as Bids
from .market._distributions import scenario as scenario
from .market._facts import MarketFacts as MarketFacts
from .market._mechanism import Mechanism as Mechanism
from .market._outcome import Outcome as Outcome
from .mechanisms._registry import mechanism as mechanism
from .mechanisms._registry import mechanism_names as mechanism_names
from .mechanisms.learned._train import train as train
from .privacy._wallet import Wallet as Wallet
from .reports._comparison import audit as audit
from .reports._comparison import compare as compare
from .simulation._federate import federate as federate
from .simulation._plan import plan as plan
from .tasks._builtin import task as task
from .tasks._task import Task as Task

__version__: str
