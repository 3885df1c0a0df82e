"""Proposition 1 of [Sun2026] measured: does a value baseline lower the variance of the regret's gradient?

    python -m privmarket_studies.literal_baseline measure [--batches 100]   # minutes; writes baseline.json
    python -m privmarket_studies.literal_page                               # puts it on the page

The paper's regret of client i is the largest [X]⁺ over the R steps of an ascent over its misreports b′, with
X = u(b′) − u(b). The value-baselined form has X̂ = X − (Φ(b′) − Φ(b)) in its place, where Φ is a critic. The
proposition says that E X̂ = E X, that Var X̂ = Var X − Var Φ, and that therefore the gradient by the network's
weights has a lower variance.

Here both gradients are taken on the same batches with the same ascents, for networks at several stages of training
and two critics, and their variance (the trace of the covariance over batches) is compared, with an interval by
resampling batches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.mechanisms.learned._losses import Critic, bellman_loss
from privmarket.mechanisms.learned._markets import Markets, MarketSampler, Trade
from privmarket.mechanisms.learned._misreports import LEAST_OFFER, Misreports, cheap_candidates, uniform_reports
from privmarket.mechanisms.learned._networks import AuctionNetwork
from privmarket.mechanisms.learned._recipes import recipe
from privmarket.mechanisms.learned._trainer import new_trainer

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "literal"
RULE = "mfg-regretnet:literal"
CLIENTS = 100
BUDGET_PER_CLIENT = 0.5
PROFILES = 64
ATTACKED = 10
ASCENT_STEPS = 25
STEP_SIZE = 0.01
STAGES = (0, 100)
CRITIC_STEPS = 400
RESAMPLES = 2000
CRITICS = {
    "bellman": "fitted to Eq. (L-hjb-critic)",
    "truthful": "fitted to the utility of an honest report",
}


@dataclass(frozen=True, eq=False)
class Walk:
    """One batch with its ascents.

    Attributes:
        markets: (L, N) reports.
        who: (D,) the clients that misreport.
        path: reports tried, (R + 1, L, D) each.
        gain: (R + 1, L, D) X, what each of them gains over the truth, in units of B/N.
    """

    markets: Markets
    who: Tensor
    path: Misreports
    gain: Tensor


def walked(network: AuctionNetwork, markets: Markets, who: Tensor, generator: torch.Generator) -> Walk:
    """The ascents of Eq. (pga) from even starts, every point of them kept."""
    valuation, cap = markets.valuation[:, who], markets.epsilon[:, who]
    with torch.no_grad():
        encoded = network.encode(markets).detached()
        truth = network.clear(encoded, markets).utility(markets.valuation)[:, who]
    start = uniform_reports(valuation, cap, generator)
    v, e = start.valuation, start.epsilon
    points, gains = [], []
    for step in range(ASCENT_STEPS + 1):
        v, e = v.clone().requires_grad_(), e.clone().requires_grad_()
        utility = network.deviate(encoded, markets, v, e, who).utility(valuation)
        points.append((v.detach(), e.detach()))
        gains.append((utility.detach() - truth) * (markets.clients / markets.budget))
        if step < ASCENT_STEPS:
            slope_v, slope_e = torch.autograd.grad(utility.sum(), (v, e))
            v = (v.detach() + STEP_SIZE * slope_v).clamp_min(0.0)
            e = torch.minimum(torch.maximum(e.detach() + STEP_SIZE * slope_e, LEAST_OFFER * cap), cap)
    path = Misreports(torch.stack([one[0] for one in points]), torch.stack([one[1] for one in points]))
    return Walk(markets, who, path, torch.stack(gains))


def worth(critic: Critic, markets: Markets, who: Tensor, valuation: Tensor, epsilon: Tensor) -> Tensor:
    """(..., L, D) Φ(b′, b′_MFG) in units of B/N; the population's mean moves with the report."""

    def scaled(v: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        return torch.log1p(v / markets.unit), e / markets.epsilon_max

    all_s, all_cap = scaled(markets.valuation, markets.epsilon)
    s, cap = scaled(valuation, epsilon)
    mean_s = all_s.mean(-1, keepdim=True) + (s - all_s[:, who]) / markets.clients
    mean_cap = all_cap.mean(-1, keepdim=True) + (cap - all_cap[:, who]) / markets.clients
    value: Tensor = critic.net(torch.stack((s, cap, mean_s, mean_cap), dim=-1)).squeeze(-1)
    return value


def fitted_critic(network: AuctionNetwork, kind: str, seed: int, steps: int = CRITIC_STEPS) -> Critic:
    """A critic of this network as it stands.

    Args:
        kind: one of `CRITICS`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        critic = Critic()
    generator = torch.Generator().manual_seed(seed)
    draws = np.random.default_rng([seed, 1])
    optimiser = torch.optim.Adam(critic.parameters(), lr=3e-3)
    for _ in range(steps):
        markets = drawn(draws, 16)
        who = torch.randperm(CLIENTS, generator=generator)[:ATTACKED]
        valuation, cap = markets.valuation[:, who], markets.epsilon[:, who]
        with torch.no_grad():
            encoded = network.encode(markets).detached()
            if kind == "bellman":
                tried = cheap_candidates(valuation, cap, generator)
                utility = network.deviate(encoded, markets, tried.valuation, tried.epsilon, who).utility(valuation)
            else:
                honest = network.clear(encoded, markets).utility(markets.valuation)[:, who]
        if kind == "bellman":
            loss = bellman_loss(critic, markets, valuation, cap, tried, utility, rate=1.0)
        else:
            target = honest * (markets.clients / markets.budget)
            loss = (worth(critic, markets, who, valuation, cap) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return critic.requires_grad_(False)


def drawn(rng: np.random.Generator, profiles: int) -> Markets:
    """Markets of the Uniform scenario with 100 clients and a budget of 50."""
    sampler = MarketSampler(
        [pm.scenario("uniform")], (CLIENTS, CLIENTS), (BUDGET_PER_CLIENT, BUDGET_PER_CLIENT), profiles=profiles
    )
    return sampler.draw(rng)[0]


@dataclass(frozen=True, eq=False)
class Estimate:
    """One batch's estimate of the mean regret and its gradient.

    Attributes:
        gradient: (parameters,).
        regret: the mean of the hinges.
        open_hinges: the share of clients whose hinge is above 0.
    """

    gradient: NDArray[np.float64]
    regret: float
    open_hinges: float


def estimate(network: AuctionNetwork, walk: Walk, moved: Tensor) -> Estimate:
    """The regret of a batch and its gradient by the weights.

    Args:
        moved: (R + 1, L, D) Φ(b′) − Φ(b) of every report tried; zeros give the regret without a baseline.
    """
    best = (walk.gain - moved).argmax(0, keepdim=True)
    chosen = [one.gather(0, best).squeeze(0) for one in (walk.path.valuation, walk.path.epsilon, moved)]
    valuation = walk.markets.valuation[:, walk.who]
    encoded = network.encode(walk.markets)
    truth = network.clear(encoded, walk.markets)
    honest = Trade(truth.epsilon[:, walk.who], truth.payment[:, walk.who]).utility(valuation)
    lied = network.deviate(encoded, walk.markets, chosen[0], chosen[1], walk.who).utility(valuation)
    hinge = torch.relu((lied - honest) * (walk.markets.clients / walk.markets.budget) - chosen[2])
    slopes = torch.autograd.grad(hinge.mean(), list(network.parameters()), allow_unused=True)
    gradient = torch.cat([one.flatten() for one in slopes if one is not None]).double().numpy()
    found = hinge.detach().double()
    return Estimate(gradient, float(found.mean()), float((found > 0).double().mean()))


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval over resampled batches."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """With the baseline against without, on the same batches.

    Attributes:
        variance_ratio: trace of the gradient's covariance, with over without.
        relative_variance_ratio: the same, each over the squared norm of its own mean.
        cosine: between the two mean gradients.
        difference: distance of the mean gradients over the norm of that without.
        regret_raw, regret_baselined: the estimates of the regret, in units of B/N.
        gain_raw, gain_baselined: means of X and X̂ at the last step of the ascent: the proposition says that they
            are equal.
        scalar_variance_ratio: Var X̂ / Var X there.
        claimed_ratio: 1 − Var Φ(b) / Var X, what the proposition says it is.
        open_raw, open_baselined: the share of hinges above 0.
    """

    variance_ratio: Interval
    relative_variance_ratio: Interval
    cosine: Interval
    difference: Interval
    regret_raw: Interval
    regret_baselined: Interval
    gain_raw: Interval
    gain_baselined: Interval
    scalar_variance_ratio: Interval
    claimed_ratio: Interval
    open_raw: Interval
    open_baselined: Interval


def compared(
    raw: Sequence[Estimate], other: Sequence[Estimate], scalars: NDArray[np.float64], seed: int = 0
) -> Comparison:
    """Every figure with its interval.

    Args:
        raw, other: (batches,) estimates without and with the baseline.
        scalars: (batches, 6) means over a batch of X, X², X̂, X̂², Φ(b), Φ(b)² at the last step of the ascent.
    """
    batches = len(raw)
    a = np.stack([one.gradient for one in raw])
    b = np.stack([one.gradient for one in other])
    grams = (a @ a.T, b @ b.T, a @ b.T)
    rows = np.array([[p.regret, q.regret, p.open_hinges, q.open_hinges] for p, q in zip(raw, other, strict=True)])

    def figures(weight: NDArray[np.float64]) -> list[float]:
        weight = weight / weight.sum()
        size_a, size_b, both = (float(weight @ gram @ weight) for gram in grams)
        spread_a = float(weight @ np.diag(grams[0])) - size_a
        spread_b = float(weight @ np.diag(grams[1])) - size_b
        x, xx, y, yy, phi, phi2 = weight @ scalars
        regret_a, regret_b, open_a, open_b = weight @ rows
        variance = xx - x * x
        return [
            spread_b / spread_a,
            (spread_b / size_b) / (spread_a / size_a),
            both / np.sqrt(size_a * size_b),
            float(np.sqrt(max(size_a + size_b - 2 * both, 0.0) / size_a)),
            regret_a,
            regret_b,
            x,
            y,
            (yy - y * y) / variance,
            1.0 - (phi2 - phi * phi) / variance,
            open_a,
            open_b,
        ]

    rng = np.random.default_rng(seed)
    drawn_again = rng.multinomial(batches, np.full(batches, 1.0 / batches), RESAMPLES).astype(np.float64)
    many = np.array([figures(weight) for weight in drawn_again])
    low, high = np.quantile(many, (0.025, 0.975), axis=0)
    here = figures(np.ones(batches))
    return Comparison(*[Interval(*(float(x) for x in three)) for three in zip(here, low, high, strict=True)])


def measured(
    network: AuctionNetwork, batches: int, seed: int, critic_steps: int = CRITIC_STEPS
) -> dict[str, Comparison]:
    """By critic: with and without it, on the same batches of fresh markets."""
    critics = {kind: fitted_critic(network, kind, seed, critic_steps) for kind in CRITICS}
    rng = np.random.default_rng([seed, 2])
    generator = torch.Generator().manual_seed(seed)
    raw: list[Estimate] = []
    others: dict[str, list[Estimate]] = {kind: [] for kind in critics}
    scalars: dict[str, list[list[float]]] = {kind: [] for kind in critics}
    for _ in range(batches):
        markets = drawn(rng, PROFILES)
        who = torch.randperm(CLIENTS, generator=generator)[:ATTACKED]
        walk = walked(network, markets, who, generator)
        raw.append(estimate(network, walk, torch.zeros_like(walk.gain)))
        for kind, critic in critics.items():
            at_truth = worth(critic, markets, who, markets.valuation[:, who], markets.epsilon[:, who])
            moved = worth(critic, markets, who, walk.path.valuation, walk.path.epsilon) - at_truth
            others[kind].append(estimate(network, walk, moved))
            gain, baselined = walk.gain[-1].double(), (walk.gain - moved)[-1].double()
            parts = (gain, gain**2, baselined, baselined**2, at_truth.double(), at_truth.double() ** 2)
            scalars[kind].append([float(part.mean()) for part in parts])
    return {kind: compared(raw, others[kind], np.array(scalars[kind])) for kind in critics}


def networks(stages: Sequence[int] = STAGES) -> dict[str, AuctionNetwork]:
    """The paper's network after some steps of its own recipe, and as it ships."""
    trainer = new_trainer(recipe(RULE), [pm.scenario(name) for name in recipe(RULE).scenarios])
    made: dict[str, AuctionNetwork] = {}
    for stage in stages:
        trainer.run(lambda _: None, until=stage)
        kept = type(trainer.network)(**trainer.network.settings())
        kept.load_state_dict(trainer.network.state_dict())
        made[f"after {stage} steps"] = kept
    shipped = pm.mechanism(RULE).network(torch.float32)  # type: ignore[attr-defined]
    made[f"after {recipe(RULE).steps:,} steps, as it ships"] = shipped.requires_grad_(True)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m privmarket_studies.literal_baseline")
    parser.add_argument("command", choices=("measure",))
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--out", type=Path, default=FOLDER / "baseline.json")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started = time.process_time()
    found: dict[str, Any] = {}
    made = networks()
    print(f"{len(made)} networks after {time.process_time() - started:.0f} s", flush=True)
    for stage, network in made.items():
        found[stage] = {kind: asdict(one) for kind, one in measured(network, given.batches, seed=7).items()}
        print(stage, json.dumps(found[stage]["bellman"]["variance_ratio"]), flush=True)
    facts = {
        "rule": RULE,
        "batches": given.batches,
        "profiles": PROFILES,
        "attacked": ATTACKED,
        "clients": CLIENTS,
        "critic_steps": CRITIC_STEPS,
        "resamples": RESAMPLES,
        "processor_seconds": round(time.process_time() - started, 1),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, json.dumps({"facts": facts, "stages": found}, indent=1) + "\n")


FIGURES = tuple(one.name for one in fields(Comparison))


if __name__ == "__main__":
    main()
