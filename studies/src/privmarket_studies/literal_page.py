"""The page of the paper's letter: docs/results/literal/README.md and its figures, from the files beside it.

    python -m privmarket_studies.literal_page

Everything is read from `runs/*.json`, `baseline.json`, `valuations.json` and `inversion.json`; a run that is not
finished counts with the rounds that it has, and the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from privmarket._figures import new_figure
from privmarket._files import write_atomically
from privmarket_studies.gradient_inversion import SETTINGS
from privmarket_studies.literal_baseline import CRITICS
from privmarket_studies.literal_runs import EPSILON_MIN, FOLDER, LAST_ROUNDS, READINGS, all_runs
from privmarket_studies.literal_valuations import LITTLE, PAST_SEEDS, RULES, RUN_ROUNDS
from privmarket_studies.page_text import table_row
from privmarket_studies.reproduce.paper import printed
from privmarket_studies.reproduce.report import drawn
from privmarket_studies.reproduce.statistics import Measured, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The row of Table V that a reading is to be compared with.
ROWS = {"printed": "mfg-regretnet", "sold-out": "mfg-pricing"}
DATASETS = {"mnist": "MNIST, MLP", "cifar10": "CIFAR-10, CNN"}
_COLOURS = {"printed": "#D55E00", "clipped": "#0072B2", "sold-out": "#CC79A7", "noise-free": "#009E73"}


def table_v(row: str, dataset: str, alpha: float) -> tuple[float, float]:
    """Mean and standard deviation of the final accuracy, per cent, in Table V of [Sun2026]."""
    found = printed("accuracy").rows[row]
    return found[f"{dataset}/{alpha}"], found[f"{dataset}/{alpha} std"]


class Findings:
    """What is kept in a folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def _read(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        """Of the page's runs those that have begun, in their order."""
        kept = [self._read(f"runs/{run.name}.json") for run in all_runs()]
        return [one for one in kept if one is not None]

    def of(self, dataset: str, alpha: float, reading: str) -> list[dict[str, Any]]:
        """The runs of one line of the table."""
        wanted = {"dataset": dataset, "alpha": alpha, "reading": reading}
        return [one for one in self.runs if wanted.items() <= one["run"].items()]

    @cached_property
    def baseline(self) -> Any:
        """Proposition 1."""
        return self._read("baseline.json")

    @cached_property
    def valuations(self) -> Any:
        """Markets and runs with v = u/ε."""
        return self._read("valuations.json")

    @cached_property
    def inversion(self) -> Any:
        """Reconstructions against ε."""
        return self._read("inversion.json")


def final_accuracy(run: dict[str, Any]) -> float:
    """Per cent: the mean over the last rounds, Eq. (A-final) of [Sun2026]."""
    return 100.0 * float(np.mean(run["accuracy"][-LAST_ROUNDS:]))


def with_interval(values: Sequence[float], digits: int = 1) -> str:
    """A mean with its 95 % interval by Student's t over seeds or pictures; one value alone."""
    found = Measured.of(values)
    if found.seeds < 2:
        return f"{found.mean:.{digits}f}"
    low, high = interval(found)
    return f"{found.mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _range(values: Sequence[float], spec: str = "") -> str:
    low, high = (f"{one:{spec}}" for one in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def _accuracy_table(found: Findings) -> str:
    text = table_row(
        (
            "",
            "α",
            "what is run",
            "seeds",
            "rounds",
            "final accuracy, %",
            "the paper's Table V",
            "clients left out in round 1, 2, 3, last",
        )
    )
    text += table_row(["---"] * 8)
    for dataset, label in DATASETS.items():
        for alpha in (0.5, 0.1):
            for reading in READINGS.values():
                runs = found.of(dataset, alpha, reading.name)
                if not runs:
                    continue
                paper = ""
                if reading.name in ROWS:
                    mean, deviation = table_v(ROWS[reading.name], dataset, alpha)
                    paper = f"{mean} ± {deviation} (`{ROWS[reading.name]}`)"
                left_out = [
                    _range([run["left_out"][min(at, len(run["left_out"]) - 1)] for run in runs])
                    for at in (0, 1, 2, 10**6)
                ]
                rounds = _range([len(run["accuracy"]) for run in runs])
                text += table_row(
                    (
                        label,
                        str(alpha),
                        reading.says,
                        str(len(runs)),
                        f"{rounds} of {runs[0]['run']['rounds']}",
                        with_interval([final_accuracy(run) for run in runs]),
                        paper,
                        ", ".join(left_out),
                    )
                )
    return text


def _missing(found: Findings) -> str:
    """What was to be run and is not there yet."""
    have = {json.dumps(run["run"], sort_keys=True): len(run["accuracy"]) for run in found.runs}
    lines = []
    for run in all_runs():
        key = json.dumps(run.__dict__, sort_keys=True)
        done = have.get(key, 0)
        if done < run.rounds:
            lines.append(f"`{run.name}` ({done} of {run.rounds} rounds)")
    if not lines:
        return "Nothing that was planned is missing: every run has all its rounds."
    return f"Missing so far: {', '.join(lines)}. The command above goes on where they stopped."


def _computed_again(found: Findings) -> str:
    """How many rounds came out the same when they were computed once more; empty if none was."""
    twice = [run["again"] for run in found.runs if "again" in run]
    rounds, equal = (sum(one[key] for one in twice) for key in ("rounds", "equal"))
    if rounds == 0:
        return ""
    return f" {rounds:,} rounds were computed a second time from nothing: {equal:,} of them came out the same."


def _runs_text(found: Findings) -> str:
    as_printed = [run for run in found.runs if run["run"]["reading"] == "printed"]
    mnist = [run for run in as_printed if run["run"]["dataset"] == "mnist"]
    markets = [run["market"] for run in as_printed]
    plain = found.of("mnist", 0.5, "noise-free")
    return _filled(
        "runs",
        table=_accuracy_table(found),
        last_rounds=LAST_ROUNDS,
        best=f"{max(final_accuracy(run) for run in as_printed):.1f}",
        sold=with_interval([one["epsilon_sold"] for one in markets], 2),
        offered=with_interval([one["epsilon_offered"] for one in markets], 0),
        below=_range([one["below_floor"] for one in markets]),
        smallest=f"{min(one['sigma_smallest'] for one in markets):.1f}",
        sigma=with_interval([one["sigma_of_average"] for one in markets], 2),
        plain_norm=f" of norm {plain[0]['norm'][0]:.1f}" if plain else "",
        first_norm=with_interval([run["norm"][0] for run in mnist], 0),
        clipped=_clipped_sentence(found),
        without=_noise_free_sentence(found),
        sold_out=_sold_out(found),
        printed_mild=table_v("mfg-regretnet", "mnist", 0.5)[0],
        printed_severe=table_v("mfg-regretnet", "mnist", 0.1)[0],
        no_dp_mild=table_v("no-dp", "mnist", 0.5)[0],
        no_dp_severe=table_v("no-dp", "mnist", 0.1)[0],
        epsilon_min=EPSILON_MIN,
        records=_range([size for run in mnist for size in run["records_per_client"]]),
        hours=f"{sum(run['processor_seconds'] for run in found.runs) / 3600:.1f}",
        again=_computed_again(found),
        missing=_missing(found),
    )


def _reached(found: Findings, reading: str) -> str:
    """What the runs of a reading on MNIST reach, by α; empty where there are none."""
    parts = []
    for alpha in (0.5, 0.1):
        runs = found.of("mnist", alpha, reading)
        if runs:
            rounds = _range([len(run["accuracy"]) for run in runs])
            accuracy = with_interval([final_accuracy(run) for run in runs])
            parts.append(f"{accuracy} % after {rounds} rounds at α = {alpha}")
    return " and ".join(parts)


def _sold_out(found: Findings) -> dict[str, object] | None:
    """The figures of the reading in which everybody sells everything; None if it has not begun on MNIST."""
    runs = [run for alpha in (0.5, 0.1) for run in found.of("mnist", alpha, "sold-out")]
    if not runs:
        return None
    short = [
        table_v("mfg-pricing", "mnist", run["run"]["alpha"])[0] - final_accuracy(run)
        for run in runs
        if len(run["accuracy"]) == run["run"]["rounds"]
    ]
    markets = [run["market"] for run in runs]
    return {
        "sold": _range([one["epsilon_sold"] for one in markets], ".0f"),
        "underpaid": _range([one["underpaid"] for one in markets]),
        "sigma": _range([one["sigma_of_average"] for one in markets], ".2f"),
        # Weights of the first layer start uniform between ±1/√784.
        "fresh": f"{(3 * 784) ** -0.5:.2f}",
        "reached": _reached(found, "sold-out"),
        "seeds": len({run["run"]["seed"] for run in runs}),
        "best": f"{100 * max(max(run['accuracy']) for run in runs):.1f}",
        "short": _range(short, ".0f") if len(short) == len(runs) and min(short) > 0 else "",
    }


def _clipped_sentence(found: Findings) -> str:
    reached = _reached(found, "clipped")
    if not reached:
        return "would keep numbers finite and leave the noise as it is; these runs are not there yet."
    runs = [run for run in found.runs if run["run"]["reading"] == "clipped"]
    most = max(max(run["left_out"]) for run in runs)
    kept = "keeps every client finite" if most == 0 else f"leaves out at most {most} clients of a round"
    return f"{kept}, and leaves the noise as it is: {reached}."


def _noise_free_sentence(found: Findings) -> str:
    return f"{_reached(found, 'noise-free') or 'these runs are not there yet'}."


def _interval_text(one: dict[str, float], digits: int = 2) -> str:
    return f"{one['value']:.{digits}f} [{one['low']:.{digits}f}, {one['high']:.{digits}f}]"


def _baseline_text(found: Findings) -> str:
    kept = found.baseline
    columns = (
        "network",
        "critic Φ",
        "variance of the gradient, with over without",
        "cosine of the mean gradients",
        "Var X̂ / Var X",
        "claimed: 1 − Var Φ / Var X",
        "E X",
        "E X̂",
        "hinges open, without → with",
    )
    text = table_row(columns) + table_row(["---"] * len(columns))
    for stage, by_critic in kept["stages"].items():
        for critic, one in by_critic.items():
            hinges = (100 * one["open_raw"]["value"], 100 * one["open_baselined"]["value"])
            text += table_row(
                (
                    stage,
                    CRITICS[critic],
                    f"**{_interval_text(one['variance_ratio'])}**",
                    _interval_text(one["cosine"]),
                    _interval_text(one["scalar_variance_ratio"]),
                    _interval_text(one["claimed_ratio"]),
                    _interval_text(one["gain_raw"]),
                    _interval_text(one["gain_baselined"]),
                    f"{hinges[0]:.0f} % → {hinges[1]:.0f} %",
                )
            )
    cases = [one for stage in kept["stages"].values() for one in stage.values()]
    opposed = sum(one["cosine"]["high"] < 0 for one in cases)
    apart = [
        one["gain_baselined"]["low"] > one["gain_raw"]["high"]
        or one["gain_baselined"]["high"] < one["gain_raw"]["low"]
        for one in cases
    ]
    turned = f" In {opposed} cases the two mean gradients even point in opposite directions." if opposed else ""
    return _filled(
        "baseline",
        facts=kept["facts"],
        table=text,
        cases=len(cases),
        above=sum(one["variance_ratio"]["low"] > 1 for one in cases),
        below=sum(one["variance_ratio"]["high"] < 1 for one in cases),
        smaller=sum(one["scalar_variance_ratio"]["high"] < 1 for one in cases),
        impossible=sum(one["claimed_ratio"]["high"] < 0 for one in cases),
        biased=sum(apart),
        turned=turned,
    )


def _valuations_text(found: Findings) -> str:
    kept = found.valuations
    rules = kept["markets"]["rules"]
    kinds = list(rules)
    columns = [
        "rule",
        *[f"ε bought, {kind}" for kind in kinds],
        *[f"from offers below {LITTLE}, {kind}" for kind in kinds],
    ]
    text = table_row(columns) + table_row(["---"] * len(columns))
    for rule in RULES:
        bought = [with_interval([one["epsilon"] for one in rules[kind][rule]]) for kind in kinds]
        little = [f"{100 * np.mean([one['little_share'] for one in rules[kind][rule]]):.1f} %" for kind in kinds]
        text += table_row((f"`{rule}`", *bought, *little))
    menu = {kind: Measured.of(one["epsilon"] for one in rules[kind]["mean-field-menu"]).mean for kind in kinds}
    accuracy = kept["markets"]["accuracy"]
    return _filled(
        "valuations",
        spread=" and ".join(
            f"u from {q[1]:.2f} to {q[3]:.2f} (median {q[2]:.2f}) at α = {a}" for a, q in accuracy.items()
        ),
        seeds=len(rules[kinds[0]][RULES[0]]),
        table=text,
        more=" and ".join(f"{menu[kind] / menu[kinds[0]]:.2f}" for kind in kinds[1:]) + " times",
        past=len(PAST_SEEDS),
        rounds=RUN_ROUNDS,
        lines=_federated_table(kept.get("federated") or []),
    )


def _federated_table(runs: list[dict[str, Any]]) -> str:
    columns = ("α", "bids", "seeds", "accuracy, %", "ε bought a round", "sellers a round", "spent in all")
    text = table_row(columns) + table_row(["---"] * len(columns))
    for alpha in (0.5, 0.1):
        for kind in ("Table II", "v = u/ε"):
            some = [one for one in runs if one["alpha"] == alpha and one["bids"] == kind]
            if some:
                text += table_row(
                    (
                        str(alpha),
                        kind,
                        str(len(some)),
                        with_interval([100 * one["score"] for one in some]),
                        with_interval([one["epsilon"] for one in some]),
                        with_interval([one["sellers"] for one in some]),
                        with_interval([one["spent"] for one in some], 0),
                    )
                )
    return text if runs else ""


def _noise_label(label: str) -> str:
    return "no noise" if label == "none" else f"ε = {float(label):,g}"


def _inversion_text(found: Findings) -> str:
    kept = found.inversion
    labels = list(next(iter(kept.values()))["epsilon"])
    columns = ("client", "pictures", "mean picture, no release", *[_noise_label(label) for label in labels])
    text = table_row(columns) + table_row(["---"] * len(columns))
    sold, quiet, alike, better = [], [], [], set(labels)
    for one in kept.values():
        setting = one["setting"]
        many = f"{setting['batch']} record{'s' if setting['batch'] > 1 else ''} a release"
        cells = [with_interval(one["epsilon"][label]["error"], 3) for label in labels]
        blind = np.array(one["blind"]["error"])
        text += table_row(
            (f"{DATASETS[setting['dataset']]}, {many}", str(len(blind)), with_interval(blind.tolist(), 3), *cells)
        )
        for label in labels:
            ratio = float(np.mean(one["epsilon"][label]["error"]) / blind.mean())
            if label == "none":
                quiet.append(ratio)
                alike.append(float(np.mean(one["epsilon"][label]["likeness"])))
            elif float(label) <= 10:
                sold.append(ratio)
            gain = interval(Measured.of((np.array(one["epsilon"][label]["error"]) - blind).tolist()))
            if gain[1] >= 0:
                better.discard(label)
    known = sorted(float(label) for label in better if label != "none")
    first = f" It is better than a guess for every kind of client from ε = {known[0]:,g} on." if known else ""
    return _filled(
        "inversion",
        table=text,
        missing="".join(f" (not attacked yet: {one.name})" for one in SETTINGS if one.name not in kept),
        quiet=_spread(quiet),
        alike=_spread(alike),
        sold=_spread(sold),
        first=first,
        columns=", ".join(_noise_label(label) for label in labels),
        shown="\n".join(
            f"![{DATASETS[one['setting']['dataset']]}, batch of {one['setting']['batch']}](inversion-{name}.png)"
            for name, one in kept.items()
        ),
    )


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _filled(name: str, **values: object) -> str:
    """The template `templates/literal/<name>.md` with its values; every figure of the page comes from the files."""
    text = (files("privmarket_studies") / "templates" / "literal" / f"{name}.md").read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True)
    stripped = {key: one.strip() if isinstance(one, str) and "\n" in one else one for key, one in values.items()}
    return str(template.render(**stripped))


def render(folder: Path = FOLDER) -> str:
    """The page; a part whose file is not there is left out."""
    found = Findings(folder)
    parts = [_runs_text(found)]
    if found.baseline is not None:
        parts.append(_baseline_text(found))
    if found.valuations is not None:
        parts.append(_valuations_text(found))
    if found.inversion:
        parts.append(_inversion_text(found))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def draw(folder: Path = FOLDER) -> None:
    """Both figures."""
    found = Findings(folder)
    figure = new_figure(9.0, 3.2)
    panels = [("mnist", 0.5), ("mnist", 0.1), ("cifar10", 0.5)]
    for at, (dataset, alpha) in enumerate(panels):
        axes = figure.add_subplot(1, 3, at + 1)
        for reading in READINGS.values():
            for number, run in enumerate(found.of(dataset, alpha, reading.name)):
                rounds = np.arange(1, len(run["accuracy"]) + 1)
                axes.plot(
                    rounds,
                    100 * np.array(run["accuracy"]),
                    color=_COLOURS[reading.name],
                    lw=1.0,
                    label=reading.name.replace("-", " ") if number == 0 else None,
                )
        mean, deviation = table_v("mfg-regretnet", dataset, alpha)
        axes.axhspan(mean - deviation, mean + deviation, color="#999999", alpha=0.4, label="the paper's Table V")
        axes.axhline(10.0, color="black", lw=0.6, ls=":", label="guessing")
        axes.set(xscale="log", xlim=(0.9, 220), ylim=(0, 100), xlabel="round")
        axes.set_xticks([1, 10, 50, 200], ["1", "10", "50", "200"])
        axes.set_title(f"{DATASETS[dataset]}, α = {alpha}")
        if at == 0:
            axes.set_ylabel("test accuracy, %")
            axes.legend(fontsize=7, loc="center right")
    _write(figure, folder / "accuracy")
    if not found.inversion:
        return
    figure = new_figure(6.5, 3.8)
    axes = figure.add_subplot()
    colours = ("#D55E00", "#E69F00", "#0072B2", "#56B4E9")
    for one, colour in zip(found.inversion.values(), colours, strict=False):
        labels = [x for x in one["epsilon"] if x != "none"]
        places = [float(x) for x in labels]
        blind = np.array(one["blind"]["error"])  # of the same pictures, in the same order
        many = [Measured.of(np.array(one["epsilon"][x]["error"]) / blind) for x in labels]
        limits = np.array([interval(x) for x in many])
        means = np.array([x.mean for x in many])
        title = f"{DATASETS[one['setting']['dataset']]}, batch of {one['setting']['batch']}"
        axes.errorbar(
            places,
            means,
            yerr=np.abs(limits.T - means),
            color=colour,
            marker="o",
            ms=4,
            lw=1.2,
            capsize=2,
            label=title,
        )
        quiet = Measured.of(np.array(one["epsilon"]["none"]["error"]) / blind)
        low, high = interval(quiet)
        axes.errorbar(
            [3e6],
            [quiet.mean],
            yerr=[[quiet.mean - low], [high - quiet.mean]],
            color=colour,
            marker="s",
            ms=4,
            capsize=2,
        )
    axes.axhline(1.0, color="black", lw=0.8, ls=":")
    axes.annotate(
        "blind guess: the mean of public pictures",
        (5e3, 1.0),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=7,
    )
    axes.set(
        xscale="log",
        xlabel="ε of the release (rightmost: no noise)",
        ylabel="error over that of a blind guess, by picture",
        ylim=(0, None),
    )
    axes.legend(fontsize=7)
    _write(figure, folder / "inversion")


def _write(figure: Figure, stem: Path) -> None:
    for kind in ("png", "svg"):
        write_atomically(stem.with_suffix(f".{kind}"), drawn(figure, kind))


def main() -> None:
    """Writes the page and its figures."""
    draw()
    write_atomically(FOLDER / "README.md", render())


if __name__ == "__main__":
    main()
