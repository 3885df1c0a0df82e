from ._array_training import train_arrays_privately as train_arrays_privately
from ._client import client_app as client_app
from ._federation import federation_client as federation_client, federation_server as federation_server
from ._guard_mod import GuardMod as GuardMod
from ._guard_release import average_privately as average_privately
from ._in_process import InProcessGrid as InProcessGrid, run_in_process as run_in_process
from ._mod import WalletMod as WalletMod
from ._result import MarketResult as MarketResult
from ._server import server_app as server_app
from ._settings import MarketSettings as MarketSettings
from ._strategy import AuctionStrategy as AuctionStrategy
from ._training import train_privately as train_privately
