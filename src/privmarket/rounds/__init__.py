"""One round of the market, wherever its parties are: terms, offers, awards, settlement, record, pacing, driver.

`Round` is a state machine without I/O. The simulation, the Flower apps and the broker all use it, so what it
enforces (payment on delivery, the rest refunded, no sale above an offer) holds in all of them. `play_round` plays a
round with four parties: those who bid (`Bidders`), the holder of the auction (`Auctioneer`), those who train
(`Trainers`), and the wallets that are charged. It needs NumPy and SciPy,
neither torch nor a web server.

Begin with `play_round`, then `Round`; `Terms`, `Offer`, `Award` and `RoundRecord` are what they pass around,
`Pacing` divides a run's money among its rounds.
"""

from privmarket.rounds._awards import Award, Offer, RoundRecord
from privmarket.rounds._driver import (
    Auctioneer,
    Bidders,
    Delivered,
    LocalAuctioneer,
    Report,
    Trainers,
    hold_auction,
    play_round,
    settle_round,
)
from privmarket.rounds._machine import Phase, Round
from privmarket.rounds._pacing import Pacing, offered_micro
from privmarket.rounds._terms import MICRO, RoundError, Terms, micro_units, sale_name

__all__ = [
    "MICRO",
    "Auctioneer",
    "Award",
    "Bidders",
    "Delivered",
    "LocalAuctioneer",
    "Offer",
    "Pacing",
    "Phase",
    "Report",
    "Round",
    "RoundError",
    "RoundRecord",
    "Terms",
    "Trainers",
    "hold_auction",
    "micro_units",
    "offered_micro",
    "play_round",
    "sale_name",
    "settle_round",
]
