"""Lines of Python that run a rule on the witness of a broken promise again and print the gain."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from privmarket.market._guarantees import WithinOffer
from privmarket.market._mechanism import CoalitionWitness, Witness, WitnessTypes


def replay_code(promise: str, witness: Witness | CoalitionWitness, rule: str, market: str = "") -> str:
    """A short program that prints the witness's gain.

    Args:
        promise: the label of the promise that broke.
        rule: Python that makes the rule, one or several lines that end with an expression.
        market: Python that makes the market's `Bids`, in place of its numbers.
    """
    types = witness.types
    assert types is not None
    *before, made = rule.splitlines()
    lines = ["import privmarket as pm", *(["import numpy as np"] if "np." in market else []), *before, ""]
    lines.append(f"rule = {made}")
    if types.coins is not None:
        lines.append(f"rule = pm.market.FixedCoins(rule, {types.coins})")
    lines += [f"bids = {market or _numbers(types)}", f"budget = {types.budget!r}"]
    if isinstance(witness, CoalitionWitness):
        who = f"{list(witness.clients)}"
        reported = (f"{list(witness.reported_valuation)}", f"{list(witness.reported_epsilon)}")
        gained = f"(lie - truth)[{who}].sum()"
    elif witness.client is None:
        return "\n".join([*lines, f"print(rule.run(bids, budget).spend - budget)  # {witness.gain:.6g}", ""])
    else:
        who = str(witness.client)
        reported = (repr(witness.reported_valuation), repr(witness.reported_epsilon))
        gained = f"lie[{who}] - truth[{who}]"
        if (witness.reported_valuation, witness.reported_epsilon) == (witness.valuation, witness.epsilon):
            owed = f"bids.valuation[{who}] * outcome.epsilon[{who}] - outcome.payment[{who}]"
            beyond = f"bids.valuation[{who}] * (outcome.epsilon[{who}] - bids.epsilon[{who}])"
            lines += [
                "outcome = rule.run(bids, budget)",
                f"print({beyond if promise == WithinOffer().label else owed})  # {witness.gain:.6g}",
                "",
            ]
            return "\n".join(lines)
    lines += [
        "valuation, epsilon = bids.valuation.copy(), bids.epsilon.copy()",
        f"valuation[{who}] = {reported[0]}",
        f"epsilon[{who}] = {reported[1]}",
        "truth = rule.run(bids, budget).utility(bids)",
        "lie = rule.run(bids.replace(valuation=valuation, epsilon=epsilon), budget).utility(bids)",
        f"print({gained})  # {witness.gain:.6g}",
        "",
    ]
    return "\n".join(lines)


def _numbers(types: WitnessTypes) -> str:
    """`Bids` with every number written out to its last digit."""
    columns = {
        "valuation": types.valuation,
        "epsilon": types.epsilon,
        "data_size": types.data_size,
        "accuracy": types.accuracy,
    }
    given = [f"    {name}={_wrapped(values)},\n" for name, values in columns.items() if values is not None]
    return f"pm.Bids(\n{''.join(given)})"


def _wrapped(values: Sequence[float]) -> str:
    text = textwrap.fill(", ".join(map(repr, values)), 96, break_long_words=False, break_on_hyphens=False)
    return f"[{text}]" if "\n" not in text else f"[\n{textwrap.indent(text, '        ')}\n    ]"
