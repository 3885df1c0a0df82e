from ._broker import Broker as Broker
from ._client import BrokerClient as BrokerClient
