"""How fast learned mechanisms train and run, as ratios measured in turn in the same process.

References: a training step of a concatenated RegretNet on the same profiles, and the bare matrix products of the
row network on as many rows.
"""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from privmarket.market._distributions import scenario
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._learned_mechanism import LearnedMechanism, OutsideTraining
from privmarket.mechanisms.learned._mfg_regretnet import CHUNK_ROWS, ROW_FEATURES, MeanFieldNetwork
from privmarket.mechanisms.learned._recipes import MisreportSearch, Recipe, recipe
from privmarket.mechanisms.learned._trainer import Trainer, new_trainer
from privmarket_studies.timing import best_in_turn


@dataclass(frozen=True)
class LearnedSpeed:
    """What was measured. Seconds are the best of a few repeats, references timed in turn with their subject.

    Attributes:
        mean_field_step, concatenated_step: seconds of a training step at N clients, 64 profiles, R ascent steps.
        step_ratio: the first over the second.
        default_step: seconds of the recipe's own attack (candidates and sign steps) on the same profiles.
        mean_field_exponent, concatenated_exponent: growth of a training step in N.
        forward_seconds, products_seconds, forward_ratio: one auction at `forward_clients` clients, and the bare
            matrix products of its row network.
        peak_gigabytes: resident memory of the whole process after that auction.
        small_forward_seconds: one auction at 100 clients.
    """

    clients: int
    mean_field_step: float
    concatenated_step: float
    step_ratio: float
    default_step: float
    mean_field_exponent: float
    concatenated_exponent: float
    forward_clients: int
    forward_seconds: float
    products_seconds: float
    forward_ratio: float
    peak_gigabytes: float
    small_forward_seconds: float
    threads: int

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)


def measure(
    clients: int = 100,
    profiles: int = 64,
    ascent_steps: int = 25,
    forward_clients: int = 1_000_000,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda text: None,
) -> LearnedSpeed:
    """Measures training steps and forward passes on one thread; returns the figures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        progress("one auction")
        forward, products, peak, small = _forward(forward_clients, repeats)
        progress("training steps")
        steps = [
            _trainer(name, clients, profiles, attack).advance
            for name, attack in (
                ("mfg-regretnet", MisreportSearch("ascent", steps=ascent_steps, rows=10**9)),
                ("regretnet", MisreportSearch("ascent", steps=ascent_steps, rows=10**9)),
                ("mfg-regretnet", MisreportSearch("candidates", rows=10**9)),
            )
        ]
        mean_field, concatenated, default = best_in_turn(steps, repeats)
        progress("growth in N")
        linear = _exponent("mfg-regretnet", (100, 1_000, 10_000), repeats)
        square = _exponent("regretnet", (200, 400, 800), repeats)
    finally:
        torch.set_num_threads(threads)
    return LearnedSpeed(
        clients,
        mean_field,
        concatenated,
        mean_field / concatenated,
        default,
        linear,
        square,
        forward_clients,
        forward,
        products,
        forward / products,
        peak,
        small,
        1,
    )


def _trainer(name: str, clients: int, profiles: int, attack: MisreportSearch) -> Trainer:
    base: Recipe = recipe(name)
    # The leanest heads: with the ladder of menus that ships, a concatenated step takes several times as long.
    network = {"seats": clients, "menus": 0} if name == "regretnet" else {}
    chosen = replace(
        base,
        clients=(clients, clients),
        rows=clients * profiles,
        attack=attack,
        network=network,
        scenarios=("uniform",),
        alignment=replace(base.alignment, weight=0.0),
    )
    return new_trainer(chosen, [scenario("uniform")])


def _forward(clients: int, repeats: int) -> tuple[float, float, float, float]:
    rule = mechanism("mfg-regretnet")
    assert isinstance(rule, LearnedMechanism)
    network = rule.network(torch.float32)
    assert isinstance(network, MeanFieldNetwork)
    rng = np.random.default_rng(0)
    many, few = scenario("uniform").sample(rng, clients), scenario("uniform").sample(rng, 100)
    features = torch.rand((clients, ROW_FEATURES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTraining)
        forward, products = best_in_turn(
            [lambda: rule.run(many, clients / 2), lambda: _bare_products(network, features)], repeats
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        (small,) = best_in_turn([lambda: rule.run(few, 50.0)], 20)
    return forward, products, peak, small


def _bare_products(network: MeanFieldNetwork, features: torch.Tensor) -> torch.Tensor:
    """The matrix products of the row network and nothing else, in the rule's own chunks: the yardstick of speed."""
    weights = [one.weight.detach().T.contiguous() for one in network.row if isinstance(one, torch.nn.Linear)]
    buffers = features.new_empty(2, CHUNK_ROWS * max(weight.shape[1] for weight in weights))
    rows = features
    for start in range(0, features.shape[0], CHUNK_ROWS):
        rows = features[start : start + CHUNK_ROWS]
        for turn, weight in enumerate(weights):
            shape = rows.shape[0], weight.shape[1]
            rows = torch.mm(rows, weight, out=buffers[turn % 2, : shape[0] * shape[1]].view(shape))
    return rows


def _exponent(name: str, sizes: tuple[int, ...], repeats: int) -> float:
    """Slope of log seconds per step against log N: two profiles, three ascent steps, everybody attacked."""
    attack = MisreportSearch("ascent", steps=3, rows=10**9)
    seconds = [best_in_turn([_trainer(name, clients, 2, attack).advance], repeats)[0] for clients in sizes]
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
