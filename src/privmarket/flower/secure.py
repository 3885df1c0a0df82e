"""The server's side of a secure sum: by Flower's SecAgg+ it learns the weighted sum of the updates, no single one.

SecAgg+ adds up integers, so the weights must be public numbers that every client multiplies its own update with
before it is masked: client i of n sends n·α_i·update_i, everybody counts alike, and the mean is Σ α_i·update_i. The
server still knows every α_i (it bought them), a client only its own. What nobody can do any more is look at one
update: a client is paid for a masked vector, and one that sends garbage spoils the sum for all.

That is local trust under a mask: every update still carries all of its own noise. Under aggregate trust
(`secure_sum`) clients send integers of `federated.shares`, each with a share of a common noise, and the sum is
exact. What clients check of all this is in `secure_seller`, who neighbours whom in `neighbours`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid

from privmarket.flower import wire
from privmarket.flower.cohort import Cohort, Member, masking_digest
from privmarket.flower.fleet import Delivery, Fleet
from privmarket.flower.masks import SUM_BITS, SecureWorkflow
from privmarket.flower.neighbours import Neighbourhood, neighbourhood
from privmarket.flower.secure_seller import (
    AGREE,
    COHORT,
    LIST,
    NAMES,
    PARTIES,
    PARTY,
    PROOF,
    PROOFS,
    SIGNATURES,
    SIGNERS,
    SIGNING_KEY,
    SURVIVORS,
    largest_share,
    public_numbers,
)
from privmarket.flower.wire import Arrays, Sale

FAILED = "secure aggregation did not reach its threshold"
LARGEST_SUM = 2**SUM_BITS


@dataclass(frozen=True)
class SecureSettings:
    """Parameters of SecAgg+.

    Attributes:
        clipping_range: the largest coordinate that is not cut off.
        quantization_range: coordinates are rounded to 2·clipping_range over this.
        modulus_range: masks are drawn below this power of two.
        neighbours: who shares masks with whom; what the number of sellers needs unless given.
    """

    clipping_range: float
    quantization_range: int = 2**22
    modulus_range: int = 2**32
    neighbours: Neighbourhood | None = None


def clipping_range(sales: Iterable[Sale], deviations: float = 8.0) -> float:
    """A public bound on what honest sellers send: clipped means of at most C each, and 8 deviations of noise."""

    def largest(sale: Sale) -> float:
        noise = float(sale.family.noise_multiplier(sale.epsilon)) * np.sqrt(sale.family.steps) / sale.expected_batch
        return sale.share * sale.learning_rate * sale.clip_norm * float(sale.family.steps + deviations * noise)

    return float(max(largest(sale) for sale in sales))


def exact_settings(sales: Mapping[str, Sale], records: Mapping[str, float]) -> SecureSettings | None:
    """Settings under which every integer goes into the sum as it is; None where the sum is too large for that."""
    reach = 1 << max(largest_share(sale, records[client]) for client, sale in sales.items()).bit_length()
    if reach * len(sales) > LARGEST_SUM:
        return None
    return SecureSettings(
        clipping_range=float(reach),
        quantization_range=2 * reach,  # one step per integer: the quantiser changes nothing
        modulus_range=1 << (2 * reach * len(sales)).bit_length(),
    )


def secure_sum(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    records: Mapping[str, float],
    timeout_seconds: float,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Aggregate trust: sends every seller its order and adds up their integers, exactly.

    Args:
        records: client → how many records it declared.

    Returns:
        What each client delivered (without its share), and the sum over those that did, int64 by name; None where
        fewer than are needed came through, or the sum would be too large: then nothing is uncovered.
    """
    settings = exact_settings(sales, records)
    if settings is None:
        fault = f"a sum beyond ±{LARGEST_SUM}: sell less ε a round, or use fewer records a client"
        return {client: Delivery(fault=fault, refused=True) for client in sales}, None
    deliveries, mean = secure_order(grid, fleet, sales, weights, timeout_seconds, settings)
    if mean is None:
        return deliveries, None
    came = sum(delivery.fault is None for delivery in deliveries.values())
    return deliveries, {name: np.rint(array * came).astype(np.int64) for name, array in mean.items()}


def secure_order(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    timeout_seconds: float,
    settings: SecureSettings | None = None,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Sends every seller its order and adds up what comes back, masked.

    Returns:
        What each client delivered (without its update), and the mean over those that did of what they sent.
    """
    settings = settings or SecureSettings(clipping_range(sales.values()))
    one = next(iter(sales.values()))
    winners = _Winners({fleet.node_of[client]: sale for client, sale in sales.items()}, weights)
    plan = settings.neighbours or neighbourhood(len(sales), one.honest_share)
    workflow = Workflow(
        plan,
        one,
        # As a share, "all" may be any number, also two; Flower wants integers above it.
        num_shares=1.0 if plan.everybody else plan.window,
        reconstruction_threshold=plan.threshold,
        max_weight=1.0,
        clipping_range=settings.clipping_range,
        quantization_range=settings.quantization_range,
        modulus_range=settings.modulus_range,
        timeout=timeout_seconds,
    )
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: one.number + 1}),
            MAIN_PARAMS_RECORD: ArrayRecord(list(weights.values())),
        }
    )
    context = Context(run_id=grid.run.run_id, node_id=0, node_config={}, state=state, run_config={})
    workflow(grid, LegacyContext(context, strategy=winners))
    if winners.mean is None:
        # Before the orders went out it is certain that nobody released anything.
        return {client: Delivery(fault=FAILED, refused=not workflow.ordered) for client in sales}, None
    silent = Delivery(fault="no masked update before the deadline")
    came = {c: Delivery() if fleet.node_of[c] in winners.delivered else silent for c in sales}
    return came, dict(zip(weights, winners.mean, strict=True))


class Workflow(SecureWorkflow):
    """Flower's workflow with neighbours that follow from the sellers' keys, and survivors that are agreed on.

    Args:
        plan: who shares masks with whom.
        sale: one of the orders; what masks are bound to is in all.

    Attributes:
        ordered: whether sellers were sent their orders.
    """

    def __init__(self, plan: Neighbourhood, sale: Sale, **settings: Any) -> None:
        super().__init__(**settings)
        self.plan, self.sale = plan, sale
        self.ordered = False
        self._cohort: Cohort | None = None
        self._extra: dict[str, Any] = {}

    def setup_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        """Collects keys; the neighbours follow from them."""
        wired = _Wired(grid)
        self._cohort = None
        if not super().setup_stage(cast(Grid, wired), context, state):
            return False
        sent = {
            reply.metadata.src_node_id: reply.content.config_records[RECORD_KEY_CONFIGS]
            for reply in wired.replies
            if not reply.has_error()
        }
        members = [
            Member(node, cast(bytes, sent[node][SIGNING_KEY]), masking_digest(state.nid_to_publickeys[node]))
            if SIGNING_KEY in sent.get(node, {})
            else Member(node)
            for node in state.sampled_node_ids
        ]
        self._cohort = Cohort.of(members)
        state.nid_to_neighbours = {
            node: set(window) for node, window in self.plan.windows(self._cohort.ring).items()
        }
        self._extra = {LIST: self._cohort.write()}
        present = [sent[member.node] for member in self._cohort.members if member.present]
        if all(PROOF in keys for keys in present):
            self._extra |= {key: [one[of] for one in present] for key, of in ((PARTIES, PARTY), (PROOFS, PROOF))}
        return bool(self._check_threshold(state))

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        """Sends keys and the cohort; who does not answer takes part in no mask, and is left out from here on."""
        if not super().share_keys_stage(cast(Grid, _Wired(grid, self._add_extra)), context, state):
            return False
        state.sampled_node_ids = set(state.active_node_ids)
        state.nid_to_neighbours = {
            node: state.nid_to_neighbours[node] & state.sampled_node_ids for node in state.sampled_node_ids
        }
        return bool(self._check_threshold(state))

    def collect_masked_vectors_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        """Sends the orders, then has the survivors agree on who survived."""
        self.ordered = True
        came = bool(super().collect_masked_vectors_stage(grid, context, state))
        return came and self._agree(grid, context, state)

    def public_numbers(self, state: Any) -> bytes:
        """See `secure_seller.public_numbers`."""
        assert self._cohort is not None
        return public_numbers(
            self.sale,
            self._cohort,
            threshold=state.threshold,
            clipping_range=state.clipping_range,
            target_range=state.quantization_range,
            mod_range=state.mod_range,
        )

    def unmask_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        """Opens the sum."""
        return bool(super().unmask_stage(_Wired(grid, self._add_extra), context, state))

    def _agree(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        assert self._cohort is not None
        survivors = self._cohort.write_survivors(state.active_node_ids)
        number = str(context.state.config_records[MAIN_CONFIGS_RECORD][WorkflowKey.CURRENT_ROUND])
        messages = []
        for node in sorted(state.active_node_ids):
            asked = ConfigRecord({Key.STAGE: AGREE, SURVIVORS: survivors})
            messages.append(Message(RecordDict({RECORD_KEY_CONFIGS: asked}), node, wire.TRAIN, group_id=number))
        replies = grid.send_and_receive(messages, timeout=self.timeout)
        signed = {
            reply.metadata.src_node_id: reply.content.config_records[RECORD_KEY_CONFIGS][SIGNATURES][0]  # type: ignore[index]
            for reply in replies
            if not reply.has_error()
        }
        self._extra = {SIGNERS: list(signed), SIGNATURES: list(signed.values())}
        return len(signed) >= self.plan.needed

    def _check_threshold(self, state: Any) -> bool:
        """Whether enough sellers are there, in all and in every neighbourhood; unknown before there are keys."""
        if self._cohort is None:
            return True
        return len(state.active_node_ids) >= self.plan.needed and bool(super()._check_threshold(state))

    def _add_extra(self, message: Message) -> None:
        message.content[COHORT] = ConfigRecord(dict(self._extra))


class _Wired:
    """A grid whose messages are changed before they go out, and whose replies are kept."""

    def __init__(self, grid: Grid, change: Callable[[Message], None] = lambda _: None) -> None:
        self.grid, self.change, self.replies = grid, change, list[Message]()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sends and receives."""
        outgoing = list(messages)
        for message in outgoing:
            self.change(message)
        self.replies = list(self.grid.send_and_receive(outgoing, timeout=timeout))
        return self.replies


@dataclass(eq=False)
class _Winners(FedAvg):  # type: ignore[misc,unused-ignore]
    """The strategy that SecAgg+ asks: whom to send what, and where the sum goes."""

    sales: Mapping[int, Sale]
    weights: Arrays
    delivered: set[int] = field(default_factory=set)
    mean: list[np.ndarray] | None = None

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, Any]]:
        """Every winner's own order."""
        arrays, names = ndarrays_to_parameters(list(self.weights.values())), "\n".join(self.weights)
        return [
            (_Proxy(node), FitIns(arrays, {**wire.fields_of(sale), NAMES: names}))
            for node, sale in self.sales.items()
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Any, dict[str, Any]]:
        """Takes the mean; each result carries the same one."""
        self.delivered = {proxy.node_id for proxy, _ in results}
        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        return results[0][1].parameters, {}


@dataclass(frozen=True)
class _Proxy:
    """A node's number, which is all that SecAgg+ wants of a client."""

    node_id: int
