"""`privmarket.federate`: a federated run from plain arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from privmarket._settings import DELTA, HETEROGENEITY, HONEST_SHARE, KAPPA, Arithmetic, Trust
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import scenario as distribution_named
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms import Rule, resolve
from privmarket.simulation._bidding import AskedPrices, Strategy
from privmarket.simulation._config import FederationConfig, Statistics, usual_interval
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
    dataset: str | None = None,
    clients: int | None = None,
    alpha: float | None = None,
    sizes: Literal["equal", "dirichlet"] | None = None,
    public: int | None = None,
    measured_on: Literal["test", "validation"] | None = None,
    # the market
    mechanism: Rule | None = None,
    mechanism_settings: Mapping[str, object] | None = None,
    budget: float = 50.0,
    total_budget: float | None = None,
    rounds: int = 200,
    trust: Trust = "local",
    honest_share: float = HONEST_SHARE,
    delta: float = DELTA,
    # the clients
    bids: AskedPrices | str | Path | None = None,
    scenario: str = "uniform",
    types: Literal["persistent", "redrawn"] = "persistent",
    valuations: Literal["drawn", "measured"] = "drawn",
    valuation_weights: str = "0,0,1",
    strategy: Strategy | Literal["truthful", "equilibrium", "learning"] = "truthful",
    wallet: float | None = None,
    wallet_policy: Literal["spread", "spend"] = "spread",
    dropout: float = 0.0,
    # the training
    mode: Literal["private", "no-noise", "no-dp", "literal"] = "private",
    model: str | None = None,
    features: str | None = None,
    steps: int | None = None,
    sampling_rate: float | None = None,
    clip_norm: float | None = None,
    local_rate: float | None = None,
    server_rate: float | None = None,
    final_rate: float | None = None,
    momentum: float | None = None,
    averaging: float | None = None,
    arithmetic: Arithmetic | None = None,
    statistics: Statistics | None = None,
    statistics_norm: float | None = None,
    aggregation: Literal["epsilon", "epsilon-squared", "inverse-noise", "optimal", "precision"] | None = None,
    kappa: float = KAPPA,
    heterogeneity: float = HETEROGENEITY,
    evaluate_every: int | None = None,
    seed: int = 0,
    # how it is run
    workers: int = 1,
    checkpoint: str | Path | None = None,
    on_round: OnRound | None = None,
) -> RunResult:
    """Trains a model on clients that sell ε in every round, and returns its score and its cost.

    In each round the clients bid, an auction decides who sells how much ε for what, the sellers train and add the
    noise of the ε they sold, and the server adds up their updates. `FederationConfig` describes every setting.

    >>> import privmarket as pm
    >>> result = pm.federate(dataset="digits", clients=20, budget=15.0, rounds=20)
    >>> result
    RunResult('digits', 20 clients, 20 rounds, paid 282.70, accuracy 87.2 %)

    Args:
        task: what is learned from whose records: a `Task`, or the name of a built-in one. Its public records train
            the model that the market starts from, and choose the server's rate, the clip norm, the averaging and
            whether inputs are whitened by them where you do not; private records choose nothing.
        dataset: instead of a task: digits (the default), mnist, fashion-mnist or cifar10 (`privmarket data get`),
            dealt to clients as in the paper's evaluation.
        clients: with `dataset`, how many clients share its records; 100 unless given.
        alpha: with `dataset`, Dirichlet skew of labels: 0.1 severe, 0.5 (unless given) mild.
        sizes: with `dataset`, whether clients hold equally many records, or Dirichlet shares of each label.
        public: with `dataset`, how many of the records that no client holds are the buyer's; none unless given.
        measured_on: with `dataset`, test records, or the validation records on which settings are chosen.
        mechanism: the auction rule: a name, `package.module:Rule`, a `Mechanism`, or a function
            `(bids, budget) -> (epsilon, payment)`. If left out, graded-ration for a task under aggregate trust, and
            mean-field-menu otherwise.
        mechanism_settings: of that rule, by name.
        budget: money per round.
        total_budget: instead, money for the whole run, paced over its rounds.
        rounds: how many rounds.
        trust: "local": each update is private on its own; "aggregate": the server sees only the sum of a round.
        honest_share: under aggregate trust, the share of a round's sellers whose noise protects each of them.
        delta: the δ of every sale and of the wallets.
        bids: what each client asks: a CSV file (client, valuation, epsilon and perhaps wallet) or `AskedPrices`.
        scenario: else the distribution that their (valuation, ε) are drawn from: a name, or a file of past bids.
        types: whether a client's (valuation, ε) stays the same, or is drawn again every round.
        valuations: "measured" makes them a function of each client's records instead of a draw, with the three
            `valuation_weights` a,b,c of v = a·u/ε + b·|D| + c·Δ.
        strategy: how clients report: truthful, learning or equilibrium, or a function of (valuation, what is left
            of the wallet, round) that gives the reports.
        wallet: lifetime limit on each client's ε at δ.
        wallet_policy: "spread" saves for the rounds to come, "spend" offers all that is left.
        dropout: probability with which a seller vanishes after the auction, unpaid.
        mode: "private"; or a reference to compare with: "no-noise", "no-dp" (plain FedAvg for free) or "literal"
            (noise on weights, as the paper prints it).
        model, features: of a built-in data set: mlp, cnn or logistic, and `pm.tasks.feature_names()`.
        steps, sampling_rate, clip_norm, local_rate: the clients' local training.
        server_rate, final_rate, momentum, averaging: the server's steps. Settings of the training that are None are
            chosen on public records, or are those that are recommended.
        arithmetic: "exact" noise on a grid, or "float", which is not private in floating point.
        statistics: whether inputs are whitened: not at all ("none"), by moments that are known for "free" (of
            public records, or as the schema suggests), or by "moments" that the first round sells. Public records
            choose between the first two unless given.
        statistics_norm: norm of (inputs, 1) at which bought moments clip a record.
        aggregation: how updates are weighted under local trust: "epsilon-squared" has the least noise where clients
            hold equally many records, "precision" where they do not, at the price of counting large clients for
            more. Public records choose between these two unless given; without any it is the former. `kappa` and
            `heterogeneity` are for "optimal".
        evaluate_every: rounds between two measurements on test records; about ten over the run unless given.
        seed: of all random draws.
        workers: processes that train; the result does not depend on it.
        checkpoint: a file to save to and to resume from.
        on_round: called with each round's record.

    Returns:
        The run: `score`, `score_before`, `spent`, `records` of every round, `wallets`, and the `model`.

    Raises:
        ConfigurationError: settings do not fit each other, or a setting of `dataset` stands beside a task.
    """
    of_dataset: dict[str, Any] = _given(
        dataset=dataset, clients=clients, alpha=alpha, sizes=sizes, public=public, measured_on=measured_on
    )
    of_training = _given(
        model=model,
        features=features,
        steps=steps,
        sampling_rate=sampling_rate,
        clip_norm=clip_norm,
        local_rate=local_rate,
        server_rate=server_rate,
        final_rate=final_rate,
        momentum=momentum,
        averaging=averaging,
        arithmetic=arithmetic,
    )
    if isinstance(task, str):
        task = builtin(task, seed=seed)
    if task is not None:
        for name, value in of_dataset.items():
            raise ConfigurationError(f"{name}={value!r} beside a task", "say it where the task is made")
        task.require_private_records("a simulated run")
        of_dataset = settings_of(task)
    asked = AskedPrices.read(bids) if isinstance(bids, str | Path) else bids
    if mechanism is None:
        by_sum = task is not None and trust == "aggregate"
        mechanism = "graded-ration" if by_sum else FederationConfig.mechanism
    config = FederationConfig(
        **of_dataset,
        mechanism=mechanism if isinstance(mechanism, str) else _name(mechanism),
        mechanism_settings=mechanism_settings or {},
        budget=budget,
        total_budget=total_budget,
        rounds=rounds,
        trust=trust,
        honest_share=honest_share,
        delta=delta,
        bids="" if asked is None else asked.digest(),
        scenario=scenario,
        types=types,
        valuations=valuations,
        valuation_weights=valuation_weights,
        strategy=strategy if isinstance(strategy, str) else FederationConfig.strategy,
        wallet=wallet,
        wallet_policy=wallet_policy,
        dropout=dropout,
        mode=mode,
        statistics="none" if statistics is None else statistics,
        statistics_norm=statistics_norm,
        aggregation=FederationConfig.aggregation if aggregation is None else aggregation,
        kappa=kappa,
        heterogeneity=heterogeneity,
        evaluate_every=usual_interval(rounds) if evaluate_every is None else evaluate_every,
        seed=seed,
    ).replace_training(**of_training)
    rule: Mechanism | None = None
    if not isinstance(mechanism, str):
        types_of_clients = distribution_named(config.scenario if asked is None else asked.bids)
        rule = resolve(mechanism, market=MarketFacts.of(types_of_clients), **config.mechanism_settings)
    own: OwnModel | None = None
    if task is not None:
        fixed = [*of_training, *_given(statistics=statistics, aggregation=aggregation)]
        tuned = tuned_settings(config, task, asked, fixed=fixed, mechanism=rule)
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


def settings_of(task: Task) -> dict[str, Any]:
    """The settings of a run that follow from its task."""
    return {
        "dataset": task.name,
        "task": task.digest(),
        "clients": len(task.clients),
        "public": 0 if task.public is None else len(task.public),
    }


def _given(**settings: str | float | None) -> dict[str, str | float]:
    """The settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def _name(rule: Rule) -> str:
    return str(getattr(rule, "name", None) or getattr(rule, "__name__", type(rule).__name__))
