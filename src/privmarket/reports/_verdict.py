"""The result of a finished run in sentences: free baseline, money, accuracy, the cost of noise, the strength of its
ε.

Every sentence is made from the runs' figures, and is left out if these are missing: without a run that leaves out
the noise, nothing is said about the cost of noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from privmarket._counted import counted
from privmarket._settings import TRUSTS, Trust
from privmarket.market._audit import beyond_rounding
from privmarket.privacy._accountant import RdpAccountants, composed_epsilon, guess_accuracy
from privmarket.privacy._events import Release
from privmarket.privacy._statement import Promise, promise, rounded_up_percent
from privmarket.reports._own_records import OwnRecords
from privmarket.rounds import MICRO, offered_micro
from privmarket.simulation._result import ClientRow, RunResult, events_if_others_collude
from privmarket.tasks import score_names

CURRENCY = "credits"
"""The default name of a unit of money, as on the broker's pages."""

# The word for a promise, by the largest share of right guesses about a record, starting at 50:50.
_STRENGTHS = ((0.6, "strong"), (0.75, "moderate"), (0.95, "weak"), (1.0, "very weak"))


@dataclass(frozen=True)
class MisreportCheck:
    """The result of an attack on the auction of the first round.

    Attributes:
        largest_gain: most money that a client could gain by another price, a smaller offer of ε, or both. Offers
            of more ε than the client has are not tried.
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
            return "none of the false prices and smaller offers that were tried in the first round paid"
        share = self.largest_gain / self.mean_payment if self.mean_payment else 0.0
        gained = f"{self.largest_gain:.2g}, {percent(share)} of a mean payment"
        return f"the best of the false prices and smaller offers that were tried in the first round gained {gained}"


def worst_promise(result: RunResult) -> Promise | None:
    """What the run's sales promise to a record of the client that sold most; None where nothing is promised."""
    if not result.config.privacy.is_private:
        return None
    return _worst(result, result.wallets.history)


def worst_promise_alone(result: RunResult) -> Promise | None:
    """The same if all other sellers work together with the server; None where updates are private on their own."""
    rounds = events_if_others_collude(result)
    return None if rounds is None else _worst(result, rounds)


def _worst(result: RunResult, rounds: Sequence[Sequence[Release | None]]) -> Promise | None:
    """What the rounds' releases promise to the client that released most; None where nobody released anything."""
    config = result.config
    accountants = RdpAccountants(config.clients)
    for events in rounds:
        accountants.compose(events)
    place = int(np.argmax(accountants.get_epsilon(config.delta)))
    most = [event for entry in rounds if (event := entry[place])]
    if not most:
        return None
    trust = cast("Trust", config.trust)
    share = config.honest_share if trust == "aggregate" else None
    unit = result.task.unit
    if config.training.sampling_rate < 1.0:  # the whole curve of many sampled sales takes minutes; ε and δ do not
        epsilon = composed_epsilon(most, config.delta)
        guess = guess_accuracy(epsilon, config.delta)
        return Promise(epsilon, config.delta, guess, unit, trust=trust, seeded=True, honest_share=share)
    return promise(most, config.delta, unit=unit, trust=trust, seeded=True, honest_share=share)


def percent(share: float) -> str:
    """A share as pages write it: 0.9083 → 90.8 %."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def epsilon_text(epsilon: float) -> str:
    """An ε as sentences write it, never broken over two lines."""
    return f"ε = {epsilon:.3g}".replace(" ", "\N{NO-BREAK SPACE}")


def strength(guess: float) -> str:
    """A word for a promise by how often a guess about a record can be right: strong, moderate, weak, very weak."""
    return next(word for limit, word in _STRENGTHS if guess <= limit + 1e-12)


def strength_sentence(promised: Promise | None, alone: Promise | None = None) -> str:
    """How much the run's largest ε protects, in words, and under aggregate trust what that rests on.

    Args:
        alone: what is left if all other sellers work together with the server; see `worst_promise_alone`.
    """
    if promised is None:
        return "Nothing is promised about any record."
    used = "one particular record of that client was"
    if promised.unit == "person":
        used = "the records of one particular person at that client were"
    said = (
        f"{epsilon_text(promised.epsilon)}, the most that a client sold in all, at δ = {promised.delta:g} is a "
        f"{strength(promised.guess)} promise: someone who guesses whether {used} "
        f"used, starting at 50:50, is right at most {rounded_up_percent(promised.guess)} of the time."
    )
    if promised.honest_share is not None:
        may = percent((1.0 - promised.honest_share) / 2.0)
        said += (
            f" It rests on a secure sum, and on {percent(promised.honest_share)} of each round's sellers being "
            f"honest and present: {may} may work together with the server, and {may} may drop out."
        )
    if alone is not None:
        said += (
            f" If all other sellers work together with the server, {epsilon_text(alone.epsilon)} is left, "
            f"a {strength(alone.guess)} promise: at most {rounded_up_percent(alone.guess)} right guesses."
        )
    return said


def verdict(
    runs: Mapping[str, RunResult],
    misreports: MisreportCheck | None = None,
    currency: str = CURRENCY,
    own: OwnRecords | None = None,
) -> str:
    """The first run in a few sentences: `headline`, then `details`."""
    return " ".join(part for part in (headline(runs, currency, own), details(runs, misreports)) if part)


def headline(runs: Mapping[str, RunResult], currency: str = CURRENCY, own: OwnRecords | None = None) -> str:
    """What the first run gave for how much money, and the most ε that a client sold, with what that rests on.

    Args:
        own: what the buyer's own records give alone; it is said first, and whether the market gives more.
    """
    main = next(iter(runs.values()))
    if not main.config.privacy.holds_auctions:
        return f"Without a market and without privacy the model {does(main, main.score)}."
    bought = (
        f"For {main.spent:,.0f} of a budget of {main.config.money_in_all:,.0f} {currency} you got a model that "
        f"{does(main, main.score)}"
        + (f", under {main.config.trust} trust" if main.config.privacy.is_private else "")
    )
    if own is None:
        return f"{bought}. {_most_spent(main)}"
    return f"{own_records_sentence(main, own)} {bought}: {_compared(main, own)}. {_most_spent(main)}"


def details(runs: Mapping[str, RunResult], misreports: MisreportCheck | None = None) -> str:
    """What noise cost and what misreports gained, as far as that is known; empty where neither is."""
    main = next(iter(runs.values()))
    parts = []
    twin = noise_free_twin(runs)
    if twin is not None:
        worse = is_better(main, twin.score, main.score)
        cost = f"cost {difference(main, main.score, twin.score)}" if worse else "cost nothing"
        parts.append(f"privacy noise {cost} against the same run without noise")
    if misreports is not None and main.config.privacy.holds_auctions:
        parts.append(misreports.sentence)
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def points(more: float, less: float) -> float:
    """The difference of two shares in points, taken of the rounded figures that a page shows."""
    return round(round(100 * more, 1) - round(100 * less, 1), 1)


def does(run: RunResult, value: float) -> str:
    """What a model with this headline score does: "is right on 90.8 % of the test", "has an R² of …".

    A score of somebody's own may have any heading, so it gets no article: "reaches 0.85 (credits a strike)".
    """
    score = run.task.score
    if score.name == "accuracy":
        return f"is right on {percent(value)} of the test"
    if score.name not in score_names():
        return f"reaches {score.format(value)} ({score.heading}) on the test"
    article = "an" if score.heading[:1] in "AEFHILMNORSX" else "a"
    return f"has {article} {score.heading} of {score.format(value)} on the test"


def difference(run: RunResult, worse: float, better: float) -> str:
    """How far two values of the headline score are apart: "5.3 points", or "0.041 of AUC"."""
    score = run.task.score
    if score.name == "accuracy":
        return f"{abs(points(better, worse)):.1f} points"
    return f"{score.format(abs(better - worse))} of {score.heading}"


def is_better(run: RunResult, one: float, other: float) -> bool:
    """Whether the headline score `one` is better than `other`, in the digits that a page shows."""
    score = run.task.score
    if score.name == "accuracy":
        return points(one, other) > 0
    return score.gain(other, one) > 0 and score.format(one) != score.format(other)


def own_records_sentence(run: RunResult, own: OwnRecords) -> str:
    """What the buyer has without a market."""
    had = counted(own.records, "record")
    return f"Your own records alone: a model of {had} {does(run, own.accuracy)}, for nothing."


def _compared(run: RunResult, own: OwnRecords) -> str:
    if not is_better(run, run.score, own.accuracy):
        return "no better than your own records alone, so there was nothing to buy here"
    said = f"{difference(run, own.accuracy, run.score)} better than your own records alone"
    if own.gain_error is None:
        return said
    error = f"(standard error {difference(run, 0.0, own.gain_error)})"
    if run.task.score.gain(own.accuracy, run.score) > 2.0 * own.gain_error:
        return f"{said} {error}"
    return f"{said}, which the choice of {own.tested:,} test records may explain {error}"


def own_records_takeaway(own: OwnRecords, accuracy: float) -> str:
    """How many records of the buyer's own would have done as well as the market, by accuracy."""
    enough = own.enough(accuracy)
    most, reached = own.curve[-1]
    said = f"Each figure is a mean over {counted(own.draws, 'draw')} from the {most} records that no client holds. "
    if enough is None:
        return said + f"All {most} of them give {percent(reached)}, less than the market's {percent(accuracy)}."
    return said + (
        f"The market gave {percent(accuracy)}. Of the numbers that were tried, {enough} records of your own are "
        f"the fewest that give as much for nothing ({percent(dict(own.curve)[enough])}). "
        "Whoever has them need not buy."
    )


def uncertainty_sentence(run: RunResult, own: OwnRecords) -> str:
    """How far the choice of test records leaves the gain uncertain, or else the accuracy; empty if not known."""
    if own.gain_error is not None:
        return (
            f"All of this is one seed and {own.tested:,} test records: from the choice of these records alone, the "
            f"gain over your own records has a standard error of {difference(run, 0.0, own.gain_error)} (a "
            "bootstrap in which both models meet the same records)."
        )
    return sampling_sentence(own.tested, run.score) if run.task.score.name == "accuracy" else ""


def sampling_sentence(tested: int, accuracy: float) -> str:
    """A sentence on the sampling error of an accuracy, with one run and this many test records."""
    deviation = 100 * float(np.sqrt(accuracy * (1.0 - accuracy) / tested))
    return (
        f"All of this is one seed and {tested:,} test records, of which one point is {tested / 100:.1f}: an "
        f"accuracy is uncertain by about ± {deviation:.1f} points from the choice of test records alone."
    )


def both_trusts(runs: Mapping[str, RunResult]) -> list[RunResult]:
    """The private runs that differ in whom sellers trust, that of the first run first; empty with only one."""
    private = [run for run in runs.values() if run.config.privacy.is_private]
    found = {run.config.trust: run for run in reversed(private)}
    order = sorted(TRUSTS, key=lambda trust: trust != private[0].config.trust) if private else []
    return [found[trust] for trust in order] if len(found) == 2 else []


def other_trust_sentence(runs: Mapping[str, RunResult], currency: str = CURRENCY) -> str:
    """What the same clients gave under the trust that the first run does not have; empty where that was not run."""
    main = next(iter(runs.values()))
    other = next((run for run in both_trusts(runs) if run.config.trust != main.config.trust), None)
    if other is None:
        return ""
    sums = other.config.trust == "aggregate"
    sees = "only sums of updates" if sums else "every update and sellers need trust nobody"
    most = max(row["epsilon_spent"] or 0.0 for row in other.client_rows)
    alone = worst_promise_alone(other)
    left = "" if alone is None else f" ({epsilon_text(alone.epsilon)} if all other sellers collude)"
    return (
        f"Under {other.config.trust} trust, where the server sees {sees}, {other.spent:,.0f} {currency} bought "
        f"a model that {does(other, other.score)}, and nobody sold more than {epsilon_text(most)}{left}."
    )


def _most_spent(result: RunResult) -> str:
    """The largest total of a client, and under aggregate trust what it rests on."""
    if not result.config.privacy.is_private:
        return "No privacy is promised in this run."
    if result.config.wallet is not None:
        said = f"Nobody passed the lifetime cap of {epsilon_text(result.config.wallet)}"
    else:
        most = max(row["epsilon_spent"] or 0.0 for row in result.client_rows)
        said = f"Nobody sold more than {epsilon_text(most)} over the whole run"
    alone = worst_promise_alone(result)
    if alone is None:
        return f"{said}."
    return (
        f"{said}, if {percent(result.config.honest_share)} of each round's sellers are honest and present; if all "
        f"others collude with the server, {epsilon_text(alone.epsilon)} is left."
    )


def noise_free_twin(runs: Mapping[str, RunResult]) -> RunResult | None:
    """The first run with the noise left out and all else the same, where it was made."""
    main = next(iter(runs.values())).config
    for run in runs.values():
        if run.config.privacy.leaves_noise_out and run.config.replace(mode=main.mode) == main:
            return run
    return None


def accuracy_takeaway(runs: Mapping[str, RunResult]) -> str:
    """What the accuracy lines show."""
    main = next(iter(runs.values()))
    twin = noise_free_twin(runs)
    measured = [(record.number + 1, record.accuracy) for record in main.records if record.accuracy is not None]
    said = f"After {counted(main.config.rounds, 'round')} it {does(main, main.score)}"
    if twin is not None:
        said += f"; without noise it {does(main, twin.score)}"
    if main.task.score.name != "accuracy":
        return f"{said}."
    near = next(number for number, accuracy in measured if accuracy >= 0.95 * main.score)
    return f"{said}; round {near} is the first after which it had 95 % of that."


def sales_takeaway(result: RunResult) -> str:
    """Who sold, and what those asked that never did."""
    sold = result.sold_epsilon.any(axis=0)
    said = f"{sold.sum()} of {counted(sold.size, 'client')} sold at least once"
    asks = result.types.valuation
    if result.config.types == "persistent" and 0 < sold.sum() < sold.size and asks[~sold].min() >= asks[sold].max():
        return f"{said}; the others all ask more than any of these, {asks[~sold].min():.2f} or more per unit of ε."
    return said + "."


def money_takeaway(result: RunResult, currency: str = CURRENCY) -> str:
    """What was paid and what came back."""
    spent_micro = sum(record.spent_micro for record in result.records)
    back = (offered_micro(result.config, result.records) - spent_micro) / MICRO
    rounds = len(result.records)
    sellers = sum(record.sellers for record in result.records) / rounds
    return (
        f"{result.spent:,.2f} {currency} were paid in {counted(rounds, 'round')}, {result.spent / rounds:,.2f} in "
        f"a mean round with {sellers:.1f} sellers; {back:,.2f} of the rounds' money was not needed and went back."
    )


def wallet_takeaway(rows: Sequence[ClientRow], cap: float | None, names: Sequence[str] = ()) -> str:
    """How far the clients' lifetime ε went, and why what is left is not the cap minus the total.

    Args:
        names: what to call the clients; "client 7" and so on if left out.
    """
    totals = [row["epsilon_spent"] or 0.0 for row in rows]
    most = max(totals, default=0.0)
    if cap is None:
        return f"The largest total is {epsilon_text(most)}; no wallet had a cap."
    empty = sum((row["wallet_left"] or 0.0) < 0.01 for row in rows)
    said = f"{empty} of {len(rows)} wallets have less than 1 % left; none passed its cap of {epsilon_text(cap)}."
    partly = [row for row in rows if 0.01 <= (row["wallet_left"] or 0.0) < 1.0]
    if not partly:
        return said
    one = max(partly, key=lambda row: row["epsilon_spent"] or 0.0)
    called = names[one["client"]] if names else f"client {one['client']}"
    used = percent(1.0 - (one["wallet_left"] or 0.0))
    return (
        f"{said} ε does not add up, so what is left is counted in the measure that does: {called} has sold "
        f"{epsilon_text(one['epsilon_spent'] or 0.0)} in all and used {used} of its wallet."
    )
