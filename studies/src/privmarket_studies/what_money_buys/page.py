"""The page "What money buys" and its figures, rendered from kept runs: no figure is typed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privmarket._figures import new_figure
from privmarket._settings import HONEST_SHARE
from privmarket.secagg import honest_per_cohort
from privmarket_studies.reproduce.cells import Cell, Result, Scale
from privmarket_studies.reproduce.document import (
    NOT_COMPUTED,
    Block,
    Figure,
    ResultPage,
    Results,
    Table,
    Text,
    failure_text,
    prose,
)
from privmarket_studies.reproduce.statistics import Measured, compare, interval
from privmarket_studies.what_money_buys import cells as study
from privmarket_studies.what_money_buys.cells import POOLED, Market
from privmarket_studies.what_money_buys.runs import KIND, money_that_buys, money_that_keeps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NAME = "what-money-buys"
TITLE = "What money buys"
_SEEDS = range(1, 11)
_COLOURS = {"aggregate": "#0072B2", "local": "#D55E00"}
_SEES = {"aggregate": "the server sees only the sum", "local": "the server sees every update"}
# Scores between 0 and 1 are shown in points of a hundred.
_OF_HUNDRED = ("accuracy", "auc", "balanced-accuracy")


class Found:
    """The finished runs of the study, by configuration and seed."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.quick = bool(results.all(KIND, task="digits"))

    def runs(self, config: Mapping[str, Any], kind: str = KIND) -> dict[int, Result]:
        """seed → result of every finished run of a configuration."""
        found = {seed: self.results.get(Cell(kind, config, seed)) for seed in _SEEDS}
        return {seed: result for seed, result in found.items() if result is not None}

    def distance(self, market: Market) -> dict[int, float]:
        """seed → how far the model of all records lies above the buyer's own, in the score's direction."""
        pooled = self.runs(market.pooled(), POOLED)
        if market.is_shared_out and pooled:
            # One model of all pictures stands beside the own models of every seed.
            whole = next(iter(pooled.values()))
            runs = [self.runs(market.capped(wallet)) for wallet in study.WALLETS]
            pairs = {seed: (whole, run) for one in runs for seed, run in one.items()}
        else:
            pairs = {seed: (one, one) for seed, one in pooled.items()}
        found = {}
        for seed, (whole, own) in pairs.items():
            if own["before"] is not None:
                sign = -1.0 if whole["score_name"] in ("rmse", "mae", "log-loss") else 1.0
                found[seed] = sign * (whole["score"] - own["before"])
        return found


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    found = Found(results)
    markets = (study.DIGITS,) if found.quick else (*study.PICTURES, *study.TABLES)
    curves = (study.DIGITS,) if found.quick else (study.CURVE,)
    blocks: list[Block] = [
        prose("money-set-up", answer=None if found.quick else answer(found)),
        Figure("money", caption(found, curves[0]), lambda: draw_curve(found, curves[0])),
        Text("## Within a lifetime limit"),
        prose("money-capped", one_test_set="" if found.quick else one_test_set(found)),
        capped_table(found, markets),
        *([] if found.quick else [first_look_text(found)]),
        epsilon_table(found, markets),
        Text("## Gain against money, under both trusts"),
        prose("money-curve"),
        *(curve_table(found, market) for market in curves),
        half_table(found, curves),
        equal_money_table(found, curves),
        worst_case_table(found, curves),
    ]
    if not found.quick:
        blocks += [
            Text("## Instead of a market, at equal lifetime ε"),
            prose("money-baselines"),
            baseline_table(found),
            Text("## A sceptic's free baseline"),
            prose("money-sceptic"),
            sceptic_table(found),
            copies_table(found),
            Text("## How many records the buyer has"),
            prose("money-public"),
            public_table(found),
            Text("## How many sellers there are"),
            prose("money-noise"),
            noise_table(found),
            Text("## A person instead of a record"),
            person_text(found),
            person_table(found),
            Text("## Other clients"),
            prose("money-others"),
            others_table(found),
        ]
    blocks += [
        Text("## What public records chose"),
        chosen_table(found, markets, curves),
        *missing_text(found),
    ]
    if not found.quick:
        blocks.append(prose("money-tried"))
    blocks += failure_text(results)
    return ResultPage(NAME, TITLE, blocks)


def _scale(name: str) -> float:
    return 100.0 if name in _OF_HUNDRED else 1.0


def _spec(name: str, sign: str = "") -> str:
    return f"{sign}.2f" if name in _OF_HUNDRED else f"{sign}.4f"


def mean_text(runs: Mapping[int, Result], field: str, sign: str = "") -> str:
    """The mean of a field of the runs, in points of a hundred where the score is one."""
    if not runs:
        return NOT_COMPUTED
    values = [run[field] for run in runs.values()]
    if any(value is None for value in values):
        return "no own records"
    name = next(iter(runs.values()))["score_name"]
    return format(_scale(name) * float(np.mean(values)), _spec(name, sign))


def _with_interval(values: Mapping[int, float], name: str) -> str:
    """Mean [95 % interval] of differences, in the score's unit."""
    if not values:
        return NOT_COMPUTED
    scaled = Measured.of(_scale(name) * value for value in values.values())
    spec = _spec(name, "+")
    if scaled.seeds < 2:
        return f"{format(scaled.mean, spec)} (one seed)"
    low, high = interval(scaled)
    return f"{format(scaled.mean, spec)} [{format(low, spec)}, {format(high, spec)}]"


def _gains(runs: Mapping[int, Result]) -> dict[int, float]:
    return {seed: run["gain"] for seed, run in runs.items() if run["gain"] is not None}


def gain_text(runs: Mapping[int, Result]) -> str:
    """The mean gain over own records with its 95 % interval."""
    if not runs:
        return NOT_COMPUTED
    gains = _gains(runs)
    return _with_interval(gains, next(iter(runs.values()))["score_name"]) if gains else "no own records"


def _own_model(runs: Mapping[int, Result]) -> str:
    names = [run["before_model"] for run in runs.values() if run["before_model"]]
    return max(sorted(set(names)), key=names.count) if names else "none"


def capped_table(found: Found, markets: tuple[Market, ...]) -> Table:
    """Own records, bought, and the gain, at each lifetime ε."""
    rows = []
    for market in markets:
        for wallet in study.WALLETS:
            runs = found.runs(market.capped(wallet))
            name = next(iter(runs.values()))["score_name"] if runs else "score"
            rows.append(
                [
                    market.name,
                    f"{wallet:g}",
                    name,
                    f"{mean_text(runs, 'before')} ({_own_model(runs)})" if runs else NOT_COMPUTED,
                    mean_text(runs, "score"),
                    gain_text(runs),
                    share_at(found, market, wallet),
                    f"{np.mean([run['spent'] for run in runs.values()]):,.0f}" if runs else NOT_COMPUTED,
                    str(len(runs)),
                ]
            )
    columns = (
        *("market", "ε ≤", "score", "own records alone (best model)", "bought", "gain over that [95 %]"),
        *("share of the distance to all records without privacy [95 %]", "paid", "seeds"),
    )
    return Table(
        "money-capped", "Aggregate trust, two thirds of the sellers honest; means over seeds", columns, rows
    )


_TEST_PICTURES = 10_000


def one_test_set(found: Found) -> str:
    """What intervals over seeds leave out for pictures: that all seeds share one test set.

    The difference of two accuracies d on n records varies least if it has one sign on all records where the two
    differ; its standard error is then √((|d| − d²)/n).
    """
    means = [
        abs(float(np.mean(list(gains.values()))))
        for market in study.PICTURES
        for wallet in study.WALLETS
        if (gains := _gains(found.runs(market.capped(wallet))))
    ]
    if not means:
        return ""
    half = [196.0 * ((d - d**2) / _TEST_PICTURES) ** 0.5 for d in means]
    return (
        f" All seeds of a set of pictures share its {_TEST_PICTURES:,} test pictures; another test set would move "
        f"these gains by {min(half):.2f} to {max(half):.2f} points or more (95 %), which the intervals do not "
        "contain."
    )


def answer(found: Found) -> dict[str, str]:
    """The figures of the page's answer: at a lifetime ε of 1, and for half of the distance on the curve."""
    texts = {
        trust: money_for(found, study.CURVE, trust, 0.5)  # as in the table of money for shares
        for trust in study.TRUSTS
    }
    for name, market in (("mnist", study.MNIST), ("cifar", study.CIFAR)):
        texts[name] = gain_text(found.runs(market.capped(1.0)))
        texts[f"{name}_left"] = left_text(found, market, 1.0)
    return texts


def fixed_text(found: Found, market: Market, wallet: float) -> str:
    """The gain of a first look as it was fixed beforehand."""
    return gain_text(found.runs(study.as_fixed(market.capped(wallet))))


def first_look_text(found: Found) -> Block:
    """Why two of the tables are there, and what they gain as they were fixed at first."""
    markets = {"benefits": study.BENEFITS, "insured": study.INSURED}
    return prose(
        "money-first-look",
        **{
            name: {
                "public": market.where["public"],
                "fixed": " and ".join(fixed_text(found, market, wallet) for wallet in study.WALLETS),
            }
            for name, market in markets.items()
        },
    )


def share_at(found: Found, market: Market, wallet: float) -> str:
    """What of the distance to all records without privacy is gained at a lifetime ε."""
    gained, distance = _gains(found.runs(market.capped(wallet))), found.distance(market)
    return share_text(gained, distance) if gained.keys() & distance.keys() else NOT_COMPUTED


def share_text(gained: Mapping[int, float], distance: Mapping[int, float]) -> str:
    """Mean gain over mean distance, with the 95 % interval of the ratio over the seeds of both.

    The interval is Student's for (gain − ratio·distance) over the mean distance, which holds where the distance
    itself is well known; where it cannot be told from 0, no interval is given.
    """
    seeds = sorted(gained.keys() & distance.keys())
    gain, whole = (np.array([values[seed] for seed in seeds]) for values in (gained, distance))
    ratio = gain.mean() / whole.mean()
    if len(seeds) < 2:
        return f"{ratio:.0%} (one seed)"
    if interval(Measured.of(whole))[0] <= 0:
        return f"{ratio:.0%} of one that these seeds cannot tell from 0"
    low, high = interval(Measured.of(ratio + (gain - ratio * whole) / whole.mean()))
    return f"{ratio:.0%} [{low:.0%}, {high:.0%}]"


def epsilon_table(found: Found, markets: tuple[Market, ...]) -> Table:
    """The lifetime ε of the same runs under other assumptions."""
    rows = []
    for market in markets:
        for wallet in study.WALLETS:
            runs = found.runs(market.capped(wallet))
            cells = [
                f"{max(run['epsilon'][share] for run in runs.values()):.2f}" if runs else NOT_COMPUTED
                for share in ("1", "0.667", "0.5", "collude")
            ]
            rows.append([market.name, f"{wallet:g}", *cells])
    return Table(
        "money-epsilon",
        "Lifetime ε of the client that sold most (δ = 1e-5), by how many sellers are honest",
        ("market", "cap", "all honest", "two thirds", "one half", "all others collude"),
        rows,
    )


def curve_points(found: Found, market: Market, trust: str) -> list[tuple[float, dict[int, Result]]]:
    """(money offered, finished runs by seed) of the points of a curve that have any."""
    listed = study.curve_configs(market, trust)
    pairs = [(config["money"], found.runs(config)) for config in listed]
    return [(money, runs) for money, runs in pairs if runs]


def curve_table(found: Found, market: Market) -> Table:
    """Gain by money offered, under both trusts."""
    rows = []
    for trust in study.TRUSTS:
        for config in study.curve_configs(market, trust):
            runs = found.runs(config)
            one = next(iter(runs.values()), None)
            rule = NOT_COMPUTED
            if one is not None:
                rule = f"{one['chosen']['rule']}, {one['chosen']['rounds']} rounds"
            largest = "largest"
            if runs:
                largest = f"{max(run['epsilon']['0.667'] for run in runs.values()):.2g}"
                if trust == "aggregate":
                    largest += f" ({max(run['epsilon']['collude'] for run in runs.values()):.2g})"
            rows.append(
                [
                    trust,
                    f"{config['money']:g}",
                    f"{np.mean([run['spent'] for run in runs.values()]):,.1f}" if runs else NOT_COMPUTED,
                    gain_text(runs),
                    rule,
                    largest if runs else NOT_COMPUTED,
                    str(len(runs)),
                ]
            )
    columns = (
        *("trust", "offered", "paid", "gain over own records [95 %]", "what public records chose (first seed)"),
        *("lifetime ε of who sold most (all others collude)", "seeds"),
    )
    task = market.where["task"]
    return Table(f"money-curve-{task}", f"{market.name}: gain by money", columns, rows)


class _Shares:
    """The shares of the distance that a curve's points reach, from runs looked up once."""

    def __init__(self, found: Found, market: Market, trust: str, field: str = "spent") -> None:
        self.distance = found.distance(market)
        self.points = [
            {seed: (runs[seed][field], gain) for seed, gain in _gains(runs).items() if seed in self.distance}
            for _, runs in curve_points(found, market, trust)
        ]

    def means(self, seeds: Sequence[int] | None = None) -> list[tuple[float, float]]:
        """(mean money, mean gain over mean distance) of each point.

        Args:
            seeds: over which means are taken, some perhaps more than once; all that there are unless given.
        """
        found = []
        for point in self.points:
            over = [seed for seed in (sorted(point) if seeds is None else seeds) if seed in point]
            if over:
                paid, gained = np.mean([point[seed] for seed in over], axis=0)
                found.append((float(paid), float(gained / np.mean([self.distance[seed] for seed in over]))))
        return found


_READINGS = {"first": money_that_buys, "from there on": money_that_keeps}
_RESAMPLES = 400


def money_for(
    found: Found, market: Market, trust: str, share: float, reading: str = "first", field: str = "spent"
) -> str:
    """Money for a share of the distance to a model of all records, in words where there is none.

    Args:
        reading: "first" (the curve reaches the share) or "from there on" (it does not fall below it again).
        field: "spent", or "spent_if_worst_case".
    """
    shares = _Shares(found, market, trust, field).means()
    if not shares:
        return NOT_COMPUTED
    money = _READINGS[reading](share, shares)
    if money is None:
        return f"not reached for {max(shares)[0]:,.0f}"
    at_most = "at most " if money == min(shares)[0] else ""
    return f"{at_most}{money:,.1f}"


def epsilon_beside(found: Found, market: Market, trust: str, share: float) -> str:
    """The lifetime ε of who sold most at the two points of a curve between which it first reaches a share."""
    shares = _Shares(found, market, trust).means()
    reached = [number for number, (_, reaches) in enumerate(shares) if reaches >= share]
    if not reached:
        return NOT_COMPUTED
    points = curve_points(found, market, trust)
    either_side = [points[number][1] for number in (reached[0] - 1, reached[0]) if number >= 0]
    return " and ".join(f"{max(run['epsilon']['0.667'] for run in runs.values()):.2g}" for runs in either_side)


def ratio_for(found: Found, market: Market, share: float, reading: str = "first") -> str:
    """Money under local trust over money under aggregate trust, for a share of the distance, with its interval.

    The interval resamples seeds, the same for all points of both curves. Where a resampled curve never reaches the
    share, its money counts as infinite.
    """
    curves = {trust: _Shares(found, market, trust) for trust in study.TRUSTS}
    shares = {trust: curve.means() for trust, curve in curves.items()}
    if not all(shares.values()):
        return NOT_COMPUTED
    aggregate, local = (_READINGS[reading](share, shares[trust]) for trust in ("aggregate", "local"))
    if aggregate is None or local is None:
        return "not known"
    if local == min(shares["local"])[0]:
        return "not known: the least sum under local trust reaches it"
    at_least = "at least " if aggregate == min(shares["aggregate"])[0] else ""
    low, high = _resampled_ratio(curves, share, reading)
    return f"{at_least}{local / aggregate:.1f} [{low:.1f}, {high:.1f}]".replace("inf", "∞")


def _resampled_ratio(curves: Mapping[str, _Shares], share: float, reading: str) -> tuple[float, float]:
    """The middle 95 % of the ratio of `ratio_for` over draws of its seeds, with replacement."""
    seeds = sorted(curves["local"].distance)
    rng = np.random.default_rng(len(seeds))
    ratios = []
    for _ in range(_RESAMPLES):
        drawn = rng.choice(seeds, len(seeds)).tolist()
        aggregate, local = (
            _READINGS[reading](share, curves[trust].means(drawn)) for trust in ("aggregate", "local")
        )
        if aggregate is None:
            ratios.append(0.0)
        else:
            ratios.append(np.inf if local is None else local / aggregate)
    low, high = np.sort(ratios)[[int(0.025 * _RESAMPLES), int(0.975 * _RESAMPLES)]]
    return float(low), float(high)


def half_table(found: Found, markets: tuple[Market, ...]) -> Table:
    """Money for parts of the distance to a model of all records without privacy."""
    rows = []
    for market in markets:
        for share in (0.25, 0.5, 0.75):
            for reading in _READINGS:
                texts = [money_for(found, market, trust, share, reading) for trust in study.TRUSTS]
                worst = money_for(found, market, "aggregate", share, reading, "spent_if_worst_case")
                ratio = ratio_for(found, market, share, reading)
                rows.append([market.name, f"{share:.0%}", reading, *texts, ratio, worst])
    return Table(
        "money-half",
        "Money for a share of the distance from own records to all records without privacy (interpolated on a "
        "logarithmic scale)",
        (
            *("market", "share of the distance", "reached", "aggregate", "local"),
            "local over aggregate [95 %, seeds resampled]",
            "aggregate, if sellers price the worst case",
        ),
        rows,
    )


def equal_money_table(found: Found, markets: tuple[Market, ...]) -> Table:
    """Aggregate against local trust where both were offered the same money, seed by seed."""
    return Table(
        "money-equal",
        "The same money offered under both trusts, differences seed by seed [95 %]",
        ("market", "offered", "aggregate, gain", "local, gain", "aggregate − local", "seeds"),
        [[market.name, *row] for market in markets for row in equal_money_rows(found, market)],
    )


def equal_money_rows(found: Found, market: Market) -> list[list[str]]:
    """Money, gain under aggregate and under local trust, their difference, and the seeds of both."""
    points = {trust: dict(curve_points(found, market, trust)) for trust in study.TRUSTS}
    rows = []
    for money in sorted({*market.money["aggregate"]} & {*market.money["local"]}):
        aggregate = points["aggregate"].get(money, {})
        local = points["local"].get(money, {})
        gains = {trust: _gains(runs) for trust, runs in (("aggregate", aggregate), ("local", local))}
        shared = gains["aggregate"].keys() & gains["local"].keys()
        difference = NOT_COMPUTED
        if shared:
            name = next(iter(aggregate.values()))["score_name"]
            difference = _with_interval({s: gains["aggregate"][s] - gains["local"][s] for s in shared}, name)
        rows.append([f"{money:g}", gain_text(aggregate), gain_text(local), difference, str(len(shared))])
    return rows


def worst_case_table(found: Found, markets: tuple[Market, ...]) -> Table:
    """The same releases under aggregate trust if sellers priced the ε that is left when all others collude."""
    rows = []
    points = [(market, *point) for market in markets for point in curve_points(found, market, "aggregate")]
    for market, money, runs in points:
        paid = np.mean([run["spent"] for run in runs.values()])
        worst = np.mean([run["spent_if_worst_case"] for run in runs.values()])
        rows.append(
            [
                market.name,
                f"{money:g}",
                f"{paid:,.1f}",
                f"{worst:,.1f}",
                f"{worst / paid:.1f}" if paid else "none paid",
                gain_text(runs),
            ]
        )
    if not rows:
        rows = [[NOT_COMPUTED] * 6]
    return Table(
        "money-worst-case",
        "Aggregate trust: money for the same releases if sellers price the worst case, that all others collude",
        (
            "market",
            "offered",
            "paid",
            "paid if sellers price the worst case",
            "ratio",
            "gain over own records [95 %]",
        ),
        rows,
    )


def _at_equal_epsilon(found: Found, market: Market, wallet: float) -> dict[str, dict[int, Result]]:
    """The runs of each of `baseline_configs`, of the seeds that all of them have that have any."""
    runs = {name: found.runs(config) for name, config in study.baseline_configs(market, wallet).items()}
    done = [set(one) for one in runs.values() if one]
    seeds = sorted(set.intersection(*done)) if done else []
    return {name: {seed: one[seed] for seed in seeds if seed in one} for name, one in runs.items()}


def equal_epsilon_gains(found: Found, market: Market, wallet: float) -> list[str]:
    """The gain with a central curator, with a secure sum, and with local noise."""
    return [gain_text(one) for one in _at_equal_epsilon(found, market, wallet).values()]


def baseline_table(found: Found) -> Table:
    """Central, distributed and local noise at one lifetime ε."""
    rows = []
    for market in (study.STRIKES, study.PUPILS, *study.FIRST_LOOKS, study.CIFAR):
        for wallet in study.WALLETS:
            shared = _at_equal_epsilon(found, market, wallet)
            before = next((one for one in shared.values() if one), {})
            gains = equal_epsilon_gains(found, market, wallet)
            rows.append([market.name, f"{wallet:g}", mean_text(before, "before"), *gains, str(len(before))])
    return Table(
        "money-baselines",
        "Gain over own records [95 %] at equal lifetime ε, everybody selling the same ε",
        ("market", "ε ≤", "own records", "central curator", "secure sum", "local noise", "seeds"),
        rows,
    )


def sceptic_table(found: Found) -> Table:
    """Own records by another library, and what is left of the gain over the best of all models."""
    market = study.STRIKES
    other = found.runs(market.pooled(), study.SCEPTIC)
    bought = {wallet: found.runs(market.capped(wallet)) for wallet in study.WALLETS}
    usual = next(iter(bought.values()))
    seeds = sorted(other.keys() & set.intersection(*[set(runs) for runs in bought.values()]))
    columns = ("free model", "AUC", *(f"gain over it, ε ≤ {wallet:g} [95 %]" for wallet in study.WALLETS), "seeds")

    def row(name: str, free: Mapping[int, float]) -> list[str]:
        gains = [
            _with_interval({seed: runs[seed]["score"] - free[seed] for seed in seeds}, "auc")
            for runs in bought.values()
        ]
        return [name, f"{100 * np.mean([free[seed] for seed in seeds]):.2f}", *gains, str(len(seeds))]

    if not seeds:
        rows = [[NOT_COMPUTED] * len(columns)]
    else:
        before = {seed: usual[seed]["before"] for seed in seeds}
        rows = [row("best of the study's four, picked on test records", before)]
        for name in other[seeds[0]]["auc"]:
            rows.append(row(f"scikit-learn: {name}", {seed: other[seed]["auc"][name] for seed in seeds}))
        best = {seed: max(before[seed], *other[seed]["auc"].values()) for seed in seeds}
        rows.append(row("best of all eight, picked on test records", best))
    return Table("money-sceptic", f"{market.name}: own records by another library", columns, rows)


def _with_copies(found: Found, market: Market) -> dict[int, float]:
    """seed → the better test accuracy of the models of own pictures and their copies."""
    runs = found.runs(study.copies_config(market), study.COPIES)
    return {seed: max(run["accuracy"].values()) for seed, run in runs.items()}


def _left(found: Found, market: Market, wallet: float) -> dict[int, float]:
    """seed → what was bought over the best of all free models, those of warped copies among them."""
    copied, bought = _with_copies(found, market), found.runs(market.capped(wallet))
    shared = copied.keys() & bought.keys()
    return {seed: bought[seed]["score"] - max(bought[seed]["before"], copied[seed]) for seed in sorted(shared)}


def left_text(found: Found, market: Market, wallet: float) -> str:
    """What of a gain is left over warped copies of the own pictures [95 %], paired by seed."""
    return _with_interval(_left(found, market, wallet), "accuracy")


def left_share(found: Found, market: Market, wallet: float) -> str:
    """The same as a share of the gain over the study's four models, over the same seeds."""
    left, gained = _left(found, market, wallet), _gains(found.runs(market.capped(wallet)))
    return share_text(left, gained) if left.keys() & gained.keys() else NOT_COMPUTED


def copies_table(found: Found) -> Table:
    """Own pictures with warped copies, and what is left of the gain over the best of all models."""
    rows = []
    for market in study.PICTURES:
        runs = found.runs(study.copies_config(market), study.COPIES)
        copied = _with_copies(found, market)
        for wallet in study.WALLETS:
            bought = found.runs(market.capped(wallet))
            seeds = sorted(copied.keys() & bought.keys())
            if not seeds:
                rows.append([market.name, f"{wallet:g}", *[NOT_COMPUTED] * 7, "0"])
                continue
            both = {seed: bought[seed] for seed in seeds}
            strengths = [runs[seed]["chosen"]["kernel ridge"]["warps"] for seed in seeds]
            rows.append(
                [
                    market.name,
                    f"{wallet:g}",
                    mean_text(both, "before"),
                    f"{100 * np.mean([copied[seed] for seed in seeds]):.2f}",
                    ", ".join(f"{one} {strengths.count(one)}" for one in _STRENGTHS if one in strengths),
                    mean_text(both, "score"),
                    gain_text(both),
                    left_text(found, market, wallet),
                    left_share(found, market, wallet),
                    str(len(seeds)),
                ]
            )
    copies = ", ".join(str(study.copies_config(market)["copies"]) for market in study.PICTURES)
    columns = (
        *("market", "ε ≤", "own records alone", "with copies", "warps chosen for the kernel, by seeds", "bought"),
        *("gain over own records alone [95 %]", "left over the best of all six [95 %]"),
        *("share of the gain that is left [95 %]", "seeds"),
    )
    return Table(
        "money-copies",
        f"Accuracy of the best of the study's four models, and of the better of two with warped copies ({copies} "
        "of a "
        "picture, market by market), each picked on test records",
        columns,
        rows,
    )


_STRENGTHS = ("none", "mild", "full")


def public_table(found: Found) -> Table:
    """MNIST by the size of the public set."""
    rows = []
    for size in study.PUBLIC_SIZES:
        runs = found.runs(study.public_config(size))
        rows.append(
            [
                f"{size:,}",
                mean_text(runs, "before"),
                _own_model(runs),
                mean_text(runs, "score"),
                gain_text(runs),
                str(len(runs)),
            ]
        )
    return Table(
        "money-public",
        "MNIST, Dir 0.1, lifetime ε ≤ 1, aggregate trust, by how many labelled records the buyer has",
        ("public records", "own records alone", "best model", "bought", "gain [95 %]", "seeds"),
        rows,
    )


def noise_table(found: Found) -> Table:
    """What equal noise costs under both trusts, by the number of clients."""
    rows = []
    for clients in study.CLIENTS:
        runs = found.runs(study.noise_config(clients), study.NOISE)
        if not runs:
            rows.append([f"{clients:,}", *[NOT_COMPUTED] * 6, "0"])
            continue

        def ratio(above: str, below: str, of: Mapping[int, Result] = runs) -> str:
            values = Measured.of(run[above] / run[below] for run in of.values())
            low, high = interval(values)
            return f"{values.mean:.1f} [{low:.1f}, {high:.1f}]"

        def price(name: str, of: Mapping[int, Result] = runs) -> str:
            return f"{np.mean([run[name] for run in of.values()]):.2f}"

        rows.append(
            [
                f"{clients:,}",
                ratio("local_ration", "local"),
                price("local_price"),
                ratio("local_ration", "aggregate_at_local_price"),
                ratio("local_ration", "aggregate"),
                price("aggregate_price"),
                f"{np.mean([root_honest(clients * run['local_price']) for run in runs.values()]):.1f}",
                str(len(runs)),
            ]
        )
    columns = (
        *("clients", "best ration over the rule for local noise, both local", "its price"),
        *("local over aggregate, the same price", "local over aggregate, each at its best price"),
        *(
            "best price under aggregate trust",
            "√(honest), if those who ask less than the first price sell",
            "seeds",
        ),
    )
    caption = (
        "Ratios of money for equal noise of one round, Uniform valuations, 0.3 per client under local trust by the "
        "rule for local noise; means [95 %]"
    )
    return Table("money-noise", caption, columns, rows)


def root_honest(sellers: float) -> float:
    """√h of a round's sellers, h being the honest ones of one secure sum; above 400 sellers there are several."""
    return float(honest_per_cohort(round(sellers), HONEST_SHARE) ** 0.5)


def person_text(found: Found) -> Block:
    """What the task is, and what protecting a person costs."""
    market = study.WAGES
    held = {unit: _units(found, unit) for unit in study.UNITS}
    years = pairs = NOT_COMPUTED
    if all(held.values()):
        years = f"{held['record'] / held['person']:.1f}"
        pairs = f"{_YEARS * held['person'] / held['record']:.1f}"
    pooled = found.runs(market.pooled(), POOLED)
    return prose(
        "money-person",
        public=market.where["public"],
        men=market.where["public"] // _YEARS,
        records=f"{held['record']:,.0f}" if held["record"] else NOT_COMPUTED,
        persons=f"{held['person']:,.0f}" if held["person"] else NOT_COMPUTED,
        years=years,
        pairs=pairs,
        pooled=mean_text(pooled, "score"),
        own=mean_text(pooled, "before"),
        differences=" and ".join(person_difference(found, wallet) for wallet in study.WALLETS),
    )


# Each man of the task was asked so often.
_YEARS = 8


def _units(found: Found, unit: str) -> float:
    """How many records, or persons at a client, all clients hold together, over seeds; 0 without runs."""
    runs = [found.runs(study.person_configs(study.WAGES, wallet)[unit]) for wallet in study.WALLETS]
    counts = [run["units"] for one in runs for run in one.values()]
    return float(np.mean(counts)) if counts else 0.0


def person_difference(found: Found, wallet: float) -> str:
    """The gain where a person is protected less that where a record is, over seeds of both [95 %]."""
    gains = [_gains(found.runs(config)) for config in study.person_configs(study.WAGES, wallet).values()]
    record, person = gains
    return _with_interval({seed: person[seed] - record[seed] for seed in record.keys() & person.keys()}, "r2")


def _largest_epsilon(runs: Mapping[int, Result]) -> str:
    """The largest lifetime ε of a client, with two thirds of the sellers honest and with all others colluding."""
    if not runs:
        return NOT_COMPUTED
    honest, collude = (max(run["epsilon"][share] for run in runs.values()) for share in ("0.667", "collude"))
    return f"{honest:.2f} ({collude:.2f})"


def person_table(found: Found) -> Table:
    """A lifetime ε for a record and for a person, of the same buyer on the same test records."""
    rows = []
    distance = found.distance(study.WAGES)
    for wallet in study.WALLETS:
        for unit, config in study.person_configs(study.WAGES, wallet).items():
            runs = found.runs(config)
            gained = _gains(runs)
            rows.append(
                [
                    f"{wallet:g}",
                    unit,
                    mean_text(runs, "before"),
                    mean_text(runs, "score"),
                    gain_text(runs),
                    share_text(gained, distance) if gained.keys() & distance.keys() else NOT_COMPUTED,
                    "the reference" if unit == "record" else person_difference(found, wallet),
                    _largest_epsilon(runs),
                    str(len(runs)),
                ]
            )
    columns = (
        *("ε ≤", "unit", "own records alone", "bought", "gain [95 %]"),
        *("share of the distance to all records without privacy [95 %]", "person less record [95 %]"),
        *("lifetime ε of who sold most (all others collude)", "seeds"),
    )
    return Table("money-person", f"{study.WAGES.name}: what a lifetime ε protects (R²)", columns, rows)


def others_table(found: Found) -> Table:
    """A market with other clients at one sum of money."""
    configs = study.other_configs(study.CURVE)
    usual = _gains(found.runs(configs["as usual"]))
    rows = []
    for name, config in configs.items():
        runs = found.runs(config)
        pair = compare(_gains(runs), usual) if name != "as usual" else None
        difference = "the reference" if name == "as usual" else NOT_COMPUTED
        if pair is not None:
            shared = _gains(runs).keys() & usual.keys()
            score = next(iter(runs.values()))["score_name"]
            difference = _with_interval({seed: runs[seed]["gain"] - usual[seed] for seed in shared}, score)
        paid = f"{np.mean([run['spent'] for run in runs.values()]):,.1f}" if runs else NOT_COMPUTED
        rows.append([name, paid, gain_text(runs), difference, str(len(runs))])
    return Table(
        "money-others",
        f"{study.CURVE.name}, aggregate trust, money 30: other clients",
        ("clients", "paid", "gain over own records [95 %]", "against clients as usual [95 %]", "seeds"),
        rows,
    )


def chosen_table(found: Found, markets: tuple[Market, ...], curves: tuple[Market, ...]) -> Table:
    """The settings of the runs, which rehearsals on public records chose."""
    listed = [
        (f"{market.name}, ε ≤ {wallet:g}", market.capped(wallet)) for market in markets for wallet in study.WALLETS
    ]
    for market in curves:
        for trust in study.TRUSTS:
            for config in study.curve_configs(market, trust):
                listed.append((f"{market.name}, {trust}, money {config['money']:g}", config))
    rows = []
    for name, config in listed:
        runs = found.runs(config)
        if not runs:
            continue
        chosen = runs[min(runs)]["chosen"]
        training = chosen["training"]
        inputs = "whitened by public records" if chosen["statistics"] == "free" else "as they are"
        if chosen.get("aggregation") == "precision":
            inputs += "; weights by size and noise"
        settings = ", ".join(f"{key} {value}" for key, value in chosen["settings"].items())
        tried = chosen["tried"]
        rows.append(
            [
                name,
                f"{chosen['rule']} ({settings})" if settings else chosen["rule"],
                str(chosen["rounds"]),
                f"{training['server_rate']:.3g}",
                f"{training['clip_norm']:.3g}",
                f"{training['averaging']:g}",
                inputs,
                str(max(0, len(tried) - 1)),
            ]
        )
    if not rows:
        rows = [[NOT_COMPUTED] * 8]
    return Table(
        "money-chosen",
        "Chosen by rehearsals: of pictures on those of seed 0; of tables the first seed's choice",
        ("run", "rule", "rounds", "server rate", "clip norm", "averaging", "inputs", "rules and rounds rehearsed"),
        rows,
    )


def missing_text(found: Found) -> list[Text]:
    """What is listed and was not computed, by task; nothing where all is."""
    listed = study.cells(Scale(quick=found.quick))
    once = {cell.slot: cell for cell in listed}
    missing = [cell for cell in once.values() if found.results.get(cell) is None]
    if not missing:
        return []
    counts: dict[str, int] = {}
    for cell in missing:
        config = cell.config
        if cell.kind == study.NOISE:
            name = f"money for equal noise, {config['clients']:,} clients"
            counts[name] = counts.get(name, 0) + 1
            continue
        if cell.kind == study.SCEPTIC:
            name = f"{config['task']}, own records by another library"
            counts[name] = counts.get(name, 0) + 1
            continue
        name = str(config["task"])
        if cell.kind == study.COPIES:
            name += f", {config['public']:,} public, own pictures with warped copies"
        elif cell.kind == POOLED:
            name += ", reference without privacy"
        elif config["wallet"] is not None:
            name += f", {config['public']:,} public, ε ≤ {config['wallet']:g}, {config['trust']} trust"
            if "unit" in config:
                name += f", for a {config['unit']}"
        else:
            name += f", {config['trust']} trust, money {config['money']:g}"
            if "clients" in config and config["clients"] != 100:
                name += f", {config['clients']:,} clients"
            if "market" in config:
                name += f", {', '.join(str(value) for value in config['market'].values())}"
        counts[name] = counts.get(name, 0) + 1
    lines = [f"- {name}: {count} not computed" for name, count in counts.items()]
    counted = f"Of {len(once):,} runs {len(missing):,} are not computed:"
    return [Text("## What is not computed"), Text(counted + "\n\n" + "\n".join(lines))]


def caption(found: Found, market: Market) -> str:
    """What the figure of gain against money shows, with its ε and its assumption."""
    runs = [runs for trust in study.TRUSTS for _, runs in curve_points(found, market, trust)]
    if not runs:
        return f"{market.name}: gain against money; {NOT_COMPUTED}."
    seeds = sorted({len(one) for one in runs})
    over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    parts: list[str] = []
    for trust in study.TRUSTS:
        points = curve_points(found, market, trust)
        if not points:
            continue
        largest = [max(run["epsilon"]["0.667"] for run in runs.values()) for _, runs in points]
        said = trust if parts else trust.capitalize()
        text = f"{said} trust: lifetime ε of who sold most {min(largest):.2g} to {max(largest):.2g}, by the point"
        if trust == "aggregate":
            worst = [max(run["epsilon"]["collude"] for run in runs.values()) for _, runs in points]
            text += ", if two thirds of a round's sellers are honest"
            text += f" ({min(worst):.2g} to {max(worst):.3g} if all others collude)"
        parts.append(text)
    return (
        f"{market.name[0].upper()}{market.name[1:]}: gain in score over the buyer's own records, against all the "
        f"money paid; money is the only limit, no wallet refuses. {'; '.join(parts)} "
        f"(δ = 1e-5). Mean and 95 % interval over {over} seeds. "
        "Dotted: the same releases if sellers charged for the ε that is left when all others collude."
    )


def draw_curve(found: Found, market: Market) -> Drawing:
    """Gain against money under two trusts."""
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    name = "score"
    for trust in study.TRUSTS:
        points = curve_points(found, market, trust)
        if not points:
            continue
        name = next(iter(points[0][1].values()))["score_name"]
        _line(axes, points, trust, "spent", name)
        if trust == "aggregate":
            _line(axes, points, trust, "spent_if_worst_case", name)
    drawn = {seed for trust in study.TRUSTS for _, runs in curve_points(found, market, trust) for seed in runs}
    distance = {seed: value for seed, value in found.distance(market).items() if seed in drawn}
    if distance:
        level = _scale(name) * float(np.mean(list(distance.values())))
        axes.axhline(level, color="#555555", lw=1.0, ls="--")
        axes.annotate(
            "all records, without privacy",
            (0.01, level),
            xycoords=("axes fraction", "data"),
            va="bottom",
            fontsize=9,
            color="#555555",
        )
    axes.axhline(0.0, color="#555555", lw=1.0)
    axes.annotate(
        "the buyer's own records, for nothing",
        (0.99, 0.0),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=9,
        color="#555555",
    )
    unit = f"{name} (points of 100)" if name in _OF_HUNDRED else name
    axes.set(xscale="log", xlabel="money paid to all clients together", ylabel=f"gain in {unit}")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    return figure


def _line(axes: Axes, points: list[tuple[float, dict[int, Result]]], trust: str, field: str, name: str) -> None:
    paid = [float(np.mean([run[field] for run in runs.values()])) for _, runs in points]
    scale = _scale(name)
    measured = [Measured.of(scale * value for value in _gains(runs).values()) for _, runs in points]
    mean = [one.mean for one in measured]
    if field == "spent_if_worst_case":
        axes.plot(
            paid, mean, color=_COLOURS[trust], lw=1.2, ls=":", label="the same, if sellers price the worst case"
        )
        return
    half: list[float] = []
    for one in measured:
        low, high = interval(one)
        half.append((high - low) / 2 if np.isfinite(high) else 0.0)
    axes.errorbar(
        paid,
        mean,
        half,
        color=_COLOURS[trust],
        lw=2.2,
        marker="o",
        ms=5,
        capsize=3,
        elinewidth=1.1,
        label=_SEES[trust],
    )
