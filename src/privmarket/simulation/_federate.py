"""`privmarket.federate`: a federated run from plain arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._distributions import scenario
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms import Rule, resolve
from privmarket.simulation._bidding import AskedPrices, Strategy
from privmarket.simulation._config import FederationConfig, Training, usual_interval
from privmarket.simulation._federation import OnRound, run
from privmarket.simulation._rehearsal import tuned_settings
from privmarket.simulation._result import RunResult
from privmarket.tasks import task as builtin

if TYPE_CHECKING:
    from privmarket.simulation._own_records import OwnModel
    from privmarket.tasks import Task


def federate(
    task: Task | str | None = None,
    *,
    dataset: str = FederationConfig.dataset,
    mechanism: Rule | None = None,
    bids: AskedPrices | str | Path | None = None,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    on_round: OnRound = lambda _: None,
    strategy: Strategy | str = FederationConfig.strategy,
    **settings: Any,
) -> RunResult:
    """Trains a model on clients that sell ε in every round, and says what it reached and cost.

    Args:
        task: what is learned from whose records: a `Task`, or the name of a built-in one. Its public records train
            the model that the market starts from, and choose the server's rate, the clip norm, the averaging and
            whether inputs are whitened by them where you do not; private records choose nothing.
        dataset: instead of a task: digits (built in), mnist, fashion-mnist or cifar10 (`privmarket data get`),
            as in the paper's evaluation.
        mechanism: the auction rule: a name, `package.module:Rule`, a `Mechanism`, or a function
            `(bids, budget) -> (epsilon, payment)`. If left out, graded-ration for a task under aggregate trust, and
            mean-field-menu otherwise.
        bids: what each client asks: a CSV file (client, valuation, epsilon and perhaps wallet) or `AskedPrices`.
        workers: processes that train; the result does not depend on it.
        checkpoint: a file to save to and to resume from.
        on_round: called with each round's record.
        strategy: how clients report: truthful, learning or equilibrium, or a function of (valuation, share of the
            wallet left, round) that gives the reports.
        settings: fields of `FederationConfig` (clients, budget, rounds, wallet, seed …) and of its `Training`
            (model, steps, clip_norm …), by name.

    Returns:
        The run: `score`, `score_before`, `spent`, `records` of every round, `wallets`, and the `model`.
    """
    of_run = {f.name for f in fields(FederationConfig)}
    of_training = {f.name for f in fields(Training)}
    for name in settings:
        if name not in of_run | of_training:
            raise UnknownNameError.among("setting of a federated run", name, sorted(of_run | of_training))
    if isinstance(task, str):
        task = builtin(task, seed=int(settings.get("seed", FederationConfig.seed)))
    asked = AskedPrices.read(bids) if isinstance(bids, str | Path) else bids
    of_steps = {name: settings.pop(name) for name in list(settings) if name in of_training}
    if mechanism is None:
        aggregate = settings.get("trust") == "aggregate"
        mechanism = "graded-ration" if task is not None and aggregate else FederationConfig.mechanism
    of_task: dict[str, Any] = {"dataset": dataset} if task is None else settings_of(task, settings)
    if "evaluate_every" not in settings:
        settings["evaluate_every"] = usual_interval(int(settings.get("rounds", FederationConfig.rounds)))
    config = FederationConfig(
        **of_task,
        mechanism=mechanism if isinstance(mechanism, str) else _name(mechanism),
        strategy=strategy if isinstance(strategy, str) else FederationConfig.strategy,
        bids="" if asked is None else asked.digest(),
        **settings,
    ).replace_training(**of_steps)
    rule: Mechanism | None = None
    if not isinstance(mechanism, str):
        law = scenario(config.scenario if asked is None else asked.bids)
        rule = resolve(mechanism, market=MarketFacts.of(law), **config.mechanism_settings)
    own: OwnModel | None = None
    if task is not None:
        chosen = [*of_steps, *({"statistics"} & {*settings})]
        tuned = tuned_settings(config, task, asked, fixed=chosen, mechanism=rule)
        if tuned is not None:
            config = tuned.applied(config)
            own = tuned.own_model
    return run(
        config,
        task=task,
        asked=asked,
        own_model=own,
        workers=workers,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        on_round=on_round,
        strategy=None if isinstance(strategy, str) else strategy,
        mechanism=rule,
    )


def settings_of(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that follow from its task.

    Raises:
        ConfigurationError: a setting of a built-in data set was given as well.
    """
    for name in ("clients", "alpha", "sizes", "public", "measured_on", "dataset"):
        if name in settings:
            raise ConfigurationError(f"{name}={settings[name]!r} beside a task", "say it where the task is made")
    return {
        "dataset": task.name,
        "task": task.digest(),
        "clients": len(task.clients),
        "public": 0 if task.public is None else len(task.public),
    }


def _name(rule: Rule) -> str:
    return str(getattr(rule, "name", None) or getattr(rule, "__name__", type(rule).__name__))
