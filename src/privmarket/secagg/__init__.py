"""Secure sums: the server learns the sum of the sellers' integers, and no single vector.

The protocol is that of Bonawitz et al. (CCS 2017) against a malicious server: every pair of sellers shares a
mask, each seller's secrets are shared among all at a threshold, and survivors sign one list before anything is
opened. `Client` and `Server` are state machines that take and return messages; they need no network, no Flower
and no torch.

>>> import numpy as np
>>> from privmarket.secagg import Client, MemoryJournal, SigningIdentity, SumTerms, add_up, exact_bits
>>> sellers = [SigningIdentity.generate() for _ in range(5)]
>>> terms = SumTerms(
...     task="demo", round=0, members=tuple(sorted(one.public_key for one in sellers)), honest_share=0.6,
...     length=3, bits=exact_bits(100, 5), largest=100, binding=bytes(32),
... )
>>> clients = {one.public_key: Client(one, MemoryJournal()) for one in sellers}
>>> vectors = {key: np.array([1, -2, 30]) for key in clients}
>>> add_up(terms, clients, vectors).total
array([  5, -10, 150])

Theory, assumptions and figures: docs/theory/secure-sums.md.
"""

from privmarket.secagg._backend import SumBackend
from privmarket.secagg._client import Client
from privmarket.secagg._cohorts import (
    DEFAULT_COHORT,
    cohort_sizes,
    cohorts_of,
    commitment,
    crowded_cohort_probability,
    deal_cohorts,
    deal_places,
    dealing_seed,
    honest_per_cohort,
)
from privmarket.secagg._dealing import Dealer
from privmarket.secagg._errors import SumClosed, SumRefusal
from privmarket.secagg._in_memory import add_up, answer
from privmarket.secagg._journal import FileJournal, MemoryJournal, Step, SumJournal
from privmarket.secagg._keys import Signer, SigningIdentity
from privmarket.secagg._messages import (
    AdvertisedKeys,
    CheckedShares,
    Commitment,
    CommitmentList,
    Confirmation,
    Confirmations,
    DealerMessage,
    DealingCall,
    DealtMessage,
    DeliveredShares,
    InputRequest,
    Invitation,
    KeyList,
    MaskedInput,
    Message,
    OpenedSecret,
    OpenedShares,
    Parcel,
    SealedShares,
    SellerMessage,
    ServerMessage,
    SurvivorList,
    from_bytes,
    to_bytes,
)
from privmarket.secagg._plan import (
    MODULUS_BITS,
    MOST_DRAWS,
    SharedSum,
    alone_noise_multiplier,
    bits_at_most,
    colluders_allowed,
    honest_sellers,
    largest_weights,
    modular_sum,
    require_covered,
    survivors_needed,
)
from privmarket.secagg._register import SellerRegister
from privmarket.secagg._roster import DealingTerms, Roster
from privmarket.secagg._server import OpenedSum, Phase, Server
from privmarket.secagg._terms import SumTerms, exact_bits

__all__ = [
    "DEFAULT_COHORT",
    "MODULUS_BITS",
    "MOST_DRAWS",
    "AdvertisedKeys",
    "CheckedShares",
    "Client",
    "Commitment",
    "CommitmentList",
    "Confirmation",
    "Confirmations",
    "Dealer",
    "DealerMessage",
    "DealingCall",
    "DealingTerms",
    "DealtMessage",
    "DeliveredShares",
    "FileJournal",
    "InputRequest",
    "Invitation",
    "KeyList",
    "MaskedInput",
    "MemoryJournal",
    "Message",
    "OpenedSecret",
    "OpenedShares",
    "OpenedSum",
    "Parcel",
    "Phase",
    "Roster",
    "SealedShares",
    "SellerMessage",
    "SellerRegister",
    "Server",
    "ServerMessage",
    "SharedSum",
    "Signer",
    "SigningIdentity",
    "Step",
    "SumBackend",
    "SumClosed",
    "SumJournal",
    "SumRefusal",
    "SumTerms",
    "SurvivorList",
    "add_up",
    "alone_noise_multiplier",
    "answer",
    "bits_at_most",
    "cohort_sizes",
    "cohorts_of",
    "colluders_allowed",
    "commitment",
    "crowded_cohort_probability",
    "deal_cohorts",
    "deal_places",
    "dealing_seed",
    "exact_bits",
    "from_bytes",
    "honest_per_cohort",
    "honest_sellers",
    "largest_weights",
    "modular_sum",
    "require_covered",
    "survivors_needed",
    "to_bytes",
]
