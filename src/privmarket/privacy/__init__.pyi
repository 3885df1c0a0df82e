from ._accountant import (
    Accountant as Accountant,
    Certificate as Certificate,
    PldAccountant as PldAccountant,
    RdpAccountant as RdpAccountant,
    accounted_epsilon as accounted_epsilon,
    certify as certify,
)
from ._calibration import (
    ReleaseFamily as ReleaseFamily,
    noise_multiplier as noise_multiplier,
    release_epsilon as release_epsilon,
)
from ._events import OtherRelease as OtherRelease, PrivacyEvent as PrivacyEvent
from ._laplace import DiscreteLaplaceRelease as DiscreteLaplaceRelease, LaplaceRelease as LaplaceRelease
from ._noise import NoiseSource as NoiseSource
from ._policy import SellerPolicy as SellerPolicy
from ._release import ReleaseGrid as ReleaseGrid, sum_inflation as sum_inflation
from ._release_audit import (
    Scores as Scores,
    audit_family as audit_family,
    collect_scores as collect_scores,
)
from ._statistics import (
    Count as Count,
    Histogram as Histogram,
    Mean as Mean,
    ReleasedStatistic as ReleasedStatistic,
    Statistic as Statistic,
    release_statistic as release_statistic,
)
from ._wallet import Wallet as Wallet, Wallets as Wallets
from ._wallet_store import WalletFile as WalletFile
