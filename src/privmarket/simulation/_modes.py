"""What a run does with privacy: the market's own training, or one of three references to compare it with.

Loads nothing, so that commands start quickly and a client can bid without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mode:
    """How a run treats privacy.

    Attributes:
        name: as in configurations.
        reference: how clients train instead of by clipped gradients, in a reference that is no private training:
            ordinary local training, or the paper's as printed, with noise on the trained weights.
        holds_auctions: False trains everyone with records, for free.
        counts_epsilon: wallets limit what is offered and are charged for what is sold.
        is_private: the sold noise is added and the stated ε is true; else no ε is stated.
        uses_server_plan: the server's momentum and averaging are used; else it takes the average as it is.
        aggregation: weights of the updates that replace the configured ones.
        on_pixels: it trains the paper's MLP on pixels where nothing else is asked for.
    """

    name: str
    reference: Literal["plain", "literal"] | None = None
    holds_auctions: bool = True
    counts_epsilon: bool = False
    is_private: bool = False
    uses_server_plan: bool = False
    aggregation: str | None = None
    on_pixels: bool = False

    @property
    def leaves_noise_out(self) -> bool:
        """A private run's market, clipping and wallets, without its noise: what a private run is compared with."""
        return self.counts_epsilon and not self.is_private


_ALL = (
    Mode("private", counts_epsilon=True, is_private=True, uses_server_plan=True),
    # Without noise the wallets are charged as if there were some, so that the same clients sell.
    Mode("no-noise", counts_epsilon=True, uses_server_plan=True),
    Mode("no-dp", "plain", holds_auctions=False),
    Mode("literal", "literal", aggregation="epsilon", on_pixels=True),
)
MODES = {mode.name: mode for mode in _ALL}
