"""All attacks on one client that releases as the product does, and on the sales and the model of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket._settings import AttackPlan
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.privacy._accountant import certify
from privmarket.simulation._config import recommended_training
from privmarket.simulation._pool import ClientPool
from privmarket.simulation._privacy_attacks import (
    AttackResult,
    Subject,
    canary_attack,
    finished_model_attack,
    membership_attack,
    one_run_attack,
)
from privmarket.simulation._state import RunResult
from privmarket.simulation._workers import one_thread
from privmarket.tasks import Task, load_dataset, with_features
from privmarket.training import ClientRecords, LocalPlan, PrivateModel, build_model

ATTACKS = ("canary", "one-run", "membership")
# Records of a finished run that are compared with as many test records.
_MEMBERS = 2000
# Test records on which the membership attack trains the model that it compares with.
_PUBLIC_RECORDS = 2000


@dataclass(frozen=True, eq=False)
class _Target:
    """What is attacked: a model, records that clients could hold, and records that nobody protects."""

    name: str
    model: PrivateModel
    clip_norm: float
    inputs: Tensor
    labels: Tensor
    public: tuple[Tensor, Tensor]


def _target_of(plan: AttackPlan) -> _Target:
    training = recommended_training(plan.dataset)
    data = with_features(load_dataset(plan.dataset), training.features)
    return _Target(
        plan.dataset,
        build_model(plan.model or training.model, data.image_shape, data.classes),
        training.clip_norm,
        torch.from_numpy(data.train_images),
        torch.from_numpy(data.train_labels),
        (
            torch.from_numpy(data.test_images[:_PUBLIC_RECORDS]),
            torch.from_numpy(data.test_labels[:_PUBLIC_RECORDS]),
        ),
    )


def _target_of_task(plan: AttackPlan, task: Task) -> _Target:
    """The same for a task; attackers plant records of numbers, each with a class."""
    if task.goal != "classification" or task.private.inputs.dtype != np.float32:
        raise ConfigurationError(
            f"the task {task.name!r} is no classification of numbers",
            "attacks plant records of numbers with a class",
        )
    if task.test is None:
        raise ConfigurationError(f"the task {task.name!r} has no test records", "give test=… or test_share=…")
    model = PrivateModel(task.build_model(plan.seed), task.loss, name=task.name)
    inputs, labels = task.private.tensors()
    some = task.test[slice(0, _PUBLIC_RECORDS)]
    return _Target(task.name, model, 1.0, inputs, labels, some.tensors())


@one_thread()
def attack_client(
    plan: AttackPlan,
    kinds: Sequence[str] = ATTACKS,
    report: Callable[[str], None] = lambda _: None,
    *,
    task: Task | None = None,
) -> list[AttackResult]:
    """Attacks a client that holds the first records of a data set and sells as `plan` says.

    Args:
        task: whose first private records and model are used, instead of the named data set.
        kinds: which attacks, out of `ATTACKS`.
        report: told what is being done.
    """
    for name in kinds:
        if name not in ATTACKS:
            raise UnknownNameError.among("attack", name, ATTACKS)
    target = _target_of(plan) if task is None else _target_of_task(plan, task)
    images = target.inputs
    labels = target.labels
    own = plan.records
    if own > labels.shape[0]:
        has = labels.shape[0]
        raise ConfigurationError(f"records is {own}: {target.name} has {has}", f"give at most {has}")
    model = target.model
    rng = np.random.default_rng(plan.seed)
    clip = target.clip_norm
    subject = Subject(
        model,
        model.initial_weights(rng),
        ClientRecords(images[:own], labels[:own], [own]),
        LocalPlan(plan.steps, plan.sampling_rate, clip, 3.0 / clip, expected_batch=plan.sampling_rate * own),
        plan.epsilon,
        plan.delta,
        plan.noise_share,
    )
    results = []
    for name in kinds:
        report(f"{name} attack …")
        if name == "canary":
            found = canary_attack(subject, rng, trials=plan.trials, confidence=plan.confidence)
        elif name == "one-run":
            found = one_run_attack(subject, rng, canaries=plan.canaries, confidence=plan.confidence)
        else:
            # As many records a client as the attacked one has, at most ten clients' worth.
            mine = slice(0, min(labels.shape[0], 10 * own))
            found = membership_attack(
                *(subject, images[mine], labels[mine], target.public, rng),
                targets=plan.targets,
                rounds=plan.rounds,
                confidence=plan.confidence,
            )
        results.append(found)
    return results


@one_thread()
def attack_run(
    result: RunResult, rng: np.random.Generator, *, trials: int = 300, confidence: float = 0.95
) -> list[AttackResult]:
    """Attacks a finished run: its largest sale by a canary, and its model by membership inference.

    The canary is planted among the records of the client that made the largest sale, and the client releases again,
    with noise from the system. The members are records of clients that sold, the others are test records. Under
    aggregate trust no single release is promised anything, so the model alone is attacked.
    """
    config = result.config
    if not config.privacy.is_private:
        raise ConfigurationError(f"a {config.mode} run sells no privacy", "attack a private run")
    task = result.task
    if task.test is None:
        raise ConfigurationError(f"the task {task.name!r} has no test records", "give test=… or test_share=…")
    pool = ClientPool.of(config, task)
    sales = [(epsilon, client) for r in result.records for client, epsilon in r.sold_epsilon.items()]
    if not sales:
        raise ConfigurationError("nothing was sold in this run", "attack a run with a larger budget")
    epsilon, seller = max(sales)
    found: list[AttackResult] = []
    if config.trust == "local":
        held = pool.parts[result.place[seller]]
        records = ClientRecords(pool.inputs[held], pool.labels[held], [held.stop - held.start])
        subject = Subject(pool.model, pool.initial_weights(), records, pool.plan, epsilon, config.delta)
        found.append(canary_attack(subject, rng, trials=trials, confidence=confidence))
    sold = np.flatnonzero(result.sold_epsilon.any(axis=0)).tolist()
    histories = {i: [entry[i] for entry in result.wallets.history] for i in sold}
    worst = max((certify(events, config.delta) for events in histories.values()), key=lambda one: one.epsilon)
    of_sellers = np.concatenate([np.arange(pool.parts[i].start, pool.parts[i].stop) for i in sold])
    rows = torch.from_numpy(rng.permutation(of_sellers)[:_MEMBERS])
    found.append(
        finished_model_attack(
            *(pool.model, torch.from_numpy(result.weights), (pool.inputs[rows], pool.labels[rows])),
            task.test.tensors(),
            *(worst.epsilon, config.delta, rng),
            claim_guess=worst.guess_accuracy,
            confidence=confidence,
        )
    )
    return found
