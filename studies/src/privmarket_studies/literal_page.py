"""The page of the paper's letter: docs/results/literal/README.md and its figures, from the files beside it.

    python -m privmarket_studies.literal_page

Everything is read from `runs/*.json`, `baseline.json`, `valuations.json` and `inversion.json`; a run that is not finished
counts with the rounds that it has, and the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from privmarket._files import write_atomically
from privmarket.reports._palette import new_figure, save
from privmarket_studies.literal_baseline import CRITICS
from privmarket_studies.literal_runs import EPSILON_MIN, FOLDER, LAST_ROUNDS, READINGS, all_runs
from privmarket_studies.literal_valuations import LITTLE, RULES, RUN_ROUNDS
from privmarket_studies.page_text import table_row
from privmarket_studies.reproduce.statistics import Measured, interval

# Table V of [Sun2026]: mean and standard deviation of the final accuracy, per cent.
NO_DP = {0.5: 92.6, 0.1: 85.7}
PRINTED = {("mnist", 0.5): (92.4, 1.1), ("mnist", 0.1): (84.8, 1.0), ("cifar10", 0.5): (36.0, 2.7)}
DATASETS = {"mnist": "MNIST, MLP", "cifar10": "CIFAR-10, CNN"}
_COLOURS = {"printed": "#D55E00", "clipped": "#0072B2", "noise-free": "#009E73"}


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


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


def _accuracy_table(found: Findings) -> str:
    text = table_row(
        ("", "α", "what is run", "seeds", "rounds", "final accuracy, %", "the paper's Table V", "left out in round 1, 2, 3, last")
    )
    text += table_row(["---"] * 8)
    for dataset, label in DATASETS.items():
        for alpha in (0.5, 0.1):
            for reading in READINGS.values():
                runs = found.of(dataset, alpha, reading.name)
                if not runs:
                    continue
                printed = PRINTED.get((dataset, alpha))
                left_out = [
                    _range([run["left_out"][min(at, len(run["left_out"]) - 1)] for run in runs]) for at in (0, 1, 2, 10**6)
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
                        f"{printed[0]} ± {printed[1]}" if printed and reading.name == "printed" else "",
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


def _runs_text(found: Findings) -> str:
    printed = [run for run in found.runs if run["run"]["reading"] == "printed"]
    mnist = [run for run in printed if run["run"]["dataset"] == "mnist"]
    markets = [run["market"] for run in printed]
    sold = with_interval([one["epsilon_sold"] for one in markets], 2)
    offered = with_interval([one["epsilon_offered"] for one in markets], 0)
    below = _range([one["below_floor"] for one in markets])
    sigma = with_interval([one["sigma_of_average"] for one in markets], 2)
    smallest = min(one["sigma_smallest"] for one in markets)
    plain = [run["norm"][0] for run in found.runs if run["run"]["reading"] == "noise-free" and run["run"]["dataset"] == "mnist"]
    plain_norm = f" of norm {plain[0]:.1f}" if plain else ""
    first_norm = with_interval([run["norm"][0] for run in mnist], 0)
    best = max(final_accuracy(run) for run in printed)
    records = _range([size for run in mnist for size in run["records_per_client"]])
    hours = sum(run["processor_seconds"] for run in found.runs) / 3600
    quiet = {
        alpha: [final_accuracy(run) for run in found.of("mnist", alpha, "noise-free")] for alpha in (0.5, 0.1)
    }
    without = " and ".join(
        f"{with_interval(values)} % (α = {alpha}, {_range([len(r['accuracy']) for r in found.of('mnist', alpha, 'noise-free')])} rounds)"
        for alpha, values in quiet.items()
        if values
    )
    return f"""## Algorithm 2 as printed

`mfg-regretnet:literal` clears every round among 100 clients with a budget of 50; every client whose column of the
softmax is above 0, and that is every client, trains the global model for E = 5 epochs in batches of 32 with a step of
0.01, adds Gaussian noise of √(2 ln(1.25/δ))·Δf/max(ε, ε_min) with δ = 1/N and Δf = 1 to its *weights*, and the server
takes the average by α ∝ ε.

    python -m privmarket_studies.literal_runs train CACHE

{_accuracy_table(found)}
![Test accuracy by round, with what the paper prints](accuracy.png)

Final accuracy is the paper's: the mean over the last {LAST_ROUNDS} rounds; [95 % interval over seeds]. Accuracy on test
records was looked at after every round for this figure, and nothing was chosen by it.

- **No printed run is above {best:.1f} %, and guessing gives 10 %.** The rule sells ε = {sold} in all out of {offered} offered;
  {below} of 100 clients sell less than the floor. So the noise on a weight is at least {smallest:.1f} for every client,
  {sigma} after averaging, and one round of noise turns an MLP{plain_norm} into one of norm {first_norm}.
- **Training then leaves the numbers that float32 has.** A step of 0.01 from weights of that size overflows; the last column
  counts the clients whose weights are no longer finite. As printed, one of them makes the average not a number. Here they
  are left out, as the product does, which is kinder to the paper; where all are left out, the model stays as it is.
- **Clipping each batch's gradient to Table III's Δf = 1** keeps numbers finite. The noise is the same.
- **Without noise the same training works**: {without or "not run yet"}. The paper prints {PRINTED["mnist", 0.5][0]} and
  {PRINTED["mnist", 0.1][0]} for training *with* noise, and {NO_DP[0.5]} and {NO_DP[0.1]} for No-DP training.

So the accuracies of Table V cannot come from Algorithm 2 with Table III's numbers. A reading of either that reaches them
with this noise on weights would overturn this.

What the letter leaves open, and what was taken: ε_min = {EPSILON_MIN}, the least ε of the Uniform scenario (without a floor
the noise is larger); types (v, ε) are drawn once per seed; {records} records per client, as the product keeps 5,000 back; pixels
scaled to mean 0 and deviation 1; hidden layers of 128 and 64, channels 16 and 32, ReLU; the usual uniform start. None of it
is tuned. Nothing here is differentially private: no bound holds for how far one record moves trained weights.

How it was made quick enough: see `literal_training.py`; a test compares it with `torch.optim.SGD`, and a round with
`privmarket federate --literal`. {hours:.1f} hours of one core so far. {_missing(found)}
"""


def _interval_text(one: dict[str, float], digits: int = 2) -> str:
    return f"{one['value']:.{digits}f} [{one['low']:.{digits}f}, {one['high']:.{digits}f}]"


def _baseline_text(found: Findings) -> str:
    kept = found.baseline
    facts = kept["facts"]
    text = table_row(
        (
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
    )
    text += table_row(["---"] * 9)
    for stage, by_critic in kept["stages"].items():
        for critic, one in by_critic.items():
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
                    f"{100 * one['open_raw']['value']:.0f} % → {100 * one['open_baselined']['value']:.0f} %",
                )
            )
    cases = [one for stage in kept["stages"].values() for one in stage.values()]
    above = sum(one["variance_ratio"]["low"] > 1 for one in cases)
    below = sum(one["variance_ratio"]["high"] < 1 for one in cases)
    smaller = sum(one["scalar_variance_ratio"]["high"] < 1 for one in cases)
    biased = sum(
        one["gain_baselined"]["low"] > one["gain_raw"]["high"] or one["gain_baselined"]["high"] < one["gain_raw"]["low"]
        for one in cases
    )
    opposed = [one["cosine"]["value"] for one in cases if one["cosine"]["high"] < 0]
    turned = (
        f" In {len(opposed)} of the {len(cases)} cases the two mean gradients point in opposite directions."
        if opposed
        else ""
    )
    return f"""## Proposition 1: the value baseline and the variance of the regret's gradient

The proposition: with X = u(b′) − u(b) and X̂ = X − (Φ(b′) − Φ(b)), E X̂ = E X and Var X̂ = Var X − Var Φ, so that the
gradient of the regret by the network's weights has less variance. Measured on the paper's own network, before, during and
after training by the paper's recipe: {facts["batches"]} batches of {facts["profiles"]} markets of {facts["clients"]} clients
(Uniform, B = 50), {facts["attacked"]} of them misreport, R = 25 ascent steps from uniform starts, the same ascents with and
without. Variance is the trace of the gradient's covariance over batches; [95 % by resampling batches]. Money in units of B/N.

    python -m privmarket_studies.literal_baseline measure

{text}
- **The variance of the gradient** is larger with the baseline in {above} of {len(cases)} cases and smaller in {below}.
- **The variance of X̂ itself** is smaller in {smaller} of {len(cases)}, but the amount is not the claimed one, which is even
  negative where Var Φ exceeds Var X.
- **It is biased**: E X̂ differs from E X in {biased} of {len(cases)} cases, because Φ(b′) moves with b′.{turned}

Why: given b′, Φ does not depend on the network's weights θ, so that ∇X̂ = ∇X to the last bit. What a baseline takes out is
noise of a score-function estimator, and this gradient is not one. Φ enters through two doors only: which step of the ascent
is the best, and which hinges [·]⁺ are open. Both change *what* is differentiated. A baseline that does not see b′, the case
in which the proposition's premise holds, stands in both terms of the difference and cancels: a test checks that the gradient
is then the same to the last bit. So ζ = 0 is the right default. A critic with which the gradient's variance falls
while the mean gradient keeps its direction would overturn this.
"""


def _valuations_text(found: Findings) -> str:
    kept = found.valuations
    rules = kept["markets"]["rules"]
    kinds = list(rules)
    text = table_row(("rule", *[f"ε bought, {kind}" for kind in kinds], *[f"of it from offers below {LITTLE}, {kind}" for kind in kinds]))
    text += table_row(["---"] * (1 + 2 * len(kinds)))
    for rule in RULES:
        bought = [with_interval([one["epsilon"] for one in rules[kind][rule]]) for kind in kinds]
        little = [f"{100 * np.mean([one['little_share'] for one in rules[kind][rule]]):.1f} %" for kind in kinds]
        text += table_row((f"`{rule}`", *bought, *little))
    menu = {kind: Measured.of(one["epsilon"] for one in rules[kind]["mean-field-menu"]).mean for kind in kinds}
    more = [f"{menu[kind] / menu[kinds[0]]:.2f} times" for kind in kinds[1:]]
    runs = kept["federated"]
    lines = table_row(("α", "bids", "seeds", "accuracy, %", "ε bought a round", "sellers a round", "spent in all"))
    lines += table_row(["---"] * 7)
    for alpha in (0.5, 0.1):
        for kind in ("Table II", "v = u/ε"):
            some = [one for one in runs if one["alpha"] == alpha and one["bids"] == kind]
            if some:
                lines += table_row(
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
    accuracy = kept["markets"]["accuracy"]
    spread = " and ".join(f"{q[1]:.2f} to {q[3]:.2f} (median {q[2]:.2f}) at α = {alpha}" for alpha, q in accuracy.items())
    return f"""## Valuations with the paper's weights (1, 0, 0)

Eq. (valuation-fn) with (1, 0, 0) is v = u/ε. u is measured here: the accuracy of a ridge classifier that an MNIST client
trains on four fifths of its own records, on the fifth that is left. The middle eight tenths of clients have {spread}. Caps ε
are Table II's. Budget 50, 100 clients, 10 seeds, [95 % over seeds]; rules that need a law are told the bids of five other seeds.

    python -m privmarket_studies.literal_valuations measure CACHE

{text}
- **The weights make privacy cheap where there is much of it.** v·ε = u: selling a whole offer costs every client about the same,
  so that a unit of ε from a client that offers 5 costs a fiftieth of one from a client that offers 0.1. The mean-field menu
  buys {" and ".join(more)} the ε of Table II's valuations, and buys it from those who offer most.
- **A bid gives the accuracy away**: u = v·ε, exactly and without noise, for everybody who sees the bid. No ε covers that. It is
  why the product draws u (`--valuations measured`) and does not measure it.
- **v = u/ε contradicts Table II**, which draws v from [0, 1] whatever ε is; the paper names both for the same scenario.

Private training on MNIST with `mean-field-menu`, {RUN_ROUNDS} rounds, each update private at δ = 10⁻⁵, settings as recommended:

{lines}
"""


def _inversion_text(found: Findings) -> str:
    kept = found.inversion
    labels = list(next(iter(kept.values()))["epsilon"])
    text = table_row(("client", "pictures", "mean picture, no release", *["no noise" if x == "none" else f"ε = {float(x):,g}" for x in labels]))
    text += table_row(["---"] * (3 + len(labels)))
    sold_best = []
    for one in kept.values():
        setting = one["setting"]
        cells = [with_interval(one["epsilon"][label]["error"], 3) for label in labels]
        text += table_row(
            (
                f"{DATASETS[setting['dataset']]}, {setting['batch']} record{'s' if setting['batch'] > 1 else ''} a release",
                str(len(one["blind"]["error"])),
                with_interval(one["blind"]["error"], 3),
                *cells,
            )
        )
        blind = float(np.mean(one["blind"]["error"]))
        sold_best += [float(np.mean(one["epsilon"][x]["error"])) / blind for x in labels if x != "none" and float(x) <= 10]
    quiet = [
        float(np.mean(one["epsilon"]["none"]["error"])) / float(np.mean(one["blind"]["error"])) for one in kept.values()
    ]
    alike = [float(np.mean(one["epsilon"]["none"]["likeness"])) for one in kept.values()]
    shown = "\n".join(
        f"![{DATASETS[one['setting']['dataset']]}, batch {one['setting']['batch']}](inversion-{name}.png)"
        for name, one in kept.items()
    )
    columns = ", ".join("no noise" if x == "none" else f"ε = {float(x):,g}" for x in labels)
    return f"""## Gradient inversion by optimisation

The server under local trust looks for pictures whose clipped gradients add up to the direction of a release
(1 − cosine, plus total variation; [Geiping2020]). It knows the weights, the clip norm, the labels and the number of
records, starts from the mean of public pictures, and chooses the weight of the variation for each ε on releases that it makes
of public pictures. Releases are real ones: `private_updates` with clip norm 1, one full-batch step, noise for (ε, 10⁻⁵)-DP.

    python -m privmarket_studies.gradient_inversion measure CACHE

Root mean squared error of a pixel, whose range is 1; [95 % over pictures]:

{text}
![Reconstruction error against ε](inversion.png)

- **Without noise the attack works**: {_spread(quiet)} of the error of a blind guess, correlation {_spread(alike)} with the
  true picture, through convolutions and in batches of four. That is the paper's motive, and it is right.
- **At ε ≤ 10 it does no better than a guess**: {_spread(sold_best)} times the error of the mean picture.
  The noise has hundreds of coordinates for each pixel to hide, so that this attack needs an ε in the thousands.
- That is no proof of safety at ε = 100: attacks that ask for less than a picture (is this record in?) succeed far earlier, and
  are what `privmarket attack` measures against the promise. An attack that reconstructs at ε ≤ 10 would overturn this.

From left to right: the truth, then what is found with {columns}.

{shown}
"""


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def render(folder: Path = FOLDER) -> str:
    """The page."""
    found = Findings(folder)
    parts = [
        "# The paper, literally, once\n",
        "What [Sun2026] prints, run as printed, so that anyone can see what it does. None of these runs is a recommendation.\n",
        _runs_text(found),
    ]
    if found.baseline is not None:
        parts.append(_baseline_text(found))
    if found.valuations is not None:
        parts.append(_valuations_text(found))
    if found.inversion is not None:
        parts.append(_inversion_text(found))
    return "\n".join(parts)


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
        mean, deviation = PRINTED[dataset, alpha]
        axes.axhspan(mean - deviation, mean + deviation, color="#999999", alpha=0.4, label="the paper's Table V")
        axes.axhline(10.0, color="black", lw=0.6, ls=":", label="guessing")
        axes.set(xscale="log", ylim=(0, 100), xlabel="round", title=f"{DATASETS[dataset]}, α = {alpha}")
        if at == 0:
            axes.set_ylabel("test accuracy, %")
            axes.legend(fontsize=7, loc="center left")
    save(figure, folder / "accuracy", ("png", "svg"))
    if found.inversion is None:
        return
    figure = new_figure(6.5, 3.8)
    axes = figure.add_subplot()
    for (name, one), colour in zip(found.inversion.items(), ("#D55E00", "#E69F00", "#0072B2", "#56B4E9"), strict=False):
        labels = [x for x in one["epsilon"] if x != "none"]
        places = [float(x) for x in labels]
        blind = np.array(one["blind"]["error"]).mean()
        many = [Measured.of(np.array(one["epsilon"][x]["error"]) / blind) for x in labels]
        limits = np.array([interval(x) for x in many])
        means = np.array([x.mean for x in many])
        title = f"{DATASETS[one['setting']['dataset']]}, batch of {one['setting']['batch']}"
        axes.errorbar(
            places, means, yerr=np.abs(limits.T - means), color=colour, marker="o", ms=4, lw=1.2, capsize=2, label=title
        )
        quiet = Measured.of(np.array(one["epsilon"]["none"]["error"]) / blind)
        low, high = interval(quiet)
        axes.errorbar(
            [3e6], [quiet.mean], yerr=[[quiet.mean - low], [high - quiet.mean]], color=colour, marker="s", ms=4, capsize=2
        )
    axes.axhline(1.0, color="black", lw=0.8, ls=":")
    axes.annotate("blind guess: the mean of public pictures", (1.0, 1.0), xytext=(0, 4), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", xlabel="ε of the release (rightmost: no noise)", ylabel="error over that of a blind guess", ylim=(0, None))
    axes.legend(fontsize=7)
    save(figure, folder / "inversion", ("png", "svg"))


def main() -> None:
    """Writes the page and its figures."""
    draw()
    write_atomically(FOLDER / "README.md", render())


if __name__ == "__main__":
    main()
