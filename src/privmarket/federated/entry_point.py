"""`privmarket.federate`: a federated run from plain arguments."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from privmarket.errors import UnknownNameError
from privmarket.federated.bid_strategies import Strategy
from privmarket.federated.config import FederationConfig, Training
from privmarket.federated.simulation import OnRound, run
from privmarket.federated.state import RunResult
from privmarket.market.facts import MarketFacts
from privmarket.market.mechanism import Mechanism
from privmarket.market.scenarios import scenario
from privmarket.mechanisms import Rule, resolve


def federate(
    *,
    dataset: str = FederationConfig.dataset,
    mechanism: Rule = FederationConfig.mechanism,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    on_round: OnRound = lambda _: None,
    strategy: Strategy | str = FederationConfig.strategy,
    **settings: Any,
) -> RunResult:
    """Trains a model on clients that sell ε in every round, and says what it reached and cost.

    Args:
        dataset: digits (built in), mnist, fashion-mnist or cifar10 (`privmarket data get`).
        mechanism: the auction rule: a name, `package.module:Rule`, a `Mechanism`, or a function
            `(bids, budget) -> (epsilon, payment)`.
        workers: processes that train; the result does not depend on it.
        checkpoint: a file to save to and to resume from.
        on_round: called with each round's record.
        strategy: how clients report: truthful, learning or equilibrium, or a function of (valuation, share of the
            wallet left, round) that gives the reports.
        settings: fields of `FederationConfig` (clients, budget, rounds, wallet, seed …) and of its `Training`
            (model, steps, clip_norm …), by name. Training starts from what is recommended for data set and trust.

    Returns:
        The run: `accuracy`, `spent`, `records` of every round, `wallets`, and the model's `weights`.
    """
    of_run, of_training = ({f.name for f in fields(kind)} for kind in (FederationConfig, Training))
    for name in settings:
        if name not in of_run | of_training:
            raise UnknownNameError.among("setting of a federated run", name, sorted(of_run | of_training))
    of_steps = {name: settings.pop(name) for name in list(settings) if name in of_training}
    config = FederationConfig(
        dataset=dataset,
        mechanism=mechanism if isinstance(mechanism, str) else _name(mechanism),
        strategy=strategy if isinstance(strategy, str) else FederationConfig.strategy,
        **settings,
    ).replace_training(**of_steps)
    rule: Mechanism | None = None
    if not isinstance(mechanism, str):
        market = MarketFacts.of(scenario(config.scenario))
        rule = resolve(mechanism, market=market, **config.mechanism_settings)
    return run(
        config,
        workers=workers,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        on_round=on_round,
        strategy=None if isinstance(strategy, str) else strategy,
        mechanism=rule,
    )


def _name(rule: Rule) -> str:
    return str(getattr(rule, "name", None) or getattr(rule, "__name__", type(rule).__name__))
