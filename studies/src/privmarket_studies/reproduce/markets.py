"""The markets and rules that the questions about auctions share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from privmarket.market._distributions import Distribution
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms import mechanism

CLASSICAL = (
    "pac",
    "vcg",
    "k-plus-one-price",
    "csra",
    "jsam",
    "mfg-pricing",
    "proportional-share",
    "mean-field-menu",
)
LEARNED = ("mfg-menunet", "regretnet", "dm-regretnet", "regretformer", "mfg-regretnet")
RULES = (*CLASSICAL, *LEARNED)
LITERAL = ("pac:literal", "vcg:literal", "mfg-pricing:literal", "mfg-regretnet:literal")
# Its clients look at each other in pairs: larger markets than this are not timed.
IN_PAIRS, MOST_IN_PAIRS = "regretformer", 1_000
# `mfg-regretnet` before its first step of training.
UNTRAINED = "mfg-regretnet:untrained"
# Rules that no misreport helps against, in v and in withheld ε: what the tests hold them to.
EXACT = ("pac", "mean-field-menu", "mfg-menunet")


def rule_for(name: str, distribution: Distribution, **settings: object) -> Mechanism:
    """The rule called `name`, told the market's public distribution and limit where it wants to know them."""
    return mechanism(name, market=MarketFacts.of(distribution), **settings)


@contextmanager
def outside_training() -> Iterator[list[str]]:
    """Collects what learned rules say about markets that they were not trained for, instead of printing it."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield said
    said.extend(sorted({str(w.message) for w in caught if w.category.__name__ == "OutsideTraining"}))
    for other in caught:
        if other.category.__name__ != "OutsideTraining":
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
