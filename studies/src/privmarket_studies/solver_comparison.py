"""Ways to solve the mean-field game beside each other, and beside MFGLib on a game that both can state.

    python -m privmarket_studies.solver_comparison docs/results

writes `equilibrium/methods.json` and, where `mfglib` is installed (`pip install mfglib`),
`equilibrium/mfglib.json`; then `python -m privmarket_studies.game_results docs/results` renders the page.

MFGLib [Guo2023] solves games with finitely many states, actions and times, given by a reward and a transition as
functions of the distribution over states and actions. With the explicit scheme our discrete game has that form: a
state is (valuation cell, budget node), an action is what a client adds to its valuation, from a list, and the price
of a step is found from the distribution. Only the list of actions differs from our game, where any report may be
sent.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from privmarket import __version__
from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.market._bids import Array
from privmarket.market._menus import from_function
from privmarket.meanfield import (
    METHODS,
    DiscreteGame,
    Equilibrium,
    ExplicitUpwind,
    Grid,
    MenuMarket,
    OnlineMirrorDescent,
    Problem,
    solve,
)
from privmarket.meanfield._methods import _MixedPlay

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

their_alg = late("mfglib.alg")
their_env = late("mfglib.env")
their_scoring = late("mfglib.scoring")

AFTER = (1, 2, 5, 10, 20, 50, 100)
SHARED_GRID = Grid(16, 12, 12)
SHARED_ACTIONS = 33
SHARED_ITERATIONS = 100


class MethodRow(TypedDict):
    """One method on one game; lists are per entry of `AFTER` that was reached."""

    game: str
    method: str
    result: str
    iterations: int
    after: list[int]
    exploitability: list[float]
    seconds: list[float]


class Methods(TypedDict):
    """What the comparison of our own methods writes."""

    version: str
    grid: str
    tolerance: float
    rows: list[MethodRow]


class TheirRun(TypedDict):
    """One algorithm of MFGLib on the shared game."""

    algorithm: str
    iterations: int
    seconds: float
    their_exploitability: float
    our_exploitability: float
    price_difference: float


class Shared(TypedDict):
    """What the comparison with MFGLib writes; exploitability over the mean payment, prices over their mean."""

    version: str
    mfglib: str
    torch: str
    grid: str
    actions: int
    our_seconds: float
    our_iterations: int
    our_exploitability: float
    ours_by_their_score: float
    truth_by_their_score: float
    same_algorithm_price_difference: dict[str, float]
    our_mirror_descent_seconds: float
    runs: list[TheirRun]


def games() -> dict[str, Problem]:
    """The games that the methods are compared on."""
    linear = from_function(lambda s: np.clip(1.0 - s, 0.0, 1.0), 1.0, steps=8)
    return {
        "uniform, posted price": Problem.from_scenario("uniform"),
        "uniform, four kinds": Problem.from_scenario("uniform", kinds=4),
        "uniform, linear menu": Problem.from_scenario("uniform", market=MenuMarket(linear, 0.3)),
    }


def compare_methods(place: Path, grid: str = "24x24x30", tolerance: float = 1e-6) -> Methods:
    """Every method on every game: exploitability of the strategy that each would return, by iteration and time.

    Time is processor time of a second run in which the exploitability is not tracked. Rows that the file at `place`
    already holds are kept; each new one is written there.
    """
    report: Methods = {"version": __version__, "grid": grid, "tolerance": tolerance, "rows": []}
    if place.exists():
        saved: Methods = json.loads(place.read_text(encoding="utf-8"))
        if (saved["version"], saved["grid"], saved["tolerance"]) == (__version__, grid, tolerance):
            report = saved
    rows = report["rows"]
    for game, problem in games().items():
        for method in METHODS:
            if any((row["game"], row["method"]) == (game, method) for row in rows):
                continue
            solved = solve(
                problem,
                method=method,
                grid=grid,
                tolerance=tolerance,
                max_iterations=max(AFTER),
                track_exploitability=True,
            )
            clock = list[float]()
            solve(
                problem,
                method=method,
                grid=grid,
                tolerance=tolerance,
                max_iterations=max(AFTER),
                progress=_stopwatch(clock),
            )
            statistics = solved.statistics
            after = [k for k in AFTER if k <= statistics.iterations]
            rows.append(
                {
                    "game": game,
                    "method": method,
                    "result": solved.result.value,
                    "iterations": statistics.iterations,
                    "after": after,
                    "exploitability": [max(statistics.exploitability[k - 1], 0.0) for k in after],
                    "seconds": [clock[k - 1] for k in after],
                }
            )
            print(f"{game}, {method}: {solved.result.value} after {statistics.iterations}", flush=True)
            write_atomically(place, json.dumps(report, indent=1) + "\n")
    return report


def _stopwatch(clock: list[float]) -> Callable[[int, float], None]:
    """A `progress` that writes down the processor time since now."""
    began = time.process_time()
    return lambda iteration, change: clock.append(time.process_time() - began)


class SharedGame:
    """One of our discrete games in MFGLib's form: states (cell, node), actions from a list, times 0 … steps − 1."""

    def __init__(self, game: DiscreteGame, additions: Array) -> None:
        self.game = game
        self.additions = additions
        mesh = game.mesh
        cells = mesh.grid.valuation_cells
        nodes = mesh.grid.budget_nodes
        self.report = mesh.valuation[:, None] + additions  # (cells, actions)
        moves = game.transitions[0].expect(np.eye(cells))  # from, to
        stay = np.eye(nodes)
        fall = np.eye(nodes, k=1)  # to node n' from n' + 1
        moved = moves.T[:, None, :, None]  # to cell, ·, from cell, ·
        self._stay = moved * stay[None, :, None, :]
        self._change = moved * (fall - stay * (np.arange(nodes) > 0))[None, :, None, :]

    def price(self, joint: Array) -> float:
        """The price at which the distribution (cells, nodes, actions) spends the budget."""
        market = self.game.problem.market
        selling = joint[:, 1:].sum(axis=1)
        spend = lambda level: float(np.vdot(selling, market.spend(self.report, level, self._width)))  # noqa: E731
        return self.game.clear_spend(spend)[0]

    @property
    def _width(self) -> float:
        return self.game.mesh.valuation_width

    def reward(self, environment: object, t: int, joint: torch.Tensor) -> torch.Tensor:
        """(cells, nodes, actions) what a step brings: MFGLib's `reward_fn`."""
        level = self.price(joint.numpy())
        valuation = self.game.mesh.valuation[:, None]
        reward = self.game.problem.market.reward(valuation, self.report, level, self._width)
        table = self.game.mesh.step * reward[:, None, :] * (self.game.mesh.budget > 0)[None, :, None]
        return torch.from_numpy(table)

    def transition(self, environment: object, t: int, joint: torch.Tensor) -> torch.Tensor:
        """(cells, nodes, cells, nodes, actions) next state, state, action: MFGLib's `transition_fn`."""
        level = self.price(joint.numpy())
        mesh = self.game.mesh
        sold = self.game.problem.market.sold(self.report, level, self._width)
        falls = np.minimum(sold * (mesh.step / mesh.budget_width), 1.0)  # (cells, actions)
        table = self._stay[..., None] + self._change[..., None] * falls[None, None, :, None, :]
        return torch.from_numpy(table)

    def environment(self) -> Any:
        """The game as an `mfglib.env.Environment`."""
        mesh = self.game.mesh
        most = self.game.problem.market.most_sold * self.game.problem.price_ceiling * mesh.step
        return their_env.Environment(
            T=mesh.grid.time_steps - 1,
            S=(mesh.grid.valuation_cells, mesh.grid.budget_nodes),
            A=(self.additions.size,),
            mu0=torch.from_numpy(self.game.initial_mass[0].copy()),
            r_max=most,
            reward_fn=self.reward,
            transition_fn=self.transition,
        )


def compare_with_mfglib() -> Shared:
    """The same game solved here and by MFGLib; each strategy is judged by the other library too."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    problem = Problem.from_scenario("uniform")
    began = time.process_time()
    ours = solve(problem, grid=SHARED_GRID)
    our_seconds = time.process_time() - began
    game = DiscreteGame(problem, ExplicitUpwind(), SHARED_GRID)
    method = OnlineMirrorDescent(additions=SHARED_ACTIONS)
    began = time.process_time()
    paths = _mirror_descent(method, game, ours.price)
    mirror_seconds = time.process_time() - began
    play = method._play
    environment = SharedGame(game, play.additions).environment()
    paid = ours.mean_payment

    def their_score(policy: Array) -> float:
        return float(their_scoring.exploitability_score(environment, torch.from_numpy(policy))) / paid

    truth = np.zeros(play.shape)[:, 0]
    truth[..., int(np.abs(play.additions).argmin())] = 1.0
    # Our scores grow per round and in units of the largest payment; MFGLib's rewards are per step and in money.
    rate = method.rate / (problem.market.most_sold * problem.price_ceiling * game.mesh.step)
    algorithms: dict[str, Any] = {
        "online mirror descent": their_alg.OnlineMirrorDescent(alpha=rate),
        "fictitious play": their_alg.FictitiousPlay(),
    }
    runs: list[TheirRun] = []
    same: dict[str, float] = {}
    for name, algorithm in algorithms.items():
        began = time.process_time()
        policies, scores, _ = algorithm.solve(
            environment, max_iter=SHARED_ITERATIONS, atol=None, rtol=None, verbose=False
        )
        seconds = time.process_time() - began
        prices = {k: play.flow(policies[k].numpy()[:, None])[0] for k in (1, 10, SHARED_ITERATIONS)}
        if name == "online mirror descent":
            same = {str(k): _difference(prices[k], paths[k]) for k in prices}
        runs.append(
            {
                "algorithm": name,
                "iterations": len(policies) - 1,
                "seconds": seconds,
                "their_exploitability": float(scores[-1]) / paid,
                "our_exploitability": _against_any_report(play, policies[-1].numpy()[:, None]) / paid,
                "price_difference": _difference(prices[SHARED_ITERATIONS], ours.price),
            }
        )
        print(f"mfglib, {name}: {runs[-1]}", flush=True)
    return {
        "version": __version__,
        "mfglib": version("mfglib"),
        "torch": version("torch"),
        "grid": str(SHARED_GRID),
        "actions": SHARED_ACTIONS,
        "our_seconds": our_seconds,
        "our_iterations": ours.statistics.iterations,
        "our_exploitability": max(ours.relative_exploitability, 0.0),
        "ours_by_their_score": their_score(_as_policy(play, ours)[:, 0]),
        "truth_by_their_score": their_score(truth),
        "same_algorithm_price_difference": same,
        "our_mirror_descent_seconds": mirror_seconds,
        "runs": runs,
    }


def _mirror_descent(method: OnlineMirrorDescent, game: DiscreteGame, price: Array) -> dict[int, Array]:
    """Prices after each iteration of our own mirror descent, by its number."""
    method.begin(game, price)
    flow = game.flow(np.zeros((game.grid.time_steps, *game.initial_mass.shape)))
    found = {}
    for k in range(1, SHARED_ITERATIONS + 1):
        following = method.next_price(price, flow.mass[:-1], flow)
        assert following is not None
        found[k] = following
    return found


def _as_policy(play: _MixedPlay, solved: Equilibrium) -> Array:
    """Our strategy on the list of actions: each addition is split between its two neighbours."""
    below, weight = play.split(solved.shadow_price)
    policy = np.zeros(play.shape)
    np.put_along_axis(policy, below[..., None], 1.0 - weight[..., None], axis=-1)
    np.put_along_axis(policy, below[..., None] + 1, weight[..., None], axis=-1)
    return policy


def _against_any_report(play: _MixedPlay, policy: Array) -> float:
    """What a client gains by any report, also one that is not on the list, when everybody plays the policy."""
    game = play.game
    price, mass = play.flow(policy)
    value, _ = game.best_response(price)
    earned = 0.0
    for n in range(game.grid.time_steps):
        report = play._report
        reward = game.problem.market.reward(
            game.mesh.valuation[:, None], report, float(price[n]), game.mesh.valuation_width
        )
        earned += game.mesh.step * float(np.vdot(mass[n], play._mean(policy[n], reward) * game.can_sell))
    return game.starting_value(value) - earned


def _difference(price: Array, other: Array) -> float:
    return float(np.abs(price - other).max() / other.mean())


def main(results: Path) -> None:
    """Measures and writes the files; rows of the first that are there already are kept."""
    folder = results / "equilibrium"
    compare_methods(folder / "methods.json")
    if find_spec("mfglib") is None:
        print("mfglib is not installed, so the comparison with it is left as it is: pip install mfglib")
    else:
        write_atomically(folder / "mfglib.json", json.dumps(compare_with_mfglib(), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
