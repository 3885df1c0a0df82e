"""Upper bounds on what a misreport can gain, beside the lower bounds that attacks find."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privmarket._settings import TOLERANCE
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism

# Offers below this share of the own are not told apart from nothing.
_LEAST_SHARE = 1e-9


@dataclass(frozen=True, eq=False)
class CertifiedRegret:
    """What misreports gain the clients of one market, from below and from above; (clients,) each.

    Attributes:
        lower: a gain that some report reaches.
        upper: no report of those that `reports` names gains more.
        reports: which reports the bound is about, in words.
        closed: whether the bound says more than that nobody is paid more than the whole budget.
        valuation_only: the bound is about misreports of v; otherwise of v and ε together.
    """

    lower: Array
    upper: Array
    reports: str
    closed: NDArray[np.bool_]
    valuation_only: bool = False

    @property
    def ratio(self) -> float:
        """How far the bound is from closing: the largest upper bound over the largest gain that was found."""
        found = float(self.lower.max())
        return float(self.upper.max()) / found if found > 0 else np.inf


def certified_regret(rule: Mechanism, bids: Bids, budget: float, *, closeness: float = 1e-5) -> CertifiedRegret:
    """Bounds from above what any misreport can gain a client of one market.

    Menus are constant between the prices that a client faces and linear between the kinks of its offer, so it is
    enough to try one report of each piece, as far as `own_pieces` names all prices and kinks. Network rules are
    bounded box by box.

    Args:
        bids: one market, (clients,).
        closeness: how near the bounds of a network rule should come, as a share of the budget.

    Raises:
        ConfigurationError: nothing is known about rules of this kind.
    """
    check_certifiable(rule, bids, budget)
    if _describes(rule, "own_pieces"):
        return _by_pieces(rule, bids, budget)
    found: CertifiedRegret = rule.certify(bids, budget, closeness)  # type: ignore[attr-defined]
    return found


def check_certifiable(rule: Mechanism, bids: Bids, budget: float) -> None:
    """Refuses within one auction what `certified_regret` would refuse.

    Raises:
        ConfigurationError: nothing is known about rules of this kind, or about operations of this network.
    """
    if bids.valuation.ndim != 1:
        raise ConfigurationError(f"bids of shape {bids.shape}", "give one market, (clients,)")
    if _describes(rule, "own_pieces"):
        return
    if not _describes(rule, "certify"):
        raise ConfigurationError(
            f"{rule.name}: no upper bound on its regret is known",
            "menus and learned rules have one; a class that changes `clear` must give `own_pieces` anew",
        )
    if hasattr(rule, "check_bounded"):
        rule.check_bounded(bids, budget)


def _describes(rule: Mechanism, method: str) -> bool:
    """Whether the rule has that method, and not from a class above one that clears in another way."""
    kinds = type(rule).__mro__
    described = [place for place, kind in enumerate(kinds) if method in vars(kind)]
    cleared = [place for place, kind in enumerate(kinds) if "clear" in vars(kind) or "run" in vars(kind)]
    return bool(described) and described[0] <= cleared[0]


def _by_pieces(rule: Mechanism, bids: Bids, budget: float) -> CertifiedRegret:
    """Tries one report inside each piece of the menu that a client faces, at each kink of its offer.

    Between two prices that it faces a client's valuation changes nothing, and between two kinks ε and pay are
    linear in the offer, so the utility is largest at a kink or at an end.
    """
    truth = rule.run(bids, budget).utility(bids)
    prices, kinks = rule.own_pieces(bids, budget)  # type: ignore[attr-defined]
    gain = np.zeros(bids.clients)
    for client in range(bids.clients):
        ranked = np.unique(np.append(0.0, prices[client]))
        inside = np.append(0.5 * (ranked[1:] + ranked[:-1]), 2.0 * ranked[-1] + 1.0)
        own = float(bids.epsilon[client])
        offers = np.append(kinks[client][kinks[client] < own], [_LEAST_SHARE * own, own])
        reported, offered = (part.ravel() for part in np.meshgrid(np.append(inside, ranked), offers))
        valuation = np.tile(bids.valuation, (reported.size, 1))
        epsilon = np.tile(bids.epsilon, (reported.size, 1))
        valuation[:, client] = reported
        epsilon[:, client] = offered
        market = bids.replace(
            valuation=valuation,
            epsilon=epsilon,
            data_size=_rows(bids.data_size, reported.size),
            accuracy=_rows(bids.accuracy, reported.size),
        )
        outcome = rule.run(market, budget)
        utility = outcome.payment[:, client] - bids.valuation[client] * outcome.epsilon[:, client]
        gain[client] = max(float(utility.max() - truth[client]), 0.0)
    return CertifiedRegret(
        gain,
        gain + TOLERANCE * budget,
        "any valuation and any offer up to the own, piece by piece",
        np.ones(bids.clients, dtype=bool),
    )


def _rows(column: Array | None, count: int) -> Array | None:
    return None if column is None else np.tile(column, (count, 1))
