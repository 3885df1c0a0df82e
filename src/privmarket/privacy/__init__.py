"""Privacy that is sold: what was released, how much noise it needs, what it costs, what is left.

- `events`: what was released.
- `gaussian`, `renyi`: closed forms of one noisy step.
- `calibration`, `tables`: how much noise a sold ε needs.
- `accountant`, `certificate`, `statement`: what many releases cost together.
- `wallet`, `wallet_measures`, `wallet_store`, `wallet_file`: lifetime caps, and where they are stored.
- `release`, `integer_noise`, `noise`: the release kernel, its exact noise, and its random bits.
- `policy`, `policy_file`: what a seller agrees to.
- `words`: what a sale promises, in words.
- `release_audit`: lower bounds on ε from attacks on releases.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.privacy import (
        accountant,
        calibration,
        certificate,
        events,
        gaussian,
        integer_noise,
        noise,
        policy,
        policy_file,
        release,
        release_audit,
        renyi,
        statement,
        tables,
        wallet,
        wallet_file,
        wallet_measures,
        wallet_store,
        words,
    )
    from privmarket.privacy.accountant import RdpAccountant
    from privmarket.privacy.calibration import ReleaseFamily, noise_multiplier, release_epsilon
    from privmarket.privacy.certificate import Certificate, certify
    from privmarket.privacy.events import PrivacyEvent
    from privmarket.privacy.noise import NoiseSource
    from privmarket.privacy.policy import SellerPolicy
    from privmarket.privacy.wallet import Wallet
    from privmarket.privacy.wallet_file import WalletFile

__all__ = [
    "Certificate",
    "NoiseSource",
    "PrivacyEvent",
    "RdpAccountant",
    "ReleaseFamily",
    "SellerPolicy",
    "Wallet",
    "WalletFile",
    "accountant",
    "calibration",
    "certificate",
    "certify",
    "events",
    "gaussian",
    "integer_noise",
    "noise",
    "noise_multiplier",
    "policy",
    "policy_file",
    "release",
    "release_audit",
    "release_epsilon",
    "renyi",
    "statement",
    "tables",
    "wallet",
    "wallet_file",
    "wallet_measures",
    "wallet_store",
    "words",
]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "Certificate": "privmarket.privacy.certificate",
    "NoiseSource": "privmarket.privacy.noise",
    "PrivacyEvent": "privmarket.privacy.events",
    "RdpAccountant": "privmarket.privacy.accountant",
    "ReleaseFamily": "privmarket.privacy.calibration",
    "SellerPolicy": "privmarket.privacy.policy",
    "Wallet": "privmarket.privacy.wallet",
    "WalletFile": "privmarket.privacy.wallet_file",
    "certify": "privmarket.privacy.certificate",
    "noise_multiplier": "privmarket.privacy.calibration",
    "release_epsilon": "privmarket.privacy.calibration",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
