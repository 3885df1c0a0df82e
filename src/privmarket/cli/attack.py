"""`privmarket attack`: canaries and membership inference against releases that the product really makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket.cli.options import Json, Seed, note, print_json, print_table

if TYPE_CHECKING:
    from privmarket.federated.privacy_attacks import AttackResult

ATTACKS = ("canary", "one-run", "membership")


def attack(
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")] = "digits",
    epsilon: Annotated[float, typer.Option(help="What one sale claims.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The δ of the claim.")] = 1e-5,
    kind: Annotated[
        list[str] | None, typer.Option("--attack", help="canary, one-run or membership; all unless given.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="mlp, logistic or cnn; else the recommended one.")] = None,
    records: Annotated[int, typer.Option(help="Records of the client that is attacked.")] = 100,
    sampling_rate: Annotated[float, typer.Option(help="Share of records in a step, by Poisson sampling.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Noisy steps in a sale.")] = 1,
    trials: Annotated[int, typer.Option(help="canary: releases with, and as many without, the record.")] = 1000,
    canaries: Annotated[int, typer.Option(help="one-run: planted records.")] = 500,
    targets: Annotated[int, typer.Option(help="membership: records in question.")] = 200,
    rounds: Annotated[int, typer.Option(help="membership: rounds that train the model, a sale each.")] = 30,
    noise_share: Annotated[
        float, typer.Option(help="Break the client on purpose: 0.1 adds a tenth of the noise that it claims.")
    ] = 1.0,
    confidence: Annotated[float, typer.Option(help="How sure a bound is.")] = 0.95,
    plot: Annotated[Path | None, typer.Option(help="Draw the attacks to this file (.png, .svg, .pdf).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Attack real releases and compare what shows with what was claimed.

    The client's noise always comes from the operating system; the seed decides what the attacker plants. A bound on
    ε above the claim refutes the claim (exit code 1); one below proves nothing, but says how near an attack comes.

    [bold]Examples[/bold]

      privmarket attack --epsilon 1 --plot attack.png

      privmarket attack --noise-share 0.1                    a client that cheats is found

      privmarket attack --dataset mnist --attack canary --trials 5000 --json
    """
    from privmarket.errors import ConfigurationError

    chosen = list(dict.fromkeys(kind or ATTACKS))
    unknown = [name for name in chosen if name not in ATTACKS]
    if unknown:
        raise ConfigurationError(f"--attack {unknown[0]!r}", f"choose from: {', '.join(ATTACKS)}")
    for name, value in (("records", records), ("trials", trials), ("rounds", rounds)):
        if value < 1:
            raise ConfigurationError(f"--{name} {value}", "give at least 1")
    results = _run(
        *(dataset, epsilon, delta, chosen, model, records, sampling_rate, steps, trials, canaries, targets, rounds),
        *(noise_share, confidence, seed),
    )
    if plot is not None:
        _draw(results, plot)
        note(f"written: {plot}")
    if json:
        print_json({"noise_share": noise_share, "attacks": [result.to_json() for result in results]})
    else:
        show_attacks(results)
    if any(result.refuted for result in results):
        raise typer.Exit(1)


def _run(
    dataset: str,
    epsilon: float,
    delta: float,
    chosen: list[str],
    model: str | None,
    records: int,
    sampling_rate: float,
    steps: int,
    trials: int,
    canaries: int,
    targets: int,
    rounds: int,
    noise_share: float,
    confidence: float,
    seed: int,
) -> list[AttackResult]:
    import numpy as np
    import torch

    from privmarket.errors import ConfigurationError
    from privmarket.federated.datasets import load_dataset
    from privmarket.federated.features import with_features
    from privmarket.federated.local import ClientRecords, LocalPlan
    from privmarket.federated.models import build_model
    from privmarket.federated.privacy_attacks import Subject, canary_attack, membership_attack, one_run_attack
    from privmarket.federated.recommended import recommended_training
    from privmarket.federated.workers import one_thread

    training = recommended_training(dataset)
    data = with_features(load_dataset(dataset), training.features)
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    if records > labels.shape[0]:
        raise ConfigurationError(f"--records {records}: {dataset} has {labels.shape[0]}", "ask for fewer")
    network = build_model(model or training.model, data.image_shape, data.classes)
    rng = np.random.default_rng(seed)
    clip = training.clip_norm
    subject = Subject(
        network,
        network.initial_weights(rng),
        ClientRecords(images[:records], labels[:records], [records]),
        LocalPlan(steps, sampling_rate, clip, 3.0 / clip, expected_batch=sampling_rate * records),
        epsilon,
        delta,
        noise_share,
    )
    results = []
    with one_thread():
        for name in chosen:
            note(f"{name} attack …")
            if name == "canary":
                results.append(canary_attack(subject, rng, trials=trials, confidence=confidence))
            elif name == "one-run":
                results.append(one_run_attack(subject, rng, canaries=canaries, confidence=confidence))
            else:
                # As many records a client as the attacked one has, at most ten clients' worth.
                mine = slice(0, min(labels.shape[0], 10 * records))
                public = (torch.from_numpy(data.test_images[:2000]), torch.from_numpy(data.test_labels[:2000]))
                results.append(
                    membership_attack(
                        *(subject, images[mine], labels[mine], public, rng),
                        targets=targets,
                        rounds=rounds,
                        confidence=confidence,
                    )
                )
    return results


def show_attacks(results: list[AttackResult]) -> None:
    """A table of attacks beside their claims."""
    from rich.table import Table

    from privmarket.privacy.words import rounded_up_percent

    table = Table(title="attacks on real releases")
    columns = ("attack", "claimed ε", "ε shown at least", "right guesses", "allowed", "area", "trials", "claim")
    for column in columns:
        table.add_column(column, justify="left" if column == "attack" else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.claim_epsilon:.3g}",
            f"{result.audit.epsilon_lower:.3f}",
            f"{100 * result.guess:.1f} ± {100 * result.guess_margin:.1f} %",
            rounded_up_percent(result.claim_guess),
            f"{result.area:.3f}",
            str(result.audit.trials),
            "REFUTED" if result.refuted else "stands",
        )
    print_table(table)
    print(f"each bound is above the truth with probability at most {1 - results[0].audit.confidence:.2g}")
    print("a claim that stands is not proved by that: the proof is the noise; an attack can only refute")


def _draw(results: list[AttackResult], path: Path) -> None:
    from privmarket.errors import ConfigurationError
    from privmarket.reports.attack_figure import attack_figure

    try:
        attack_figure(results).savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--plot {path}: {error}", "name a writable .png, .svg or .pdf") from error
