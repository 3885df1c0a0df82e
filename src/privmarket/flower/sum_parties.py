"""Whether the sellers that a seller is shown of a secure sum are different registered parties of its round."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context

from privmarket.flower.cohort import Cohort, verifies
from privmarket.flower.node_seller import Seller
from privmarket.flower.sum_memory import PARTIES, PROOFS, RememberedSum
from privmarket.privacy.policy import PolicyRefusal, Reason


def check_parties(
    seller: Seller, known: RememberedSum, cohort: Cohort, extra: ConfigRecord, context: Context
) -> None:
    """The sellers are the round's; each that sent keys is another party and signed these keys for this round.

    Nothing is checked where the seller knows of no register.

    Args:
        cohort: the sellers that are shown: all, or in a large sum those at some places.
        extra: the record that they came with, which also holds their registered keys and signatures.

    Raises:
        PolicyRefusal: `cohort`; `broker` where the register cannot be asked.
    """
    registered = seller.registered_parties(context, known.broker_round)
    if registered is None:
        return
    parties, proofs = extra.get(PARTIES), extra.get(PROOFS)
    present = {place: member for place, member in cohort.shown.items() if member.present}
    if not (isinstance(parties, list) and isinstance(proofs, list) and len(parties) == len(proofs) == len(present)):
        raise PolicyRefusal(Reason.COHORT, "a cohort without every seller's registered key")
    if len(set(parties)) != len(parties):
        raise PolicyRefusal(Reason.COHORT, "one registered party is in the cohort twice")
    allowed, in_order = set(registered), sorted(registered)
    # A broker names the round's sellers, a register of the client's own may name more. With a part of the round's a
    # buyer would choose who is in the sum, and how many must be honest.
    of_round = bool(known.broker_round) or cohort.size > len(cohort.shown)
    if of_round and cohort.size != len(in_order):
        raise PolicyRefusal(Reason.COHORT, f"{cohort.size} sellers where {len(in_order)} registered parties sold")
    for (place, member), party, proof in zip(present.items(), parties, proofs, strict=True):
        # Who sees only some of the sellers knows that no party stands twice in the list by the place of each.
        misplaced = cohort.size > len(cohort.shown) and in_order[place] != party
        public = bytes.fromhex(str(party)) if party in allowed and not misplaced else b""
        if not isinstance(proof, bytes) or not verifies(public, proof, member.statement(known.sale)):
            raise PolicyRefusal(Reason.COHORT, f"node {member.node} is no registered party of this round")
