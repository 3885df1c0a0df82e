"""What a finished run came to, in sentences: money, accuracy, what the noise cost, how strong its ε is.

Every sentence is made from the runs' figures, and says less where a run knows less: a run without its noise-free
twin says nothing about what noise cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from privmarket.counted import counted
from privmarket.federated.state import RunResult
from privmarket.federated.summary import ClientRow, client_table
from privmarket.market.evaluation import beyond_rounding
from privmarket.plans import TRUSTS, Trust
from privmarket.privacy.accountant import composed_epsilon
from privmarket.privacy.certificate import guess_accuracy
from privmarket.privacy.words import Promise, promise, rounded_up_percent
from privmarket.rounds import MICRO, offered_micro

CURRENCY = "credits"
"""What a unit of money is called where nobody named it, as on the broker's pages."""

# Right guesses about a record, starting at 50:50: up to this share, this word.
_STRENGTHS = ((0.6, "strong"), (0.75, "moderate"), (0.95, "weak"), (1.0, "very weak"))


@dataclass(frozen=True)
class MisreportCheck:
    """What an attack on the auction of the first round found.

    Attributes:
        largest_gain: most money that a client could gain by a false report of v or ε.
        mean_payment: mean payment of that round's sellers.
        budget: money of that round.
    """

    largest_gain: float
    mean_payment: float
    budget: float

    @property
    def sentence(self) -> str:
        """Whether a misreport paid."""
        if not beyond_rounding(self.largest_gain, self.budget):
            return "no misreport paid in the round that was attacked"
        share = self.largest_gain / self.mean_payment if self.mean_payment else 0.0
        gained = f"{self.largest_gain:.2g}, {percent(share)} of a mean payment"
        return f"the best misreport in the round that was attacked gained {gained}"


def worst_promise(result: RunResult) -> Promise | None:
    """What the run's sales promise to a record of the client that sold most; None where nothing is promised."""
    config = result.config
    if not config.privacy.is_private:
        return None
    histories = [[e for entry in result.wallets.history if (e := entry[i])] for i in range(config.clients)]
    most = max(histories, key=lambda events: composed_epsilon(events, config.delta))
    if not most:
        return None
    trust = cast("Trust", config.trust)
    share = config.honest_share if trust == "aggregate" else None
    if config.training.sampling_rate < 1.0:  # the whole curve of many sampled sales takes minutes; ε and δ do not
        epsilon = composed_epsilon(most, config.delta)
        guess = guess_accuracy(epsilon, config.delta)
        return Promise(epsilon, config.delta, guess, trust=trust, seeded=True, honest_share=share)
    return promise(most, config.delta, trust=trust, seeded=True, honest_share=share)


def percent(share: float) -> str:
    """A share as pages write it: 0.9083 → 90.8 %."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def epsilon_text(epsilon: float) -> str:
    """An ε as sentences write it, never broken over two lines."""
    return f"ε = {epsilon:.3g}".replace(" ", "\N{NO-BREAK SPACE}")


def strength(guess: float) -> str:
    """A word for a promise by how often a guess about a record can be right: strong, moderate, weak, very weak."""
    return next(word for limit, word in _STRENGTHS if guess <= limit + 1e-12)


def strength_sentence(promised: Promise | None) -> str:
    """How much the run's largest ε protects, in words."""
    if promised is None:
        return "Nothing is promised about any record."
    return (
        f"{epsilon_text(promised.epsilon)} at δ = {promised.delta:g} is a {strength(promised.guess)} promise: "
        "someone who guesses whether one particular record of that client was used, starting at 50:50, "
        f"is right at most {rounded_up_percent(promised.guess)} of the time."
    )


def verdict(
    runs: Mapping[str, RunResult], misreports: MisreportCheck | None = None, currency: str = CURRENCY
) -> str:
    """One sentence about the first run: money, accuracy, what noise cost, what misreports gained, most ε sold."""
    main = next(iter(runs.values()))
    if not main.config.privacy.holds_auctions:
        return f"Without a market and without privacy the model got {percent(main.accuracy)} of the test right."
    parts = [
        f"For {main.spent:,.0f} of a budget of {main.config.money_in_all:,.0f} {currency} you got a model that is "
        f"right on {percent(main.accuracy)} of the test"
        + (f", under {main.config.trust} trust" if main.config.privacy.is_private else "")
    ]
    twin = noise_free_twin(runs)
    if twin is not None:
        # Of the figures as they are shown, so that a reader who subtracts them gets the same.
        lost = round(100 * twin.accuracy, 1) - round(100 * main.accuracy, 1)
        parts.append(f"privacy noise cost {lost:.1f} points" if lost >= 0.05 else "privacy noise cost nothing")
    if misreports is not None:
        parts.append(misreports.sentence)
    parts.append(_most_spent(main))
    return "; ".join(parts) + "."


def both_trusts(runs: Mapping[str, RunResult]) -> list[RunResult]:
    """The private runs that differ in whom sellers trust, local first; empty where only one was made."""
    private = [run for run in runs.values() if run.config.privacy.is_private]
    found = {run.config.trust: run for run in reversed(private)}
    return [found[trust] for trust in TRUSTS] if len(found) == 2 else []


def other_trust_sentence(runs: Mapping[str, RunResult], currency: str = CURRENCY) -> str:
    """What the same clients gave under the trust that the first run does not have; empty where that was not run."""
    main = next(iter(runs.values()))
    other = next((run for run in both_trusts(runs) if run.config.trust != main.config.trust), None)
    if other is None:
        return ""
    sees = "only sums of updates" if other.config.trust == "aggregate" else "every update"
    most = max(row["epsilon_spent"] or 0.0 for row in client_table(other))
    return (
        f"Under {other.config.trust} trust, where the server sees {sees}, {other.spent:,.0f} {currency} bought "
        f"{percent(other.accuracy)}, and nobody sold more than {epsilon_text(most)}."
    )


def _most_spent(result: RunResult) -> str:
    if not result.config.privacy.is_private:
        return "no privacy is promised in this run"
    if result.config.wallet is not None:
        return f"nobody passed the lifetime cap of {epsilon_text(result.config.wallet)}"
    most = max(row["epsilon_spent"] or 0.0 for row in client_table(result))
    return f"nobody sold more than {epsilon_text(most)} over the whole run"


def noise_free_twin(runs: Mapping[str, RunResult]) -> RunResult | None:
    """The same run with the noise left out, where it was made."""
    return next((run for run in runs.values() if run.config.privacy.leaves_noise_out), None)


def accuracy_takeaway(runs: Mapping[str, RunResult]) -> str:
    """What the accuracy lines show."""
    main, twin = next(iter(runs.values())), noise_free_twin(runs)
    measured = [(r.number + 1, r.accuracy) for r in main.records if r.accuracy is not None]
    near = next(number for number, accuracy in measured if accuracy >= 0.95 * main.accuracy)
    said = f"Most of it is learned by round {near} of {main.config.rounds}"
    if twin is None:
        return f"{said}; it ends at {percent(main.accuracy)}."
    return f"{said}; it ends at {percent(main.accuracy)}, and at {percent(twin.accuracy)} without noise."


def sales_takeaway(result: RunResult) -> str:
    """Who sold, and what those asked that never did."""
    sold = result.sold_epsilon.any(axis=0)
    said = f"{sold.sum()} of {counted(sold.size, 'client')} sold at least once"
    asks = result.types.valuation
    if result.config.types == "persistent" and 0 < sold.sum() < sold.size and asks[~sold].min() >= asks[sold].max():
        return f"{said}; the others ask {asks[~sold].min():.2f} or more per unit of ε, too much for this budget."
    return said + "."


def money_takeaway(result: RunResult, currency: str = CURRENCY) -> str:
    """What was paid and what came back."""
    spent_micro = sum(record.spent_micro for record in result.records)
    back = (offered_micro(result.config, result.records) - spent_micro) / MICRO
    sellers = float(np.mean([record.sellers for record in result.records]))
    return (
        f"{result.spent:,.2f} {currency} went to {counted(round(sellers), 'seller')} in a mean round; "
        f"{back:,.2f} of the rounds' money was not needed and went back."
    )


def wallet_takeaway(rows: Sequence[ClientRow], cap: float | None) -> str:
    """How far the clients' lifetime ε went."""
    most = max((row["epsilon_spent"] or 0.0 for row in rows), default=0.0)
    if cap is None:
        return f"The largest total is {epsilon_text(most)}; no wallet had a cap."
    empty = sum((row["wallet_left"] or 0.0) < 0.05 for row in rows)
    return f"{empty} of {len(rows)} wallets are used up, and none passed its cap of {epsilon_text(cap)}."
