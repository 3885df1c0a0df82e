"""The server's side of secure sums: the weighted sum of the updates, and no single one.

A secure sum adds up integers, so the weights must be public numbers that every client multiplies its own update
with before it is masked: client i of n sends n·α_i·update_i, everybody counts alike, and the mean is
Σ α_i·update_i. The server still knows every α_i (it bought them), a client only its own. What nobody can do any
more is look at one update: a client is paid for a masked vector, and one that sends garbage spoils the sum for all.

That is local trust under a mask (`secure_order`): every update still carries all of its own noise. Under aggregate
trust (`secure_sum`) clients send integers of `federated.shares`, each with a share of a common noise, and the sum
is exact. The protocol is in `sum_server`, what clients check of it in `secure_seller`, who neighbours whom in
`neighbours`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.serverapp import Grid

from privmarket.flower.fleet import Delivery, Fleet, in_policy_terms
from privmarket.flower.masks import SUM_BITS, Integers, Masking, exact_masking
from privmarket.flower.neighbours import neighbourhood
from privmarket.flower.secure_seller import largest_share
from privmarket.flower.sum_server import SumServer
from privmarket.flower.wire import Arrays, Sale
from privmarket.privacy.policy import Reason

FAILED = "the secure sum was not opened: too few sellers came through"
SILENT = "no masked update before the deadline"
LARGEST_SUM = 2**SUM_BITS


def clipping_range(sales: Iterable[Sale], deviations: float = 8.0) -> float:
    """A public bound on what honest sellers send: clipped means of at most C each, and 8 deviations of noise."""

    def largest(sale: Sale) -> float:
        noise = float(sale.family.noise_multiplier(sale.epsilon)) * np.sqrt(sale.family.steps) / sale.expected_batch
        return sale.share * sale.learning_rate * sale.clip_norm * float(sale.family.steps + deviations * noise)

    return float(max(largest(sale) for sale in sales))


def secure_sum(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    records: Mapping[str, float],
    timeout_seconds: float,
    parties: Mapping[str, str] | None = None,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Aggregate trust: sends every seller its order and adds up their integers, exactly.

    Args:
        records: client → how many records it declared.
        parties: client → the public key that it is registered with; where given, others' keys are not taken.

    Returns:
        What each client delivered (without its share), and the sum over those that did, int64 by name; None where
        fewer than are needed came through, or the sum would be too large: then nothing is uncovered.
    """
    largest = max(largest_share(sale, records[client]) for client, sale in sales.items())
    masking = exact_masking(largest, len(sales))
    if masking.reach * len(sales) > LARGEST_SUM:
        fault = f"a sum beyond ±{LARGEST_SUM}: sell less ε a round, or use fewer records a client"
        return {client: Delivery(fault=fault, refused=True) for client in sales}, None
    server = _server(grid, fleet, sales, weights, masking, timeout_seconds, parties)
    total = server.open()
    deliveries = _deliveries(fleet, sales, server, total)
    if total is None:
        return deliveries, None
    offset = len(server.came) * int(masking.reach)
    return deliveries, {name: array - offset for name, array in zip(weights, total, strict=True)}


def secure_order(
    grid: Grid, fleet: Fleet, sales: Mapping[str, Sale], weights: Arrays, timeout_seconds: float
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Local trust under a mask: sends every seller its order and adds up what comes back.

    Returns:
        What each client delivered (without its update), and the mean over those that did of what they sent.
    """
    masking = Masking(clipping_range(sales.values()))
    server = _server(grid, fleet, sales, weights, masking, timeout_seconds)
    total = server.open()
    deliveries = _deliveries(fleet, sales, server, total)
    if total is None:
        return deliveries, None
    step = 2.0 * masking.reach / masking.steps
    means = [array * (step / len(server.came)) - masking.reach for array in total]
    return deliveries, dict(zip(weights, means, strict=True))


def _server(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    masking: Masking,
    timeout_seconds: float,
    parties: Mapping[str, str] | None = None,
) -> SumServer:
    orders = {fleet.node_of[client]: sale for client, sale in sales.items()}
    plan = neighbourhood(len(sales), next(iter(sales.values())).honest_share)
    keys = None if parties is None else {fleet.node_of[c]: key for c, key in parties.items() if c in sales}
    return SumServer(grid, orders, weights, plan, masking, timeout_seconds, keys)


def _deliveries(
    fleet: Fleet, sales: Mapping[str, Sale], server: SumServer, total: list[Integers] | None
) -> dict[str, Delivery]:
    """client → what became of its order; `refused` where it certainly released nothing."""

    def delivery(node: int) -> Delivery:
        if node in server.came:
            return Delivery(fault=FAILED if total is None else None)
        word = server.errors.get(node)
        said = FAILED if word is None else f"refused: {in_policy_terms(word)}"
        if node not in server.ordered:
            return Delivery(fault=said, refused=True)
        # That training failed is itself something the records told: what was reserved for it is spent.
        if word in {reason.value for reason in Reason} - {Reason.FAILED.value}:
            return Delivery(fault=said, refused=True)
        return Delivery(fault=SILENT if word is None else f"client failed: {word}")

    return {client: delivery(fleet.node_of[client]) for client in sales}
