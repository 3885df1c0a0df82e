"""A seller's side of a secure sum on Flower: it transports the messages of `secagg.Client`, and trains in between.

The protocol and its checks are in `privmarket.secagg`. Added here are checks against the seller's offer, the
sellers that a broker or register awarded, its policy and wallet, and the size of its own vector.

Under aggregate trust a vector is the seller's clipped sum as integers, with its share of the noise. Under local
trust it is the whole noisy update, rounded; masks then only hide single updates from the server.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from flwr.app import Context, Message, RecordDict

from privmarket.flower import _refusals as refusals, _wire as wire
from privmarket.flower._seller import MarketClientApp, Seller, event_of, trained
from privmarket.flower._wire import Arrays, Offered, Sale
from privmarket.privacy._noise import MAX_LEVELS, MIN_LEVELS, largest_noise
from privmarket.privacy._policy import PolicyRefusal, Reason
from privmarket.privacy._release import ReleaseGrid
from privmarket.secagg import (
    Client,
    InputRequest,
    MaskedInput,
    Roster,
    SumRefusal,
    SumTerms,
    SurvivorList,
    answer,
    honest_sellers,
    largest_weights,
)

ROUNDED_STEPS = 2**21
"""Under local trust a coordinate is rounded to its bound over this."""
_REASONS = {
    "message": Reason.MESSAGE,
    "terms": Reason.NOISE,
    "members": Reason.COHORT,
    "keys": Reason.COHORT,
    "shares": Reason.COHORT,
    "survivors": Reason.COHORT,
    "input": Reason.NOISE,
    "repeated": Reason.UNSOLD,
    "disk": Reason.FAILED,
}


class SecureClientApp(MarketClientApp):
    """A client app whose updates leave only masked."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers a message, or says in one word why not."""
        # Flower also takes "train.default" for "train".
        if message.metadata.message_type not in (wire.TRAIN, wire.BID, wire.RECEIPT):
            refused = PolicyRefusal(Reason.MESSAGE, f"a message of type {message.metadata.message_type}")
            return refusals.refuse(message, context, refused)
        return super().__call__(message, context)


def secure_client(seller: Seller) -> SecureClientApp:
    """A client app whose updates leave only masked."""
    app = SecureClientApp()
    app.seller = seller
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)

    @app.train()
    def step(message: Message, context: Context) -> Message:
        sent = wire.take_sum(message.content)
        with _refusals():
            seller.check_journal(context)
            client = Client(
                seller.signer(context),
                seller.journal(context),
                consent=lambda roster, signature: _check_roster(seller, roster, signature, context),
                minimum_cohort=_minimum_cohort(seller, context),
            )
            if isinstance(sent, InputRequest):
                reply = wire.put_sum(RecordDict(), _add(seller, client, sent, message.content, context))
            else:
                reply = wire.put_sum(RecordDict(), answer(client, sent))
                if isinstance(sent, SurvivorList):
                    seller.note_list(context, sent)
        return Message(reply, reply_to=message)

    return app


@contextmanager
def _refusals() -> Iterator[None]:
    """A context in which a refusal of the protocol becomes one of the seller's words."""
    try:
        yield
    except SumRefusal as error:
        raise PolicyRefusal(_REASONS[error.cause], str(error)) from error


def _minimum_cohort(seller: Seller, context: Context) -> int:
    """The fewest sellers of a sum: the policy's under aggregate trust, any number under local trust."""
    offered = wire.take(context.state, Offered, None)
    return seller.policy.minimum_cohort if offered is None or offered.trust == "aggregate" else 1


def _check_roster(seller: Seller, roster: Roster, signature: bytes, context: Context) -> None:
    """Refuses a round for which this seller made no offer, or whose roster is not that of the awarded sellers.

    Raises:
        PolicyRefusal: `unsold` without an offer, or after its sale; `offer` for another round or honest share.
        SumRefusal: `members` for other sellers than the awarded ones, or a roster that the register of the policy
            did not sign.
    """
    offered = wire.take(context.state, Offered, None)
    if offered is None or not offered.epsilon > 0:
        raise PolicyRefusal(Reason.UNSOLD, "a secure sum without an offer, or a second one for the same offer")
    if (roster.task, roster.round) != (offered.run, offered.number):
        raise PolicyRefusal(Reason.OFFER, f"a secure sum of round {roster.round}, offered for {offered.number}")
    if roster.honest_share != offered.honest_share:
        raise PolicyRefusal(
            Reason.HONEST_SHARE, f"an honest share of {roster.honest_share:g}, offered for {offered.honest_share:g}"
        )
    registered = seller.registered_parties(context, offered.broker_round)
    if registered is not None:
        roster.check_members({bytes.fromhex(key) for key in registered})
    register = seller.policy.register_key
    if register is not None and offered.trust == "aggregate":
        roster.check_signature(register, signature)


def _add(
    seller: Seller, client: Client, request: InputRequest, content: RecordDict, context: Context
) -> MaskedInput:
    """Checks an order against the terms of the sum, trains for it, and masks the result."""
    terms = client.accept(request)
    sale = wire.take(content, Sale)
    weights = wire.read_arrays(content, wire.WEIGHTS)
    if terms.binding != binding(sale, array_layout(weights)):
        raise PolicyRefusal(Reason.COHORT, "another order than the one that all sellers of the sum agreed on")
    if terms.sellers != sale.sellers or terms.length != sum(array.size for array in weights.values()):
        raise PolicyRefusal(
            Reason.HONEST_SHARE, f"{sale.sellers} sellers in the order, {terms.sellers} in the protocol"
        )
    if sale.trust == "aggregate":
        sent = _share(seller, sale, weights, terms, context)
        vectors = list(sent.values())
    else:
        sent = _update(seller, sale, weights, terms, context)
        vectors = [rounded(array, sale.reach) for array in sent.values()]
    seller.close(sale, sent, context)
    return client.mask(request.sum, np.concatenate([vector.ravel() for vector in vectors]))


def _share(seller: Seller, sale: Sale, weights: Arrays, terms: SumTerms, context: Context) -> Arrays:
    """This client's part of a sum under aggregate trust, int64 by name; checked before anything is reserved."""
    if seller.share is None:
        raise PolicyRefusal(Reason.TRUST, "this client cannot train for a secure sum")
    if sale.family.steps != 1 or not MIN_LEVELS <= sale.levels <= MAX_LEVELS:
        raise PolicyRefusal(Reason.SCHEDULE, f"{sale.family.steps} steps, {sale.levels} digits of noise")
    sigma = event_of(sale.family, sale.epsilon).noise_multiplier
    records = seller.share.records(context)
    (most,) = largest_weights(
        [sigma],
        [records],
        honest=honest_sellers(terms.sellers, terms.honest_share),
        levels=sale.levels,
        clip_norm=sale.clip_norm,
        parameters=terms.length,
    )
    if not 0 < sale.weight <= most:
        raise PolicyRefusal(Reason.NOISE, f"a weight of {sale.weight} in the sum, where {most} is the most")
    if largest_share(sale, records) > terms.largest:
        raise PolicyRefusal(Reason.NOISE, f"the sum carries integers up to {terms.largest}, this seller needs more")
    job = seller.accept(sale, context, weights)
    share = seller.share
    grid = ReleaseGrid(1.0 / sale.weight, sale.levels)
    integers = trained(lambda: share.share(weights, job, grid))
    return {name: np.asarray(integers[name], dtype=np.int64) for name in weights}


def _update(seller: Seller, sale: Sale, weights: Arrays, terms: SumTerms, context: Context) -> Arrays:
    """This client's whole update under local trust, times its share of the average."""
    if not (math.isfinite(sale.reach) and sale.reach > 0) or terms.largest != ROUNDED_STEPS:
        raise PolicyRefusal(Reason.NOISE, f"coordinates up to {sale.reach} in {terms.largest} steps")
    job = seller.accept(sale, context, weights)
    update = trained(lambda: seller.train(weights, job))
    return {name: np.float32(sale.share) * update[name] for name in weights}


def rounded(array: np.ndarray, reach: float) -> np.ndarray:
    """An update's coordinates as integers: cut off at ±reach, then rounded to reach/2²¹. int64, same shape."""
    cut = np.clip(array.astype(np.float64), -reach, reach)
    return np.asarray(np.rint(cut * (ROUNDED_STEPS / reach)), dtype=np.int64)


def array_layout(arrays: Mapping[str, np.ndarray]) -> str:
    """The names and order of the arrays in a vector; a repeated array would release its numbers twice."""
    return repr([(name, tuple(map(int, array.shape))) for name, array in arrays.items()])


def binding(sale: Sale, layout: str) -> bytes:
    """A hash of what all orders of a sum have in common, since sellers rely on each other's noise."""
    common = (sale.run, sale.number, sale.broker_round, sale.trust, sale.honest_share)
    of_sum = (sale.sellers, sale.cohorts, sale.levels, sale.reach)
    return hashlib.sha256(repr((*common, *of_sum, layout)).encode()).digest()


def largest_share(sale: Sale, records: float) -> int:
    """The largest integer that a seller with so many records may have to send."""
    signal = sale.weight * sale.clip_norm * records
    return math.ceil(1.02 * signal) + 2 + largest_noise(sale.levels)
