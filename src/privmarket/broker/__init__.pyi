from ._broker import Broker as Broker
from ._http_client import BrokerClient as BrokerClient
