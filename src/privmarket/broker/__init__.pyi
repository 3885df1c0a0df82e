from ._broker import Broker as Broker
from ._client import BrokerClient as BrokerClient
from ._signatures import SigningKey as SigningKey
