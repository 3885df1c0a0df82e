"""A seller's last two steps of a secure sum: it signs who survived, and helps to open what enough others signed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from numpy.typing import NDArray

from privmarket.flower import guard
from privmarket.flower.cohort import Cohort, sampled_places, sign
from privmarket.flower.hash_tree import root_of
from privmarket.flower.neighbours import MAY_MISS
from privmarket.flower.node_seller import Seller
from privmarket.flower.sum_memory import (
    BRANCHES,
    COHORT,
    LIST,
    PLACES,
    SIGNATURE_BRANCHES,
    SURVIVORS,
    RememberedSum,
)
from privmarket.flower.sum_parties import check_parties
from privmarket.flower.sum_replies import SIGNATURES, ints, text, texts
from privmarket.privacy.policy import PolicyRefusal, Reason


def confirm(configs: ConfigRecord, context: Context) -> RecordDict:
    """Step 4: signs the list of survivors, once, if enough came through."""
    known, survivors = RememberedSum.of(context), configs.get(SURVIVORS)
    state = context.state.config_records[RECORD_KEY_STATE]
    if state.get("current_stage") != Stage.COLLECT_MASKED_VECTORS or known.view or not isinstance(survivors, bytes):
        raise PolicyRefusal(Reason.COHORT, "a list of survivors at the wrong time, or a second one")
    cohort = known.cohort()
    alive, window = cohort.read_survivors(survivors), known.window(cohort, context)
    if not alive[cohort.place_of[context.node_id]]:
        raise PolicyRefusal(Reason.COHORT, "a list of survivors without this seller, whose part has left")
    came, near = int(alive.sum()), int(alive[list(window)].sum())
    if came < known.plan.needed or near < known.plan.threshold:
        raise PolicyRefusal(
            Reason.HONEST_SHARE,
            f"{came} of {known.plan.sellers} sellers came through, {known.plan.needed} are needed",
        )
    if not _sent_pieces({node for place, node in window.items() if alive[place]}, state):
        raise PolicyRefusal(Reason.COHORT, "a survivor whose pieces of keys never came")
    signature = sign(known.private, cohort.statement(survivors))
    replace(known, view=survivors).keep(context)
    return RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({SIGNATURES: [signature]})})


def _sent_pieces(nodes: set[int], state: ConfigRecord) -> bool:
    """Whether these nodes' pieces of keys came, so that this seller masked against them.

    A survivor without that link would make the survivors look more than they are, or cut others out of the sum.
    """
    return nodes <= set(ints(state, "rd_seed_share_dict:K"))


def check_opening(seller: Seller, message: Message, configs: ConfigRecord, context: Context) -> None:
    """Step 5: enough survivors signed the lists that this seller was shown, and the server asks for these."""
    known, extra = RememberedSum.of(context), message.content.config_records.get(COHORT)
    if not known.view or extra is None:
        raise PolicyRefusal(Reason.COHORT, "a sum is to be opened that the survivors have not confirmed")
    cohort = known.cohort()
    alive, window = cohort.read_survivors(known.view), known.window(cohort, context)
    if known.plan.sample:
        cohort = _sampled(known, cohort, alive, extra)
        check_parties(seller, known, cohort, extra, context)
    _check_confirmed(known, cohort, extra)
    living = {node for place, node in window.items() if alive[place]}
    active, dead = (configs.get(key) for key in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
    if not isinstance(active, list) or not isinstance(dead, list) or len(dead) != len(set(dead)):
        raise PolicyRefusal(Reason.MESSAGE, "no lists of survivors and drop-outs")
    # Both secrets of one seller would take the mask off its own vector.
    if sorted(active) != sorted(living) or not set(dead) <= set(window.values()) - living:
        raise PolicyRefusal(Reason.COHORT, "keys of other sellers than the confirmed survivors and drop-outs")


def _sampled(known: RememberedSum, cohort: Cohort, alive: NDArray[np.bool_], extra: ConfigRecord) -> Cohort:
    """The sellers whose signatures are looked at: those that the list of all signatures itself says."""
    part = Cohort.read_part(cohort.size, ints(extra, PLACES), text(extra, LIST), text(extra, BRANCHES))
    if part.root != cohort.root:
        raise PolicyRefusal(Reason.COHORT, "signatures of sellers that are not in the list of all sellers")
    with guard.becomes(Reason.COHORT, ValueError):
        root = root_of(cohort.size, _given(extra), text(extra, SIGNATURE_BRANCHES))
    if sampled_places(root, alive, known.plan.sample).tolist() != ints(extra, PLACES):
        raise PolicyRefusal(Reason.COHORT, "other signatures than those that sellers look at")
    return part


def _check_confirmed(known: RememberedSum, cohort: Cohort, extra: ConfigRecord) -> None:
    """Enough survivors signed: of all, or of the sample."""
    given, needed = _given(extra), known.plan.signed
    if known.plan.sample:
        needed = len(given) - len(given) // MAY_MISS
    confirmed = cohort.confirmations(known.view, given, needed)
    if confirmed < needed:
        raise PolicyRefusal(Reason.COHORT, f"{confirmed} survivors confirmed this sum, {needed} are needed")


def _given(extra: ConfigRecord) -> dict[int, bytes]:
    """Maps the place of each survivor to the signature that the server passed on."""
    places, signatures = ints(extra, PLACES), texts(extra, SIGNATURES)
    if len(places) != len(signatures):
        raise PolicyRefusal(Reason.COHORT, f"{len(signatures)} signatures of {len(places)} survivors")
    return dict(zip(places, signatures, strict=True))
