"""The markets and rules that the questions about auctions share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from privmarket._lazy import late
from privmarket.market._distributions import Distribution, scenario
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._recipes import recipe

if TYPE_CHECKING:
    from privmarket.mechanisms.learned import _trained_weights as trained_weights
else:
    trained_weights = late("privmarket.mechanisms.learned._trained_weights")

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
LEARNED = ("mfg-menunet", "regretnet", "dm-regretnet", "mfg-regretnet")
RULES = (*CLASSICAL, *LEARNED)
LITERAL = ("pac:literal", "vcg:literal", "mfg-pricing:literal", "mfg-regretnet:literal")
# `mfg-regretnet` before its first step of training.
UNTRAINED = "mfg-regretnet:untrained"
# Rules that no misreport helps against, in v and in withheld ε: what the tests hold them to.
EXACT = ("pac", "mean-field-menu", "mfg-menunet")


def rule_for(name: str, law: Distribution, **settings: object) -> Mechanism:
    """The rule called `name`, told the market's public law and limit where it wants to know them."""
    if name == UNTRAINED:
        return _untrained()
    return mechanism(name, market=MarketFacts.of(law), **settings)


@lru_cache(maxsize=1)
def _untrained() -> Mechanism:
    """The network of `mfg-regretnet` as its recipe starts it: a ladder of menus built by hand, not trained."""
    chosen = recipe(UNTRAINED.partition(":")[0])
    trainer = trained_weights.new_trainer(chosen, [scenario(law) for law in chosen.scenarios])
    with TemporaryDirectory() as folder:
        start = Path(folder) / "untrained.safetensors"
        trained_weights.write_weights(start, trainer, 0.0, {})
        return trained_weights.mechanism_class(chosen.mechanism)(weights=start)


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
