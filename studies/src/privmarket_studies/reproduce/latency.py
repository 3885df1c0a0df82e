"""Cells of RQ2: time and memory of one auction, and of asking all N clients' deviations once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np

from privmarket.market._distributions import scenario
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training, rule_for
from privmarket_studies.timing import best_in_turn

_PAGE_NOISE_BYTES = 1 << 20  # the kernel counts resident pages in batches; less than this is not seen


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: mechanism, clients, seconds (how long to repeat). Uniform scenario, budget clients/2.

    Memory is the peak of resident memory during an auction above what was resident before, for all rules alike.
    """
    rng = np.random.default_rng([seed, config["clients"]])
    distribution = scenario("uniform")
    rule, bids = rule_for(config["mechanism"], distribution), distribution.sample(rng, config["clients"])
    with outside_training():
        rule.run(bids, bids.clients / 2)  # loads weights, fills caches
        memory = _peak_bytes(lambda: rule.run(bids, bids.clients / 2))
        jobs = [lambda: rule.run(bids, bids.clients / 2), lambda: np.argsort(bids.valuation)]
        seconds, sort = best_in_turn(jobs, 1000, config["seconds"])
    return {
        "seconds": seconds,
        "argsort_seconds": sort,
        "over_argsort": seconds / sort,
        "peak_bytes": memory if memory is None or memory > _PAGE_NOISE_BYTES else 0,
        "bids_bytes": bids.valuation.nbytes + bids.epsilon.nbytes,
    }


def run_deviations(config: Config, seed: int, scratch: Path) -> Result:
    """Config: mechanism, clients, seconds. What each of N clients would get with one other report."""
    rng = np.random.default_rng([seed, config["clients"]])
    distribution = scenario("uniform")
    rule, bids = rule_for(config["mechanism"], distribution), distribution.sample(rng, config["clients"])
    # New reports each time: nothing that an earlier call kept can answer this one.
    reports = iter([bids.replace(valuation=bids.valuation * f) for f in np.linspace(0.8, 1.2, 200)] * 1000)
    with outside_training():
        rule.unilateral(bids, next(reports), bids.clients / 2)
        jobs = [
            lambda: rule.unilateral(bids, next(reports), bids.clients / 2),
            lambda: rule.run(bids, bids.clients / 2),
        ]
        seconds, auction = best_in_turn(jobs, 1000, config["seconds"])
    return {"seconds": seconds, "auction_seconds": auction, "auctions_worth": seconds / auction}


def _peak_bytes(job: Callable[[], object]) -> int | None:
    """Peak of resident memory during `job` above the start; None where the system does not tell."""
    try:
        # What was freed before goes back to the system, or the job would reuse it unseen.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        job()
        return max(_resident("VmHWM") - before, 0)
    except OSError:
        return None


def _resident(line: str) -> int:
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(line):
            return 1024 * int(text.split()[1])
    raise OSError(f"no {line} in /proc/self/status")
