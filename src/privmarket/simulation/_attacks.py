"""Attacks on real releases, made by the code that trains, for an attacker who knows everything else.

- `canary_attack`: one planted record, in or out, over many releases;
- `one_run_attack`: hundreds of planted records, each in by a fair coin, and a single release;
- `membership_attack`: real records, each in by a fair coin, many rounds of training, and the finished model alone;
- `own_attack`: what somebody else wrote, on releases with and without one record.

Each gives a lower bound on ε that is wrong with a stated probability. A bound above the claim refutes the claim.
One below it proves nothing, but shows how close the attack comes. With a `noise_share` below 1 the client adds too
little noise, to check that an attack detects it.

`attack_client` runs them against one client that releases as the product does, `attack_run` against the largest
sale and the model of a finished run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from privmarket._named import made_callable, names_code
from privmarket._settings import DELTA, AttackPlan as AttackPlan
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.mechanisms._registry import named_object
from privmarket.privacy._accountant import certify
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release_audit import AuditResult, Scores, audit_family, audit_one_run
from privmarket.simulation._config import recommended_training
from privmarket.simulation._pool import ClientPool
from privmarket.simulation._result import RunResult
from privmarket.tasks import Task, load_dataset, with_features
from privmarket.training import (
    ClientRecords,
    LocalPlan,
    PrivateModel,
    build_model,
    gradient_sums,
    one_thread,
    plain_updates,
    private_updates,
)

Array = NDArray[np.float64]
# Releases computed at once: copies of one client.
_COPIES = 10
# The pixels of a planted record: bright enough that its gradient is clipped and has norm C.
_BRIGHT = 20.0
_DIRECTIONS_AT_ONCE = 50
_REFERENCE_EPOCHS = 30


@dataclass(frozen=True, eq=False)
class Subject:
    """The client under attack: its model, its records and its claim.

    Attributes:
        weights: (parameters,) the global weights that the server sent.
        records: one client's own records.
        plan: the public training plan; its schedule is what ε is sold for.
        epsilon, delta: the claim of one sale.
        noise_share: 1 for the full noise; less for a client that adds too little.
    """

    model: PrivateModel
    weights: Tensor
    records: ClientRecords
    plan: LocalPlan
    epsilon: float
    delta: float = DELTA
    noise_share: float = 1.0

    def __post_init__(self) -> None:
        if self.records.clients != 1:
            raise ConfigurationError(f"an attack on {self.records.clients} clients at once", "give one client")
        if not 0 <= self.noise_share <= 1:
            raise ConfigurationError(f"noise share is {self.noise_share}", "give a share from 0 to 1")

    @property
    def family(self) -> ReleaseFamily:
        """What the client releases, up to its noise."""
        return ReleaseFamily.of(self.plan, self.delta)

    @property
    def claimed_noise(self) -> float:
        """The noise multiplier that the claimed ε needs, whatever the client really adds."""
        return float(self.family.noise_multiplier(self.epsilon))

    def release(self, records: ClientRecords) -> Array:
        """(clients, parameters) what leaves, divided by the public rate: clipped sums plus noise, for one step."""
        noise = [self.claimed_noise * self.noise_share] * records.clients
        sources = [NoiseSource.from_system() for _ in noise]
        sent = private_updates(self.model, self.weights, records, self.plan, noise, sources)
        return sent.numpy().astype(np.float64) * (self.plan.expected_batch / self.plan.learning_rate)

    def directions(self, images: Tensor, labels: Tensor) -> Iterator[Array]:
        """(rows, parameters) at a time: what each record adds to a clipped sum at the global weights."""
        for start in range(0, labels.shape[0], _DIRECTIONS_AT_ONCE):
            part = slice(start, start + _DIRECTIONS_AT_ONCE)
            sizes = [1] * labels[part].shape[0]
            found = gradient_sums(
                self.model, self.weights[None], images[part], labels[part], sizes, self.plan.clip_norm
            )
            yield found.double().numpy()

    def scores(self, inputs: Tensor, labels: Tensor, direction: Array, trials: int) -> Scores:
        """Releases with one more record and without it, `trials` of each, along a direction of the attacker's.

        Args:
            inputs, labels: the planted record, with a leading axis of length 1.
            direction: (parameters,) what every release is multiplied by.
        """
        if labels.shape[0] != 1:
            raise ConfigurationError(f"{labels.shape[0]} records are planted", "plant one: a claim is about one")
        base = self.records
        planted = ClientRecords(
            torch.cat([base.inputs, inputs]), torch.cat([base.labels, labels]), [base.labels.shape[0] + 1]
        )
        inside, outside = (
            np.concatenate([self.release(_copies(records, n)) @ direction for n in _batches(trials)])
            for records in (planted, base)
        )
        return Scores(inside, outside)


OwnAttack = Callable[[Subject, int, np.random.Generator], Scores]
"""(client under attack, trials, generator) ↦ scores of releases with and without one record that it planted."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack saw, beside what was claimed.

    Attributes:
        name: canary, one-run or membership, or what an attack of one's own is called.
        claim_epsilon, delta: the claim.
        claim_guess: the largest share of right guesses that the claimed release allows, at even odds.
        audit: the lower bound on ε.
        guess: the share of right guesses that the attack made.
        inside, outside: scores of what was in and of what was out; larger means "in".
        claim_mu: the claim as Gaussian differential privacy, where it is one; for drawing the best attack's curve.
        accuracy: of the finished model on public records, where one was trained.
    """

    name: str
    claim_epsilon: float
    delta: float
    claim_guess: float
    audit: AuditResult
    guess: float
    inside: Array
    outside: Array
    claim_mu: float | None = None
    accuracy: float | None = None

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, at the audit's confidence."""
        return self.audit.refutes(self.claim_epsilon)

    @property
    def guess_margin(self) -> float:
        """Half the width of a 95 % interval around `guess`: what chance alone moves it by."""
        return 0.98 / float(np.sqrt(self.inside.size + self.outside.size))

    def roc(self) -> tuple[Array, Array]:
        """(points,) false and true positive rates of the attack, over all thresholds."""
        thresholds = np.sort(np.concatenate([self.inside, self.outside]))[::-1]
        false = np.searchsorted(-np.sort(self.outside)[::-1], -thresholds, side="right") / self.outside.size
        true = np.searchsorted(-np.sort(self.inside)[::-1], -thresholds, side="right") / self.inside.size
        return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])

    @property
    def area(self) -> float:
        """The area under the curve of `roc`: the chance that a record that was in scores above one that was out."""
        false, true = self.roc()
        return float(np.trapezoid(true, false))

    def to_json(self) -> dict[str, object]:
        """The figures of the attack as JSON data."""
        false, true = self.roc()
        return {
            "attack": self.name,
            "claim_epsilon": self.claim_epsilon,
            "delta": self.delta,
            "claim_guess": self.claim_guess,
            "epsilon_lower": self.audit.epsilon_lower,
            "confidence": self.audit.confidence,
            "trials": self.audit.trials,
            "guess": self.guess,
            "guess_margin": self.guess_margin,
            "area_under_curve": self.area,
            "true_positives_at_1_percent": float(np.interp(0.01, false, true)),
            "accuracy": self.accuracy,
            "refuted": self.refuted,
        }


def canary_attack(
    subject: Subject, rng: np.random.Generator, *, trials: int = 1000, confidence: float = 0.95
) -> AttackResult:
    """Plants one record whose gradient is clipped and scores releases with and without it.

    Implements: the white-box audit of [NasrEtAl2023] with the bound of `audit_family`.
    """
    image = torch.from_numpy(rng.standard_normal((1, *subject.records.inputs.shape[1:])).astype(np.float32))
    label = torch.from_numpy(rng.integers(0, _classes(subject), 1))
    image *= _BRIGHT
    direction = next(subject.directions(image, label))[0]
    direction /= max(float(direction @ direction), 1e-30)  # the canary's own contribution scores 1
    return _judged("canary", subject, subject.scores(image, label, direction, trials), confidence)


def own_attack(
    attack: OwnAttack, subject: Subject, rng: np.random.Generator, *, trials: int = 1000, confidence: float = 0.95
) -> AttackResult:
    """Runs an attack that somebody else wrote, and bounds ε from its scores as for a canary.

    Assumes: what the attack calls inside and outside are releases of data sets that differ in one record, each
    scored by itself.

    Raises:
        ConfigurationError: the attack does not return `Scores`.
    """
    found = attack(subject, trials, rng)
    if not isinstance(found, Scores):
        raise ConfigurationError(
            f"attack {_name_of(attack)} returned {type(found).__name__}",
            "return pm.privacy.Scores(inside, outside), for example from subject.scores(…)",
        )
    return _judged(_name_of(attack), subject, found, confidence)


def attack_called(given: str | OwnAttack) -> str | OwnAttack:
    """The attack that a name, `file.py:Name` or an object means: a name of `ATTACKS`, or one of somebody's own.

    Raises:
        ConfigurationError: it is no attack.
        UnknownNameError: there is no attack of that name.
    """
    if isinstance(given, str) and given in ATTACKS:
        return given
    if isinstance(given, str) and not names_code(given):
        unknown = UnknownNameError.among("attack", given, ATTACKS)
        raise UnknownNameError(unknown.message, f"{unknown.hint}, or give one of your own as file.py:Attack")
    found = named_object("attack", given) if isinstance(given, str) else given
    write = "__call__(self, subject, trials, rng) -> Scores"
    own: OwnAttack = made_callable("attack", found, arguments=3, write=write, shown=given)
    return own


def _name_of(attack: OwnAttack) -> str:
    return str(getattr(attack, "__name__", type(attack).__name__))


def _judged(name: str, subject: Subject, scores: Scores, confidence: float) -> AttackResult:
    audit = audit_family(scores, subject.family, confidence=confidence)
    middle = float(np.median(np.concatenate([scores.inside, scores.outside])))
    guess = 0.5 * float((scores.inside > middle).mean() + (scores.outside <= middle).mean())
    return _result(name, subject, audit, guess, scores.inside, scores.outside)


def one_run_attack(
    subject: Subject, rng: np.random.Generator, *, canaries: int = 500, confidence: float = 0.95
) -> AttackResult:
    """Plants many records, each by a fair coin, and guesses all coins from a single release.

    A canary is an image with one bright pixel, so that most of them push in directions of their own; the attacker
    knows every record but the coins, and scores by ridge regression of the release on the canaries' directions.

    Implements: [SteinkeNasrJagielski2023].
    """
    shape = subject.records.inputs.shape[1:]
    classes = _classes(subject)
    pixels = int(np.prod(shape))
    count = min(canaries, pixels * classes)
    chosen = rng.permutation(pixels * classes)[:count]
    images = torch.zeros(count, pixels)
    images[torch.arange(count), torch.from_numpy(chosen % pixels)] = _BRIGHT
    images = images.reshape(count, *shape)
    labels = torch.from_numpy(chosen // pixels)
    coins = rng.random(count) < 0.5
    base = subject.records
    mine = torch.from_numpy(np.flatnonzero(coins))
    planted = ClientRecords(
        torch.cat([base.inputs, images[mine]]),
        torch.cat([base.labels, labels[mine]]),
        [base.labels.shape[0] + int(coins.sum())],
    )
    known = np.zeros(subject.model.parameters)
    for part in subject.directions(base.inputs, base.labels):
        known += part.sum(0)
    seen = subject.release(planted)[0] / (subject.plan.sampling_rate * subject.plan.steps) - known
    scores = _ridge_scores(subject, images, labels, seen)
    audit = audit_one_run(scores, coins, subject.delta, guesses=count // 2, confidence=confidence)
    middle = float(np.median(scores))
    guess = float(((scores > middle) == coins).mean())
    return _result("one-run", subject, audit, guess, scores[coins], scores[~coins])


def membership_attack(
    subject: Subject,
    images: Tensor,
    labels: Tensor,
    public: tuple[Tensor, Tensor],
    rng: np.random.Generator,
    *,
    targets: int = 200,
    rounds: int = 30,
    clients: int = 10,
    confidence: float = 0.95,
) -> AttackResult:
    """Trains a model in rounds of private updates and guesses, from the finished model alone, who was in.

    The first `targets` records are in question: their labels are replaced by random ones, so that a model can know
    them only by having seen the record, and each is in by a fair coin. They are dealt, with all the other records,
    to `clients` clients, each of which sells the subject's ε in every round. The score is how much better the model
    does on a record than a reference that the attacker trained on public records.

    Args:
        images, labels: all records; at least `targets`.
        public: images and labels that nobody protects.

    Implements: membership inference by calibrated losses, [WatsonEtAl2022], with the bound of
    [SteinkeNasrJagielski2023].
    """
    if labels.shape[0] < targets:
        has = labels.shape[0]
        raise ConfigurationError(f"targets is {targets}: there are {has} records", f"give at most {has}")
    coins = rng.random(targets) < 0.5
    labels = labels.clone()
    labels[:targets] = torch.from_numpy(rng.integers(0, _classes(subject), targets))
    members = np.concatenate([np.flatnonzero(coins), np.arange(targets, labels.shape[0])])
    parts = np.array_split(rng.permutation(members), clients)
    rows = torch.from_numpy(np.concatenate(parts))
    records = ClientRecords(images[rows], labels[rows], [part.size for part in parts])
    weights = subject.weights.clone()
    for _ in range(rounds):
        total = replace(subject, weights=weights).release(records).mean(0)
        step = total * (subject.plan.learning_rate / subject.plan.expected_batch)
        weights = weights - torch.from_numpy(step.astype(np.float32))
    asked = (images[:targets], labels[:targets])
    reference = _reference(subject, public, rng)
    scores = (_losses(subject.model, reference, *asked) - _losses(subject.model, weights, *asked)).numpy()
    claim = certify([subject.family.event(subject.epsilon)] * rounds, subject.delta)
    audit = audit_one_run(scores, coins, subject.delta, guesses=targets // 2, confidence=confidence)
    middle = float(np.median(scores))
    mu = np.sqrt(rounds * subject.plan.steps) / subject.claimed_noise if subject.plan.sampling_rate == 1.0 else None
    return AttackResult(
        name="membership",
        claim_epsilon=claim.epsilon,
        delta=subject.delta,
        claim_guess=claim.guess_accuracy,
        audit=audit,
        guess=float(((scores > middle) == coins).mean()),
        inside=scores[coins],
        outside=scores[~coins],
        claim_mu=mu,
        accuracy=subject.model.accuracy(weights, *public),
    )


def finished_model_attack(
    model: PrivateModel,
    weights: Tensor,
    members: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    claim_epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    claim_guess: float,
    confidence: float = 0.95,
) -> AttackResult:
    """Membership inference on a run that is over: the losses of records that were in against those of others.

    No coins were thrown before that training, so the bound on ε assumes that members and others come from one
    distribution; as many of each are compared.
    """
    size = min(members[1].shape[0], others[1].shape[0])
    taken = [torch.from_numpy(rng.permutation(part[1].shape[0])[:size]) for part in (members, others)]
    inside, outside = (
        -_losses(model, weights, images[rows], labels[rows]).numpy()
        for (images, labels), rows in zip((members, others), taken, strict=True)
    )
    scores = np.concatenate([inside, outside])
    coins = np.arange(scores.size) < size
    shuffled = rng.permutation(scores.size)  # ties are broken by place
    audit = audit_one_run(scores[shuffled], coins[shuffled], delta, guesses=scores.size // 2, confidence=confidence)
    guess = float(((scores > np.median(scores)) == coins).mean())
    return AttackResult("membership", claim_epsilon, delta, claim_guess, audit, guess, inside, outside)


def _result(
    name: str, subject: Subject, audit: AuditResult, guess: float, inside: Array, outside: Array
) -> AttackResult:
    plan = subject.plan
    claim = certify([subject.family.event(subject.epsilon)], subject.delta)
    mu = np.sqrt(plan.steps) / subject.claimed_noise if plan.sampling_rate == 1.0 else None
    return AttackResult(
        name, subject.epsilon, subject.delta, claim.guess_accuracy, audit, guess, inside, outside, mu
    )


def _ridge_scores(subject: Subject, images: Tensor, labels: Tensor, seen: Array) -> Array:
    """(canaries,) each one's estimated share in the release, the others taken into account."""
    rows = np.concatenate(list(subject.directions(images, labels)))
    clip = subject.plan.clip_norm
    noise = max(subject.claimed_noise * subject.noise_share, 1e-3)
    gram = rows @ rows.T / clip**2
    return np.asarray(np.linalg.solve(gram + noise**2 * np.eye(len(rows)), rows @ seen / clip**2))


def _reference(subject: Subject, public: tuple[Tensor, Tensor], rng: np.random.Generator) -> Tensor:
    """Weights trained on public records without noise: how hard each record is for a model that never saw it."""
    records = ClientRecords(*public, [public[1].shape[0]])
    moved = plain_updates(
        subject.model,
        subject.weights,
        records,
        batch=32,
        epochs=_REFERENCE_EPOCHS,
        learning_rate=0.1,
        rngs=[rng],
    )
    return subject.weights - moved[0]


def _losses(model: PrivateModel, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """(rows,) the cross-entropy of each record."""
    logits = model.outputs(weights, images)
    return F.cross_entropy(logits.double(), labels, reduction="none")


def _classes(subject: Subject) -> int:
    logits = subject.model.outputs(subject.weights, torch.zeros(1, *subject.records.inputs.shape[1:]))
    return int(logits.shape[1])


def _copies(records: ClientRecords, count: int) -> ClientRecords:
    """The same client several times: that many independent releases."""
    images = records.inputs.repeat(count, *[1] * (records.inputs.ndim - 1))
    return ClientRecords(images, records.labels.repeat(count), records.sizes * count)


def _batches(total: int) -> Iterator[int]:
    for start in range(0, total, _COPIES):
        yield min(_COPIES, total - start)


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


def _canary(subject: Subject, target: _Target, plan: AttackPlan, rng: np.random.Generator) -> AttackResult:
    return canary_attack(subject, rng, trials=plan.trials, confidence=plan.confidence)


def _one_run(subject: Subject, target: _Target, plan: AttackPlan, rng: np.random.Generator) -> AttackResult:
    return one_run_attack(subject, rng, canaries=plan.canaries, confidence=plan.confidence)


def _membership(subject: Subject, target: _Target, plan: AttackPlan, rng: np.random.Generator) -> AttackResult:
    # As many records a client as the attacked one has, at most ten clients' worth.
    mine = slice(0, min(target.labels.shape[0], 10 * plan.records))
    return membership_attack(
        subject,
        target.inputs[mine],
        target.labels[mine],
        target.public,
        rng,
        targets=plan.targets,
        rounds=plan.rounds,
        confidence=plan.confidence,
    )


# The attacks of `privmarket attack` by name; others are given as `file.py:Attack`. To add one: a function that
# takes the client under attack, the records and the model it came from, the plan and a generator, and a line here.
_ATTACKS = {"canary": _canary, "one-run": _one_run, "membership": _membership}
ATTACKS = tuple(_ATTACKS)


@one_thread()
def attack_client(
    plan: AttackPlan,
    kinds: Sequence[str | OwnAttack] = ATTACKS,
    report: Callable[[str], None] | None = None,
    *,
    task: Task | None = None,
) -> list[AttackResult]:
    """Attacks a client that holds the first records of a data set and sells as `plan` says.

    Args:
        task: its model and first private records are used instead of the named data set.
        kinds: which attacks, out of `ATTACKS`, or own ones: `file.py:Attack`, a class or a function
            (subject, trials, rng) → `Scores`.
        report: called with a text before each step.
    """
    chosen = [attack_called(kind) for kind in kinds]
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
    for one in chosen:
        name = one if isinstance(one, str) else _name_of(one)
        if report is not None:
            report(f"{name} attack …")
        if isinstance(one, str):
            results.append(_ATTACKS[one](subject, target, plan, rng))
        else:
            results.append(own_attack(one, subject, rng, trials=plan.trials, confidence=plan.confidence))
    return results


@one_thread()
def attack_run(
    result: RunResult, rng: np.random.Generator, *, trials: int = 300, confidence: float = 0.95
) -> list[AttackResult]:
    """Attacks a finished run: its largest sale by a canary, and its model by membership inference.

    The canary is planted among the records of the client that made the largest sale, and the client releases again,
    with noise from the operating system. For membership inference the members are records of clients that sold, and
    the others are test records. Under aggregate trust there is no promise about single releases, so only the model
    is attacked.
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
            pool.model,
            torch.from_numpy(result.weights),
            (pool.inputs[rows], pool.labels[rows]),
            task.test.tensors(),
            worst.epsilon,
            config.delta,
            rng,
            claim_guess=worst.guess_accuracy,
            confidence=confidence,
        )
    )
    return found
