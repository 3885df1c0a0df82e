"""What a bid would earn at least and cost at most, in words, before it is sent."""

from __future__ import annotations

from copy import copy
from functools import lru_cache

from privmarket.broker import _wallets as wallets
from privmarket.market._guarantees import IndividuallyRational
from privmarket.mechanisms import mechanism as rule
from privmarket.mechanisms import mechanism_names
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._statement import promise


@lru_cache(maxsize=64)
def pays_what_is_asked(mechanism: str) -> bool:
    """Whether a rule promises to pay each seller at least its price; unknown rules promise nothing."""
    known = rule(mechanism).guarantees if mechanism in mechanism_names() else ()
    return any(isinstance(one, IndividuallyRational) for one in known)


def at_worst(
    record: wallets.WalletRecord, family: ReleaseFamily, mechanism: str, price: float, offered: float, currency: str
) -> str:
    """Money, the wallet before and after, and what the sold ε means for one record.

    Args:
        record: the seller's wallet.
        price: money asked per unit of ε.
        offered: the most ε on offer, above 0.
    """
    before = wallets.restore([record])
    fits = float(before.trim(family, [offered])[0])
    if fits == 0:
        return "Your lifetime wallet has nothing left for this kind of release."
    after = copy(before)
    after.spend(family.events([fits]))
    share = [f"{100 * float(one.remaining_share[0]):.0f} %" for one in (before, after)]
    cut = "" if fits == offered else f" (your wallet allows no more than ε = {fits:.3g})"
    least = f"{price * fits:,.2f} {currency}"
    money = f"you are paid at least {least}, and less in proportion where you sell less"
    if not pays_what_is_asked(mechanism):
        money = f"you may be paid less than the {least} that you ask: {mechanism} promises no price"
    words = promise([family.event(fits)], family.delta, epsilon=fits).sentence
    cap = f"its cap of ε = {record.cap_epsilon:g}"
    wallet = f"At worst your lifetime wallet falls from {share[0]} to {share[1]} of {cap}."
    return f"If you sell all of it{cut}, {money}. {wallet} {words[0].upper()}{words[1:]}."
