from ._accountant import RdpAccountant as RdpAccountant
from ._calibration import (
    ReleaseFamily as ReleaseFamily,
)
from ._calibration import (
    noise_multiplier as noise_multiplier,
)
from ._calibration import (
    release_epsilon as release_epsilon,
)
from ._certificate import Certificate as Certificate
from ._certificate import certify as certify
from ._events import PrivacyEvent as PrivacyEvent
from ._noise import NoiseSource as NoiseSource
from ._policy import SellerPolicy as SellerPolicy
from ._release import ReleaseGrid as ReleaseGrid
from ._release import sum_inflation as sum_inflation
from ._release_audit import audit_family as audit_family
from ._release_audit import collect_scores as collect_scores
from ._wallet import Wallet as Wallet
from ._wallet import Wallets as Wallets
from ._wallet_file import WalletFile as WalletFile
