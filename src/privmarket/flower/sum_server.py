"""The server of one secure sum: the five steps of the protocol, from keys to the opened total.

The messages are those of Flower's SecAgg+, which sellers answer through Flower's own client code; one step more has
the survivors agree on who survived (`cohort`). A seller that does not answer a step, or answers what cannot be read
(`sum_replies`), has dropped out. Where too few are left, in all or in one neighbourhood, the sum is not opened.

1. setup: everybody's public keys; the cohort and the neighbours follow from them;
2. keys: each seller's keys in encrypted pieces, one for each neighbour;
3. vectors: orders go out, masked vectors come back and are added up;
4. agreement: survivors sign who came through;
5. opening: pieces of the keys with which masks are taken off the total.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as compat
from flwr.serverapp import Grid

from privmarket.flower import key_pieces, sum_replies, wire
from privmarket.flower.cohort import Cohort, Member, masking_digest, sampled_places, verifies
from privmarket.flower.hash_tree import HashTree
from privmarket.flower.masks import Integers, Masking, strong_masks
from privmarket.flower.neighbours import Neighbourhood
from privmarket.flower.secure_seller import layout, public_numbers
from privmarket.flower.sum_keys import PROTOCOL, KeyPair
from privmarket.flower.sum_memory import (
    AGREE,
    BRANCHES,
    COHORT,
    LIST,
    NAMES,
    PARTIES,
    PLACES,
    PROOFS,
    SIGNATURE_BRANCHES,
    SURVIVORS,
    VERSION,
)
from privmarket.flower.sum_replies import SIGNATURES, BadReplyError, SellerKeys
from privmarket.flower.wire import Arrays, Sale

_log = logging.getLogger("privmarket.flower")
Said = TypeVar("Said")


@dataclass(eq=False)
class SumServer:
    """One secure sum.

    Args:
        orders: node → what it sold.
        weights: the global weights that go out with the orders.
        plan: who shares masks with whom.
        masking: range of the integers and modulus of the sum.
        parties: node → the key that it is registered with, where that is known; others' keys are not taken.

    Attributes:
        ordered: the nodes that were sent an order: only these can have released anything.
        came: the nodes whose masked vectors arrived.
        errors: node → what it answered instead of a step's reply.
    """

    grid: Grid
    orders: Mapping[int, Sale]
    weights: Arrays
    plan: Neighbourhood
    masking: Masking
    timeout_seconds: float
    parties: Mapping[int, str] | None = None
    ordered: frozenset[int] = frozenset()
    came: frozenset[int] = frozenset()
    errors: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sale = next(iter(self.orders.values()))
        # The first array of a vector is the seller's weight, which is one step of the quantiser for everybody.
        self._shapes = [(1,), *(array.shape for array in self.weights.values())]

    def open(self) -> list[Integers] | None:
        """The total of what the sellers sent, array by array; None where it cannot be opened.

        Numbers are those that the sellers' quantiser gave, at least 0 each.
        """
        keys = self._setup()
        cohort = self._cohort(keys)
        node_at = [member.node for member in cohort.members]
        windows = {
            node_at[place]: frozenset(node_at[other] for other in window)
            for place, window in self.plan.windows(cohort.ring).items()
        }
        pieces = self._share_keys(keys, cohort, windows)
        if pieces is None:
            return None
        masked = set(pieces)
        near = {node: windows[node] & masked for node in masked}
        vectors = self._collect(near, pieces)
        self.came = frozenset(vectors)
        if not self._enough(self.came, near):
            return None
        signed = self._agree(cohort)
        if signed is None:
            return None
        secrets = self._restore(cohort, near, keys, signed)
        if secrets is None:
            return None
        arrays = layout(list(self.weights), [array.shape for array in self.weights.values()])
        public = public_numbers(self._sale, cohort, self.plan, self.masking, arrays)
        return self._unmask(vectors, secrets, keys, near, public)

    # ---- the steps ------------------------------------------------------------------------------------------

    def _setup(self) -> dict[int, SellerKeys]:
        """node → its keys; none that another seller sent, too, and none of a stranger."""
        plan, masking = self.plan, self.masking
        asked: dict[str, str | int | float] = {
            Key.STAGE: Stage.SETUP,
            VERSION: PROTOCOL,
            Key.SAMPLE_NUMBER: plan.sellers,
            Key.SHARE_NUMBER: plan.window,
            Key.THRESHOLD: plan.threshold,
            Key.CLIPPING_RANGE: masking.reach,
            Key.TARGET_RANGE: masking.steps,
            Key.MOD_RANGE: masking.modulus,
            Key.MAX_WEIGHT: 1.0,
        }
        messages = {node: RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({**asked})}) for node in self.orders}
        found: dict[int, SellerKeys] = {}
        used: set[bytes] = set()
        for node, keys in sorted(self._ask(messages, lambda _, configs: sum_replies.read_keys(configs)).items()):
            sent = {keys.masking, keys.messages, keys.signing}
            if used & sent or not self._is_party(node, keys):
                self._leave_out(node, "keys of another seller, or of no registered party")
                continue
            used |= sent
            found[node] = keys
        return found

    def _is_party(self, node: int, keys: SellerKeys) -> bool:
        if self.parties is None and not keys.proof:
            return True
        if self.parties is not None and self.parties.get(node) != keys.party:
            return False
        try:
            public = bytes.fromhex(keys.party)
        except ValueError:
            return False
        sale = f"{self._sale.run}/{self._sale.number}/{self._sale.broker_round}"
        return verifies(public, keys.proof, _member(node, keys).statement(sale))

    def _cohort(self, keys: Mapping[int, SellerKeys]) -> Cohort:
        """All sellers; those without keys have dropped out.

        A seller of a large sum, who does not see them all, expects registered parties in the order of their keys.
        """
        parties = self.parties if self.plan.sample else None
        nodes = sorted(self.orders, key=lambda node: ("" if parties is None else parties.get(node, ""), node))
        return Cohort.listed([_member(node, keys[node]) if node in keys else Member(node) for node in nodes])

    def _share_keys(
        self, keys: Mapping[int, SellerKeys], cohort: Cohort, windows: Mapping[int, frozenset[int]]
    ) -> dict[int, dict[int, bytes]] | None:
        """node → neighbour → encrypted pieces of the node's keys; None where too few are left."""
        near = {node: windows[node] & set(keys) for node in keys}
        if not self._enough(keys, near):
            return None
        extra = self._shown(cohort, range(cohort.size), keys)
        messages = {}
        for node in keys:
            if self.plan.sample:
                extra = self._shown(cohort, sorted(cohort.place_of[other] for other in windows[node]), keys)
            theirs = ConfigRecord({str(other): [keys[other].masking, keys[other].messages] for other in near[node]})
            theirs[Key.STAGE] = Stage.SHARE_KEYS
            messages[node] = RecordDict({RECORD_KEY_CONFIGS: theirs, COHORT: extra})
        pieces = self._ask(messages, lambda node, c: sum_replies.read_pieces(c, near[node] - {node}))
        return pieces if self._enough(pieces, {node: near[node] for node in pieces}) else None

    def _shown(self, cohort: Cohort, places: Sequence[int], keys: Mapping[int, SellerKeys]) -> ConfigRecord:
        """The sellers at some places of the cohort, with a proof where these are not all."""
        extra = ConfigRecord({LIST: cohort.write(places)})
        if self.plan.sample:
            extra[PLACES], extra[BRANCHES] = list(places), cohort.tree.prove(places)
        present = [keys[cohort.shown[at].node] for at in places if cohort.shown[at].present]
        if all(one.proof for one in present):
            extra[PARTIES], extra[PROOFS] = [one.party for one in present], [one.proof for one in present]
        return extra

    def _collect(
        self, near: Mapping[int, frozenset[int]], pieces: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, list[Integers]]:
        """Sends the orders and collects the masked vectors: node → its vector, array by array."""
        arrays, names = ndarrays_to_parameters(list(self.weights.values())), "\n".join(self.weights)
        messages = {}
        for node in near:
            sale = wire.put(RecordDict(), self.orders[node]).config_records[wire.SALE]
            order = FitIns(arrays, {**sale, NAMES: names})  # type: ignore[dict-item]
            content = compat.fitins_to_recorddict(order, keep_input=True)
            sources = sorted(near[node] - {node})
            asked = ConfigRecord({Key.STAGE: Stage.COLLECT_MASKED_VECTORS})
            asked[Key.CIPHERTEXT_LIST] = [pieces[source][node] for source in sources]
            asked[Key.SOURCE_LIST] = sources
            content[RECORD_KEY_CONFIGS] = asked
            messages[node] = content
        self.ordered = frozenset(messages)
        read = sum_replies.read_vector
        return self._ask(messages, lambda _, configs: read(configs, self._shapes, self.masking.modulus))

    def _agree(self, cohort: Cohort) -> dict[int, bytes] | None:
        """node → its signature under the cohort and the list of survivors; None where too few sign."""
        survivors = cohort.write_survivors(self.came)
        asked = ConfigRecord({Key.STAGE: AGREE, SURVIVORS: survivors})
        messages = {node: RecordDict({RECORD_KEY_CONFIGS: asked}) for node in self.came}
        # Signatures are checked by the sellers, who do not trust the server; so they are not checked here.
        signed = self._ask(messages, lambda _, configs: sum_replies.read_signature(configs))
        return signed if len(signed) >= self.plan.signed else None

    def _restore(
        self,
        cohort: Cohort,
        near: Mapping[int, frozenset[int]],
        keys: Mapping[int, SellerKeys],
        signed: Mapping[int, bytes],
    ) -> dict[int, bytes] | None:
        """node → the seed of its own mask, or the masking key of one that dropped out; None where pieces miss."""
        confirmed = self._confirmed(cohort, keys, signed)
        messages = {}
        for node in self.came:
            active, dead = sorted(near[node] & self.came), sorted(near[node] - self.came)
            asked = ConfigRecord({Key.STAGE: Stage.UNMASK})
            asked[Key.ACTIVE_NODE_ID_LIST], asked[Key.DEAD_NODE_ID_LIST] = active, dead
            messages[node] = RecordDict({RECORD_KEY_CONFIGS: asked, COHORT: confirmed})
        opened = self._ask(messages, lambda node, configs: sum_replies.read_opened(configs, near[node]))
        collected: dict[int, list[bytes]] = {node: [] for node in near}
        for pieces in opened.values():
            for owner, piece in pieces.items():
                collected[owner].append(piece)
        try:
            return {node: key_pieces.restore(some, self.plan.threshold) for node, some in collected.items()}
        except ValueError as error:
            _log.warning("a secure sum stays closed: %s", error)
            return None

    def _confirmed(
        self, cohort: Cohort, keys: Mapping[int, SellerKeys], signed: Mapping[int, bytes]
    ) -> ConfigRecord:
        """The signatures that sellers are shown: all of them, or a sample that follows from all of them."""
        by_place = {cohort.place_of[node]: signature for node, signature in signed.items()}
        if not self.plan.sample:
            return ConfigRecord({PLACES: list(by_place), SIGNATURES: list(by_place.values())})
        signatures = [by_place.get(place, b"") for place in range(cohort.size)]
        tree, alive = HashTree(signatures), cohort.read_survivors(cohort.write_survivors(self.came))
        places = sampled_places(tree.root, alive, self.plan.sample).tolist()
        extra = self._shown(cohort, places, keys)
        extra[SIGNATURES] = [signatures[place] for place in places]
        extra[SIGNATURE_BRANCHES] = tree.prove(places)
        return extra

    def _unmask(
        self,
        vectors: Mapping[int, list[Integers]],
        secrets: Mapping[int, bytes],
        keys: Mapping[int, SellerKeys],
        near: Mapping[int, frozenset[int]],
        public: bytes,
    ) -> list[Integers] | None:
        """The total without its masks; None where they do not come off, as when sellers were told different things.

        The modulus divides 2⁶⁴, so that sums may wrap on the way.
        """
        modulus, total = self.masking.modulus, [np.zeros(shape, dtype=np.uint64) for shape in self._shapes]
        for vector in vectors.values():
            _add(total, vector)
        for node, secret in secrets.items():
            if node in self.came:
                _add(total, strong_masks(secret, modulus, self._shapes, public=public), -1)
                continue
            pair = KeyPair.read(secret)
            if pair.public != keys[node].masking:
                _log.warning("a secure sum stays closed: node %s shared another key than its own", node)
                return None
            for other in near[node] & self.came:
                shared = pair.agreed(keys[other].masking)
                _add(total, strong_masks(shared, modulus, self._shapes, public=public), 1 if node > other else -1)
        opened = [(array & np.uint64(modulus - 1)).view(np.int64) for array in total]
        if not self._cancels(int(opened[0][0])):
            _log.warning("a secure sum stays closed: its sellers' masks do not cancel")
            return None
        return opened[1:]

    def _cancels(self, weight: int) -> bool:
        """Whether the sellers' weights add up as they must: a sum under masks that do not cancel is no sum."""
        return weight == len(self.came) * self.masking.steps % self.masking.modulus

    # ---- messages -------------------------------------------------------------------------------------------

    def _ask(
        self, contents: Mapping[int, RecordDict], read: Callable[[int, ConfigRecord], Said]
    ) -> dict[int, Said]:
        """node → what it answered, for those whose answer can be read; each node's first answer counts."""
        group = str(self._sale.number + 1)
        messages = [Message(contents[node], node, wire.TRAIN, group_id=group) for node in sorted(contents)]
        answers: dict[int, Said] = {}
        heard: set[int] = set()
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout_seconds):
            node = reply.metadata.src_node_id
            if node not in contents or node in heard:
                continue
            heard.add(node)
            if reply.has_error():
                self.errors[node] = str(reply.error.reason)
                continue
            try:
                answers[node] = read(node, sum_replies.configs_of(reply))
            except BadReplyError as error:
                self._leave_out(node, str(error))
        return answers

    def _leave_out(self, node: int, why: str) -> None:
        _log.warning("node %s is left out of the secure sum: %s", node, why)

    def _enough(self, active: Iterable[int], near: Mapping[int, frozenset[int]]) -> bool:
        """Whether enough sellers are left, in all and in the neighbourhood of each that is named."""
        there = set(active)
        return len(there) >= self.plan.needed and all(
            len(window & there) >= self.plan.threshold for window in near.values()
        )


def _member(node: int, keys: SellerKeys) -> Member:
    return Member(node, keys.signing, masking_digest([keys.masking, keys.messages]))


def _add(total: list[np.ndarray], parts: list[Integers], sign: int = 1) -> None:
    """Adds sign·parts to total, array by array, in place and modulo 2⁶⁴."""
    for array, part in zip(total, parts, strict=True):
        if sign > 0:
            array += part.view(np.uint64)
        else:
            array -= part.view(np.uint64)
