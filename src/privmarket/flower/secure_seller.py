"""A seller's side of a secure sum: which steps of a server it follows, and what it adds to the sum.

A seller does not trust the server to run SecAgg+ as agreed. Before each step it checks for itself:

1. setup: there is an offer and no sale for it yet; keys go to enough neighbours, and enough pieces restore them;
2. keys: the cohort has as many different sellers as was said, its neighbours are those that follow from the keys,
   and where there is a register every seller is a party of its own;
3. its own part: no more weight than its ε allows, and a quantiser that leaves its integers as they are;
4. survivors: enough came through, and it signs one list only;
5. opening: enough survivors signed the very same lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ConfigRecord, ConfigRecordValues, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.compat.common import recorddict_compat as compat

from privmarket.federated.shares import honest_sellers, largest_weights
from privmarket.flower import guard, wire
from privmarket.flower.cohort import (
    Cohort,
    CohortError,
    Member,
    masking_digest,
    new_signing_key,
    public_key,
)
from privmarket.flower.masks import SUM_BITS, Masking, secure_mod
from privmarket.flower.neighbours import Neighbourhood, neighbourhood
from privmarket.flower.node_seller import MEMORY, MarketClientApp, Seller, event_of, trained
from privmarket.flower.sum_keys import PROTOCOL, BadKeyError, check_public_key
from privmarket.flower.sum_memory import (
    AGREE,
    BRANCHES,
    COHORT,
    LIST,
    NAMES,
    PLACES,
    VERSION,
    RememberedSum,
    offer_of,
)
from privmarket.flower.sum_opening import check_opening, confirm
from privmarket.flower.sum_parties import check_parties
from privmarket.flower.sum_replies import (
    PARTY,
    PROOF,
    SIGNING_KEY,
    BadReplyError,
    ints,
    number,
    text,
    whole,
)
from privmarket.flower.wire import Arrays, Sale
from privmarket.privacy import integer_noise
from privmarket.privacy.integer_noise import MAX_LEVELS, MIN_LEVELS
from privmarket.privacy.policy import PolicyRefusal, Reason
from privmarket.privacy.release import ReleaseGrid


class SecureClientApp(MarketClientApp):
    """A client app whose updates leave masked.

    An error is answered with one word of `Reason`; the sum goes on without this client.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers a message, or says in one word why not."""
        try:
            # Flower also takes "train.default" for "train", and SecAgg+ lets it pass without a mask.
            if message.metadata.message_type not in (wire.TRAIN, wire.BID, wire.RECEIPT):
                raise PolicyRefusal(Reason.MESSAGE, f"a message of type {message.metadata.message_type}")
            return ClientApp.__call__(self, message, context)
        except Exception as error:
            reason = guard.reason_of(error)
            guard.note_refusal(context, reason, error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason.value), reply_to=message)


def secure_client(seller: Seller) -> SecureClientApp:
    """A client app whose updates leave masked. Without a mask it sends nothing."""
    app = SecureClientApp(mods=[SumSteps(seller)])
    app.seller = seller
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order = compat.recorddict_to_fitins(message.content, keep_input=True)
        sale, names = _read_order(order.config)
        weights = dict(zip(names, parameters_to_ndarrays(order.parameters), strict=True))
        if sale.trust == "aggregate":
            sent = _share(seller, sale, weights, context)
        else:
            job = seller.accept(sale, context, weights)
            update = trained(lambda: seller.train(weights, job))
            sent = {name: np.float32(sale.share) * array for name, array in update.items()}
        seller.close(sale, sent, context)
        parameters = ndarrays_to_parameters([sent[name] for name in names])
        reply = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={})
        return Message(compat.fitres_to_recorddict(reply, keep_input=False), reply_to=message)

    return app


@dataclass(frozen=True)
class SumSteps:
    """SecAgg+ on the client, as a Flower mod; each step is checked first."""

    seller: Seller

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Follows a step of the protocol, or refuses it.

        Raises:
            PolicyRefusal: `unsold` for a sum that the client made no offer for, or has sold into already;
                `honest-share` for keys in too few pieces, a threshold that is too low, or too few survivors;
                `noise` for settings under which a seller's noise would be scaled, cut off or lost in the sum;
                `cohort` for sellers, keys or survivors that others did not confirm.
        """
        if message.metadata.message_type != wire.TRAIN:
            return call_next(message, context)
        configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
        if configs is None:
            raise PolicyRefusal(Reason.MESSAGE, "an order outside the protocol of the secure sum")
        stage, public, modulus = configs.get(Key.STAGE), b"", 0
        with guard.becomes(Reason.COHORT, CohortError, BadReplyError, BadKeyError):
            if stage == Stage.SETUP:
                _begin(configs, context)
            elif stage == Stage.SHARE_KEYS:
                _check_cohort(self.seller, message, configs, context)
            elif stage == Stage.COLLECT_MASKED_VECTORS:
                _check_sources(configs.get(Key.SOURCE_LIST), context)
                public, modulus = _bound_to(message, context)
            elif stage == AGREE:
                return Message(confirm(configs, context), reply_to=message)
            elif stage == Stage.UNMASK:
                check_opening(self.seller, message, configs, context)
        reply = secure_mod(public, modulus)(message, context, call_next)
        if stage == Stage.SETUP:
            _add_keys(self.seller, reply, context)
        return reply


def _begin(configs: ConfigRecord, context: Context) -> None:
    """Step 1: an offer, enough neighbours, a threshold that is high enough."""
    memory = context.state.get(MEMORY)
    if not isinstance(memory, ConfigRecord) or not float(memory["epsilon"]) > 0:  # type: ignore[arg-type]
        raise PolicyRefusal(Reason.UNSOLD, "a secure sum without an offer, or a second one for the same offer")
    if configs.get(VERSION) != PROTOCOL:
        why = f"version {configs.get(VERSION)!r} of the secure sum, this seller speaks {PROTOCOL}"
        raise PolicyRefusal(Reason.MESSAGE, f"{why}: install the same privmarket on both sides")
    sellers, pieces, threshold = (configs.get(key) for key in (Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD))
    if not (isinstance(sellers, int) and isinstance(pieces, int) and isinstance(threshold, int)) or sellers < 1:
        raise PolicyRefusal(Reason.HONEST_SHARE, f"keys in {pieces!r} pieces for {sellers!r} sellers")
    plan = neighbourhood(sellers, float(memory["honest-share"]))  # type: ignore[arg-type]
    # Everybody as a neighbour is never less safe than a ring.
    lowest = plan.threshold if pieces == plan.window else plan.needed if pieces == sellers else sellers + 1
    if not lowest <= threshold <= pieces:
        raise PolicyRefusal(
            Reason.HONEST_SHARE,
            f"keys in {pieces} pieces of which {threshold} restore them, for {sellers} sellers",
        )
    if memory["trust"] == "aggregate":
        _check_integers(configs, sellers)
    known = replace(plan, window=pieces, threshold=threshold)
    RememberedSum(known, offer_of(memory), _offered_round(memory), str(memory["broker-round"])).keep(context)


def _check_integers(configs: ConfigRecord, sellers: int) -> None:
    """Refuses settings of SecAgg+ under which integers would not be added up as they are.

    Flower scales, clips and quantises each vector before it is masked. A server that told all but one seller to
    scale by nothing, or to clip at nothing, would be left with that one's share and its small part of the noise.
    """
    keys = (Key.MAX_WEIGHT, Key.CLIPPING_RANGE, Key.TARGET_RANGE, Key.MOD_RANGE)
    weight, reach, target, modulus = (configs.get(key) for key in keys)
    if not isinstance(reach, float) or not isinstance(target, int) or not isinstance(modulus, int):
        raise PolicyRefusal(Reason.NOISE, f"integers up to {reach!r} of {target!r} steps modulo {modulus!r}")
    fits = 1.0 <= reach <= 2**SUM_BITS / sellers and target == 2 * reach and modulus >= sellers * target
    if weight != 1.0 or not fits:
        why = f"weight {weight!r}, integers up to {reach:g} of {target} steps modulo {modulus}"
        raise PolicyRefusal(Reason.NOISE, f"{why}: not every sum of {sellers} sellers' integers")


def _add_keys(seller: Seller, reply: Message, context: Context) -> None:
    """The signing key of this sum goes out with the other keys, signed by the seller's registered key if any."""
    private, public = new_signing_key()
    replace(RememberedSum.of(context), private=private).keep(context)
    keys = reply.content.config_records[RECORD_KEY_CONFIGS]
    keys[SIGNING_KEY] = public
    identity = seller.registered_key(context)
    if identity is not None:
        mine = Member(context.node_id, public, masking_digest([keys[Key.PUBLIC_KEY_1], keys[Key.PUBLIC_KEY_2]]))  # type: ignore[list-item]
        statement = mine.statement(RememberedSum.of(context).sale)
        keys[PARTY], keys[PROOF] = identity.public, bytes.fromhex(identity.sign(statement))


def _check_cohort(seller: Seller, message: Message, configs: ConfigRecord, context: Context) -> None:
    """Step 2: who is in the sum, and who are the neighbours; once in a sum, before pieces of keys go out."""
    state = context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord())
    if state.get("current_stage") != Stage.SETUP:
        raise PolicyRefusal(Reason.COHORT, "a list of sellers at the wrong time, or a second one")
    extra = message.content.config_records.get(COHORT)
    if extra is None:
        raise PolicyRefusal(Reason.COHORT, "keys of neighbours without the list of all sellers")
    known = RememberedSum.of(context)
    known.check_offer(context.state.config_records.get(MEMORY))
    cohort = _read_cohort(known.plan, extra)
    window = known.window(cohort, context)
    if known.plan.sample and set(cohort.shown) != set(window):
        raise PolicyRefusal(Reason.COHORT, "sellers that are no neighbours among the neighbours")
    mine = cohort.by_node[context.node_id]
    if (mine.signing, mine.masking) != (
        public_key(known.private),
        masking_digest([text(state, "pk1"), text(state, "pk2")]),
    ):
        raise PolicyRefusal(Reason.COHORT, "a cohort without this seller's own keys")
    offered = {int(key): value for key, value in configs.items() if key != Key.STAGE}
    if set(offered) != {node for place, node in window.items() if cohort.shown[place].present}:
        raise PolicyRefusal(Reason.COHORT, "other neighbours than those that follow from the keys")
    for node, theirs in offered.items():
        if not isinstance(theirs, list) or masking_digest(theirs) != cohort.by_node[node].masking:  # type: ignore[arg-type]
            raise PolicyRefusal(Reason.COHORT, f"other keys of node {node} than in the list of all sellers")
        for key in theirs:
            check_public_key(key)  # type: ignore[arg-type]
    check_parties(seller, known, cohort, extra, context)
    places = tuple(cohort.shown) if known.plan.sample else ()
    replace(known, listed=cohort.write(), places=places, root=cohort.root).keep(context)


def _read_cohort(plan: Neighbourhood, extra: ConfigRecord) -> Cohort:
    """All sellers, or in a large sum those at some places, with the root that follows from them."""
    if plan.sample:
        return Cohort.read_part(plan.sellers, ints(extra, PLACES), text(extra, LIST), text(extra, BRANCHES))
    cohort = Cohort.read(text(extra, LIST))
    if cohort.size != plan.sellers:
        raise PolicyRefusal(Reason.COHORT, f"{cohort.size} sellers where {plan.sellers} were named")
    return cohort


def _offered_round(memory: ConfigRecord) -> str:
    """Names the round that this seller made its offer for, at the server and at a broker."""
    return f"{memory['run']!s}/{memory['number']!s}/{memory['broker-round']!s}"


def _check_sources(sources: object, context: Context) -> None:
    """Refuses to mask a vector against too few others: the same one named twice is one, and may know the mask."""
    state = context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord())
    known, threshold = state.get("ss2_dict:K"), state.get("threshold")
    if not isinstance(sources, list) or not isinstance(known, list) or not isinstance(threshold, int):
        raise PolicyRefusal(Reason.MESSAGE, "no list of sellers to mask against")
    if len(sources) != len(set(sources)) or not set(sources) <= set(known) or len(sources) + 1 < threshold:
        raise PolicyRefusal(Reason.MESSAGE, f"masks against {sources!r}, where {threshold} must take part")


def _bound_to(message: Message, context: Context) -> tuple[bytes, int]:
    """What this seller was told of the sum, and its modulus."""
    known = RememberedSum.of(context)
    known.check_offer(context.state.config_records.get(MEMORY))
    order = compat.recorddict_to_fitins(message.content, keep_input=True)
    sale, names = _read_order(order.config)
    shapes = [array.shape for array in parameters_to_ndarrays(order.parameters)]
    state = context.state.config_records[RECORD_KEY_STATE]
    masking = Masking(number(state, "clipping_range"), whole(state, "target_range"), whole(state, "mod_range"))
    plan = replace(known.plan, threshold=whole(state, "threshold"))
    named = Cohort(plan.sellers, {}, known.root)  # what names it follows from its root
    return public_numbers(sale, named, plan, masking, layout(names, shapes)), masking.modulus


def layout(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    """Which arrays a vector holds, in which order: an array in two places would be a second look at its numbers."""
    return repr([(name, tuple(map(int, shape))) for name, shape in zip(names, shapes, strict=True)])


def public_numbers(sale: Sale, cohort: Cohort, plan: Neighbourhood, masking: Masking, arrays: str) -> bytes:
    """What all sellers of a sum must have been told alike: the noise of each is what the others count on.

    Masks follow from it, so that those of sellers who were told different things do not cancel.
    """
    of_sum = (sale.run, sale.number, sale.trust, sale.honest_share, sale.sellers, sale.levels)
    of_masks = (plan.window, plan.threshold, plan.needed, masking.reach, masking.steps, masking.modulus)
    return repr((*of_sum, *of_masks, arrays)).encode() + cohort.digest


def _read_order(fields: Mapping[str, ConfigRecordValues]) -> tuple[Sale, list[str]]:
    """The sale, and the names of the weights that come with it."""
    config = dict(fields)
    names = str(config.pop(NAMES)).split("\n")
    if len(set(names)) != len(names):
        raise PolicyRefusal(Reason.WEIGHTS, "one array is named twice")
    content = RecordDict({wire.SALE: ConfigRecord(config)})
    return wire.take(content, Sale), names


def _share(seller: Seller, sale: Sale, weights: Arrays, context: Context) -> Arrays:
    """Step 3: this client's part of a secure sum, integers as float64; checked before anything is reserved."""
    if seller.share is None:
        raise PolicyRefusal(Reason.TRUST, "this client cannot train for a secure sum")
    protocol = context.state.config_records[RECORD_KEY_STATE]
    if RememberedSum.of(context).plan.sellers != sale.sellers:
        raise PolicyRefusal(Reason.HONEST_SHARE, f"{sale.sellers} sellers, and another number in the protocol")
    sigma, records = event_of(sale.family, sale.epsilon).noise_multiplier, seller.share.records(context)
    if sale.family.steps != 1 or not MIN_LEVELS <= sale.levels <= MAX_LEVELS:
        raise PolicyRefusal(Reason.SCHEDULE, f"{sale.family.steps} steps, {sale.levels} digits of noise")
    (most,) = largest_weights(
        [sigma],
        [records],
        honest=honest_sellers(sale.sellers, sale.honest_share),
        levels=sale.levels,
        clip_norm=sale.clip_norm,
        parameters=sum(array.size for array in weights.values()),
    )
    if not 0 < sale.weight <= most:
        raise PolicyRefusal(Reason.NOISE, f"a weight of {sale.weight} in the sum, where {most} is the most")
    reach = float(protocol["clipping_range"])  # type: ignore[arg-type]
    if largest_share(sale, records) > reach:
        raise PolicyRefusal(Reason.NOISE, f"integers are cut off at {reach:g}, and with them some of the noise")
    job = seller.accept(sale, context, weights)
    share, own = seller.share, ReleaseGrid(1.0 / sale.weight, sale.levels)
    integers = trained(lambda: share.share(weights, job, own))
    return {name: np.asarray(array, dtype=np.float64) for name, array in integers.items()}


def largest_share(sale: Sale, records: float) -> int:
    """The largest integer that a seller with so many records may have to send."""
    return largest_integer(sale.weight * sale.clip_norm * records, sale.levels)


def largest_integer(signal: float, levels: int) -> int:
    """The largest integer that a clipped sum of at most `signal` steps becomes, with noise of so many digits."""
    return math.ceil(1.02 * signal) + 2 + integer_noise.largest(levels)
