from . import (
    broker as broker,
    flower as flower,
    market as market,
    meanfield as meanfield,
    mechanisms as mechanisms,
    privacy as privacy,
    rounds as rounds,
    secagg as secagg,
    simulation as simulation,
    tasks as tasks,
    training as training,
)
from .broker._client import BrokerClient as BrokerClient
from .errors import PrivmarketError as PrivmarketError
from .market._bids import Bids as Bids
from .market._distributions import scenario as scenario
from .market._facts import MarketFacts as MarketFacts
from .market._mechanism import Mechanism as Mechanism
from .market._outcome import Outcome as Outcome
from .mechanisms._registry import mechanism as mechanism, mechanism_names as mechanism_names
from .mechanisms.learned._train import train as train
from .privacy._wallet import Wallet as Wallet
from .reports._comparison import Comparison as Comparison, audit as audit, compare as compare
from .simulation._federate import federate as federate
from .simulation._plan import plan as plan
from .tasks._builtin import task as task
from .tasks._task import Task as Task

__version__: str
