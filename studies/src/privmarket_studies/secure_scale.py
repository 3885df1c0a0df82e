"""What a secure round costs for a hundred to a million sellers: computed from parts that were measured one by one.

`python -m privmarket_studies.secure_scale docs` writes the page `scale.md` again from
`results/secure-scale/parts.json`; `--measure parts rounds 300-sellers 1000-sellers 2500-sellers simulation losses`,
or some of these, measures that anew and keeps the rest. Each takes some minutes on one core.

Notation: n sellers, each of whom cuts its keys into W pieces (`flower.neighbours`), d weights.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypedDict

import jinja2
import numpy as np
from scipy.stats import binom

from privmarket.federated.shares import (
    MOST_DRAWS,
    SharedSum,
    bits_at_most,
    colluders_allowed,
    honest_sellers,
)
from privmarket.files import write_atomically
from privmarket.flower.hash_tree import HASH_BYTES
from privmarket.flower.masks import masked_width
from privmarket.flower.neighbours import MAY_MISS, Neighbourhood, failure_probability, neighbourhood
from privmarket.flower.secure_seller import largest_integer
from privmarket.privacy.calibration import ReleaseFamily
from privmarket_studies.secure_parts import FLOWER_WINDOW, Parts, measure_parts
from privmarket_studies.secure_rounds import (
    HONEST_SHARE,
    LARGE_ROUNDS,
    MEASURED_RECORDS,
    ROUNDS,
    SecureRoundRow,
    SimulationTimes,
    measure_rounds,
    measure_simulation,
)

RoundSize = Literal["sellers", "weights"]
WEIGHTS = 100_000
SELLERS = (100, 1_000, 10_000, 100_000, 1_000_000)
DROPOUT = 0.02
RECORDS, EPSILON = 600, 1.0
PARTS = Path("results") / "secure-scale" / "parts.json"
LOSSES = (0.05, 0.08, 0.1, 0.15)  # shares of sellers that vanish, at which rounds are simulated
_LIST_READS = 2  # how often a client reads the list of sellers in a round; once it also looks for keys used twice


def most_sellers(weights: int) -> int:
    """The largest sum that is not refused: h·d ≤ 2³⁰."""
    honest = MOST_DRAWS // weights
    most = math.floor(honest / HONEST_SHARE) + 1
    while honest_sellers(most, HONEST_SHARE) > honest:
        most -= 1
    return most


def sizes() -> tuple[int, ...]:
    """The numbers of sellers on the page."""
    return tuple(sorted({*SELLERS, most_sellers(WEIGHTS)}))


@dataclass(frozen=True)
class Cost:
    """One round, computed: of one client, and of the server for all.

    Attributes:
        list_seconds, list_bytes: what of the client's is for the list of all sellers and their signatures.
    """

    client_seconds: float
    server_seconds: float
    bytes_up: float
    bytes_down: float
    list_seconds: float = 0.0
    list_bytes: float = 0.0


class KeptParts(Parts, total=False):
    """The file of all measurements; some may still be missing."""

    rounds: list[SecureRoundRow]
    simulation: SimulationTimes
    lost: dict[str, dict[str, float]]
    versions: dict[str, str]
    python: str


class CohortRow(TypedDict):
    """All that the page says of a sum of so many sellers."""

    sellers: int
    plan: Neighbourhood
    plain: Cost
    secure: Cost
    bits: float
    weight_bytes: int
    privacy_failure: float
    not_opened: dict[float, float]
    refused: bool


def plain_cost(sellers: int, weights: int, parts: Parts) -> Cost:
    """A round in which updates are sent in the clear, without training and noise."""
    seconds, vector = parts["seconds"], weights * parts["bytes"]["weight_plain"]
    server = sellers * weights * seconds["add_plain_per_weight"]
    return Cost(weights * seconds["send_plain_per_weight"], server, vector, vector)


def weight_bytes(sellers: int, weights: int, records: int = RECORDS) -> int:
    """Bytes of a masked weight, where everybody sells ε = 1 with so many records."""
    sigma = float(ReleaseFamily().noise_multiplier(EPSILON))
    # Sums of more draws than δ covers are refused; their integers are as large as those of the largest that is not.
    covered = min(sellers, most_sellers(weights))
    plan = SharedSum.plan(
        np.full(covered, sigma), records, clip_norm=1.0, parameters=weights, honest_share=HONEST_SHARE
    )
    signal = float(plan.weights[0]) * records * math.sqrt(sellers / covered)
    return masked_width(largest_integer(signal, plan.levels), sellers)


def proof_hashes(size: int, places: int) -> float:
    """About how many hashes prove that so many random places of a list hold what they hold."""
    total, width = 0.0, float(size)
    while width > 1.0:
        known = 1.0 - (1.0 - 1.0 / width) ** places  # of a node on this level
        total, width = total + width * known * (1.0 - known), width / 2.0
    return total


def list_cost(sellers: int, parts: Parts, dropout: float = 0.0) -> tuple[float, float, float]:
    """What a seller's view of the others costs: its seconds and bytes, and the server's seconds for all sellers."""
    plan, s, b = neighbourhood(sellers, HONEST_SHARE), parts["seconds"], parts["bytes"]
    came, entry, number = (1.0 - dropout) * sellers, b["list_entry"], b["number"]
    signature = b["signature"] + number
    tree = sellers * s["tree_leaf"]
    if not plan.sample:
        seconds = _LIST_READS * sellers * s["list_entry"] + plan.signed * s["verify"]
        return seconds, sellers * (entry + 1 / 8) + came * signature, tree
    window, sample = proof_hashes(sellers, plan.window), proof_hashes(sellers, plan.sample)
    hashes = window + 2.0 * sample
    seconds = (
        sellers * s["ring_place"]
        + (_LIST_READS * plan.window + plan.sample) * s["list_entry"]
        + hashes * s["check_hash"]
        + plan.sample * s["verify"]
    )
    seen = plan.window * (entry + number) + plan.sample * (entry + signature) + HASH_BYTES * hashes
    return seconds, seen + sellers / 8, 2.0 * tree + (sellers * window + 2.0 * sample) * s["prove_hash"]


def secure_cost(
    sellers: int, weights: int, parts: Parts, dropout: float = 0.0, records: int = RECORDS
) -> Cost:
    """A secure round, without training and noise, in which a share of the sellers vanish after keys are shared."""
    plan = neighbourhood(sellers, HONEST_SHARE)
    s, b, pieces = parts["seconds"], parts["bytes"], parts["pieces"][f"{plan.threshold} of {plan.window}"]
    window, others, came = plan.window, plan.window - 1, (1.0 - dropout) * sellers
    mask = weights * s["mask_per_weight"]
    list_seconds, list_bytes, list_server = list_cost(sellers, parts, dropout)
    keys = 2 * (s["key_pair"] + s["read_private_key"]) + 2 * pieces["cut"]
    meeting = others * (2 * s["agreement"] + s["encrypt"] + s["decrypt"])
    client = keys + meeting + window * mask + weights * s["send_per_weight"] + list_seconds
    # A survivor's own mask comes off; of one that vanished all masks that its neighbours have put on against it.
    open_one = pieces["restore"] + mask
    open_gone = pieces["restore"] + s["read_private_key"] + (1.0 - dropout) * others * (s["agreement"] + mask)
    server = came * (open_one + weights * s["add_per_weight"]) + (sellers - came) * open_gone + list_server
    number, sent = b["number"], b["encrypted_pieces"] + b["number"]
    opening = window * (b["piece"] + number)
    vector = weights * weight_bytes(sellers, weights, records)
    up = vector + 2 * b["public_key"] + others * sent + opening + b["signature"]
    neighbours = window * (2 * b["public_key"] + 2 * number) + others * sent + window * number
    down = weights * b["weight_plain"] + neighbours + list_bytes
    return Cost(client, server, up, down, list_seconds, list_bytes)


def not_opened(sellers: int, dropout: float) -> float:
    """A bound on the probability that a round is lost: too few come through in all, or in some neighbourhood."""
    plan = neighbourhood(sellers, HONEST_SHARE)
    few = float(binom.cdf(plan.needed - 1, sellers, 1.0 - dropout))
    if plan.everybody:
        return few
    return min(1.0, few + sellers * float(binom.sf(plan.window - plan.threshold, plan.window, dropout)))


def simulated_loss(sellers: int, dropout: float, rounds: int = 1000) -> float:
    """The share of so many simulated rounds that are lost; `not_opened` adds up neighbourhoods, which overlap."""
    plan, rng = neighbourhood(sellers, HONEST_SHARE), np.random.default_rng(0)
    lost = 0
    for _ in range(rounds):
        gone = rng.random(sellers) < dropout
        around = np.cumsum(np.concatenate([[0], gone, gone[: plan.window - 1]]))
        worst = (around[plan.window :] - around[: -plan.window]).max()
        lost += bool(sellers - gone.sum() < plan.needed or worst > plan.window - plan.threshold)
    return lost / rounds


def privacy_failure(sellers: int) -> float:
    """A bound on the probability that colluders stand where they see more than the sum; 0 without a ring."""
    plan = neighbourhood(sellers, HONEST_SHARE)
    colluders = colluders_allowed(sellers, HONEST_SHARE)
    return 0.0 if plan.everybody else failure_probability(sellers, colluders, plan.window)


def measured_cost(row: SecureRoundRow, parts: Parts) -> Cost:
    """What the arithmetic gives for a round that was measured."""
    return secure_cost(row["sellers"], row["weights"], parts, records=MEASURED_RECORDS)


def cohort_row(sellers: int, weights: int, parts: Parts) -> CohortRow:
    """All that the page says of a sum of so many sellers."""
    sigma = float(ReleaseFamily().noise_multiplier(EPSILON))
    return {
        "sellers": sellers,
        "plan": neighbourhood(sellers, HONEST_SHARE),
        "plain": plain_cost(sellers, weights, parts),
        "secure": secure_cost(sellers, weights, parts, DROPOUT),
        "bits": bits_at_most(sellers, RECORDS, sigma, weights, HONEST_SHARE),
        "weight_bytes": weight_bytes(sellers, weights),
        "privacy_failure": privacy_failure(sellers),
        "not_opened": {dropout: not_opened(sellers, dropout) for dropout in (0.01, 0.02, 0.05)},
        "refused": honest_sellers(sellers, HONEST_SHARE) * weights > MOST_DRAWS,
    }


def growth(
    rows: list[SecureRoundRow], by: RoundSize, fixed: Mapping[RoundSize, int], figure: str, least: int = 0
) -> float:
    """The exponent by which a secure round's figure grew from the first to the last measured row of that kind.

    Args:
        least: rows with less than that of what grows are left out.
    """
    some = [row for row in rows if all(row[name] == value for name, value in fixed.items()) and row[by] >= least]
    some.sort(key=lambda row: row[by])
    first, last = some[0], some[-1]
    if first is last:
        return math.nan
    return math.log(last["secure"][figure] / first["secure"][figure]) / math.log(last[by] / first[by])


def over_n_log_n(rounds: list[SecureRoundRow]) -> list[dict[str, object]]:
    """Measured rounds on a ring: what clients together and the server computed, over n log₂ n, in seconds."""
    return [
        {
            "sellers": row["sellers"],
            "plan": neighbourhood(row["sellers"], HONEST_SHARE),
            "clients": row["secure"]["client_seconds"] / math.log2(row["sellers"]),
            "server": row["secure"]["server_seconds"] / (row["sellers"] * math.log2(row["sellers"])),
            "bytes": (row["secure"]["bytes_up"] + row["secure"]["bytes_down"]) / math.log2(row["sellers"]),
        }
        for row in rounds
        if row["weights"] == 10_000 and row["sellers"] >= 100
    ]


def computed_growth(first: Cost, last: Cost, figure: str, ratio: float = 1000.0) -> str:
    """The exponent by which a computed figure grows from one number of sellers to `ratio` times as many."""
    return f"{math.log(getattr(last, figure) / getattr(first, figure)) / math.log(ratio):.2f}"


def needed_windows() -> list[tuple[int, int]]:
    """(threshold, pieces) of every sum on the page."""
    sellers = {*sizes(), *(n for n, _ in (*ROUNDS, *LARGE_ROUNDS))}
    return sorted({(plan.threshold, plan.window) for plan in (neighbourhood(n, HONEST_SHARE) for n in sellers)})


def _large(one: tuple[int, int]) -> Callable[[KeptParts], Mapping[str, object]]:
    """Measures one of the large rounds, once."""
    return lambda kept: {"rounds": _rounds(kept, measure_rounds((one,), turns=1, progress=print))}


MEASUREMENTS: dict[str, Callable[[KeptParts], Mapping[str, object]]] = {
    "parts": lambda _: measure_parts(WEIGHTS, needed_windows()),
    "rounds": lambda kept: {"rounds": _rounds(kept, measure_rounds(progress=print))},
    **{f"{sellers}-sellers": _large((sellers, weights)) for sellers, weights in LARGE_ROUNDS},
    "simulation": lambda _: {"simulation": measure_simulation()},
    "losses": lambda _: {
        "lost": {str(n): {str(p): simulated_loss(n, p) for p in LOSSES} for n in sizes() if n <= 20_000}
    },
}


def measure(kept: KeptParts, what: str) -> dict[str, object]:
    """What was measured before, with one kind of measurement made anew."""
    return {
        **kept,
        **MEASUREMENTS[what](kept),
        "versions": {name: version(name) for name in ("privmarket", "flwr", "cryptography", "numpy")},
        "python": platform.python_version(),
    }


def _rounds(kept: KeptParts, new: list[SecureRoundRow]) -> list[SecureRoundRow]:
    """Measured rounds by weights and sellers, new ones in place of old ones."""
    found = {(row["weights"], row["sellers"]): row for row in (*kept.get("rounds", ()), *new)}
    return [found[key] for key in sorted(found)]


def render(parts: KeptParts) -> str:
    """The page's text, from the measured parts."""
    text = (files("privmarket_studies") / "templates" / "scale.md").read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["chance"] = _chance
    template = environment.from_string(text)
    rows = {n: cohort_row(n, WEIGHTS, parts) for n in sizes()}
    computed = [measured_cost(row, parts) for row in parts["rounds"]]
    most, largest = most_sellers(WEIGHTS), max(SELLERS)
    measured = max(row["sellers"] for row in parts["rounds"])
    page: str = template.render(
        parts=parts,
        rows=rows,
        measured=list(zip(parts["rounds"], computed, strict=True)),
        weights=WEIGHTS,
        most=most,
        cohorts=math.ceil(largest / 10_000),
        largest=largest,
        largest_model=MOST_DRAWS // honest_sellers(largest, HONEST_SHARE),
        dropout=DROPOUT,
        records=RECORDS,
        epsilon=EPSILON,
        simulation=_simulation(parts["simulation"]["turns"]),
        exponent=lambda *what: f"{growth(*what):.2f}".replace("-", "−"),
        n_log_n=_n_log_n(10, 100),
        n_log_n_large=_n_log_n(100, measured),
        most_measured=measured,
        large_growth={
            figure: growth(parts["rounds"], "sellers", {"weights": 10_000}, figure, 100)
            for figure in ("client_seconds", "server_seconds", "bytes_up")
        },
        large=next(row for row in parts["rounds"] if (row["sellers"], row["weights"]) == (100, WEIGHTS)),
        found=[
            c.client_seconds / row["secure"]["client_seconds"]
            for row, c in zip(parts["rounds"], computed, strict=True)
        ],
        flower_window=FLOWER_WINDOW,
        time=_time,
        size=_size,
        sample=neighbourhood(largest, HONEST_SHARE).sample,
        sample_from=next(n for n in range(100, 10_000) if neighbourhood(n, HONEST_SHARE).sample),
        missing=neighbourhood(largest, HONEST_SHARE).sample // MAY_MISS,
        over_n_log_n=over_n_log_n(parts["rounds"]),
        computed_exponent=lambda figure: computed_growth(rows[1000]["secure"], rows[largest]["secure"], figure),
        clients_to_100_000=computed_growth(rows[1000]["secure"], rows[100_000]["secure"], "client_seconds", 100.0),
        n_log_n_computed=_n_log_n(1000, largest),
        less_noise=lambda sellers, cohorts: math.sqrt(HONEST_SHARE * sellers / cohorts),
    )
    return page.strip() + "\n"


def _n_log_n(first: int, last: int) -> float:
    """The exponent by which n log n grows between two numbers; of a number itself, n's."""
    if first == last:
        return 1.0
    return 1.0 + math.log(math.log(last) / math.log(first)) / math.log(last / first)


def _simulation(turns: list[dict[str, float]]) -> dict[str, float]:
    """Medians of a simulated round under both trusts, and of their ratio turn by turn with its extremes."""
    ratios = [turn["aggregate"] / turn["local"] for turn in turns]
    medians = {trust: float(np.median([turn[trust] for turn in turns])) for trust in ("local", "aggregate")}
    return {**medians, "ratio": float(np.median(ratios)), "least": min(ratios), "most": max(ratios)}


def _time(seconds: float) -> str:
    """A time to two digits, in the unit that suits its size."""
    for unit, most in (("ns", 1e-6), ("µs", 1e-3), ("ms", 1.0), ("s", 600.0), ("min", 7200.0)):
        if seconds < most:
            return f"{_two_digits(seconds / {'ns': 1e-9, 'µs': 1e-6, 'ms': 1e-3, 's': 1, 'min': 60}[unit])} {unit}"
    return f"{_two_digits(seconds / 3600)} h"


def _size(count: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{_two_digits(count / one)} {unit}"
    return f"{count:.0f} B"


def _two_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{float(f'{value:.2g}'):g}"


def _chance(value: float) -> str:
    """A probability; a power of two where it is small."""
    if value == 0.0:
        return "0"
    power = f"{math.log2(value):.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"2{power}" if value < 1e-3 else f"{value:.2g}"


def main() -> None:
    """Measures what is asked for, a kind at a time, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("docs", type=Path)
    parser.add_argument("--measure", nargs="+", choices=tuple(MEASUREMENTS), default=[])
    given = parser.parse_args()
    kept = given.docs / PARTS
    for what in given.measure:
        before = json.loads(kept.read_text(encoding="utf-8") if kept.exists() else "{}")
        write_atomically(kept, json.dumps(measure(before, what), indent=1) + "\n")
    page = render(json.loads(kept.read_text(encoding="utf-8")))
    write_atomically(given.docs / "scale.md", page)


if __name__ == "__main__":
    main()
