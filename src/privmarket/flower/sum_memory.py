"""What a node remembers of the secure sum that it takes part in, and the names of the records of its steps."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from flwr.app import ConfigRecord, Context

from privmarket.flower.cohort import Cohort
from privmarket.flower.neighbours import Neighbourhood
from privmarket.flower.sum_replies import ints, text
from privmarket.privacy.policy import PolicyRefusal, Reason

AGREE = "agree"  # our step between masked vectors and opening
VERSION = "protocol"  # which version of the secure sum the server speaks
NAMES = "names"  # the names of the arrays in an order, one a line
COHORT = "privmarket-cohort"  # the record that carries cohort and signatures
LIST, PLACES, BRANCHES = "list", "places", "branches"  # sellers, where they stand, the proof that they stand there
PARTIES, PROOFS = "parties", "proofs"
SURVIVORS, SIGNATURE_BRANCHES = "survivors", "signature-branches"
_SUM = "privmarket-sum"  # in the node's state


def offer_of(memory: ConfigRecord) -> str:
    """All that a node remembers of its offer, in one line."""
    return repr(sorted(memory.items()))


@dataclass(frozen=True)
class RememberedSum:
    """What a node remembers of the sum that it takes part in; messages may be handled by different processes.

    Attributes:
        offer: the offer that it began with, see `offer_of`; a sum serves one offer to its end.
        sale, broker_round: name the round of that offer, and that round at a broker, "" without one.
        private: its signing key.
        listed, places, root: the sellers that it was shown; no places where these are all.
        view: the list of survivors that it signed.
    """

    plan: Neighbourhood
    offer: str
    sale: str = ""
    broker_round: str = ""
    private: bytes = b""
    listed: bytes = b""
    places: tuple[int, ...] = ()
    root: bytes = b""
    view: bytes = b""

    @classmethod
    def of(cls, context: Context) -> RememberedSum:
        """What this node remembers; a refusal if no sum has begun."""
        memory = context.state.get(_SUM)
        if not isinstance(memory, ConfigRecord):
            raise PolicyRefusal(Reason.MESSAGE, "a step of a sum that has not begun")
        plan = Neighbourhood(*ints(memory, "plan"))
        private, listed, root, view = (text(memory, key) for key in ("private", "listed", "root", "view"))
        offer, sale, broker_round = (str(memory[key]) for key in ("offer", "sale", "broker-round"))
        places = tuple(ints(memory, "places"))
        return cls(plan, offer, sale, broker_round, private, listed, places, root, view)

    def keep(self, context: Context) -> None:
        """Writes these fields into the node's state, where the next message finds them."""
        plan = self.plan
        known = {"private": self.private, "listed": self.listed, "root": self.root, "view": self.view}
        record = ConfigRecord({**known})
        record["plan"] = list(astuple(plan))
        record["places"], record["offer"] = list(self.places), self.offer
        record["sale"], record["broker-round"] = self.sale, self.broker_round
        context.state[_SUM] = record

    def check_offer(self, offer: ConfigRecord | None) -> None:
        """Refuses to go on for another offer: what was checked when the sum began was checked for this one.

        Raises:
            PolicyRefusal: `offer`.
        """
        if offer is None or offer_of(offer) != self.offer:
            raise PolicyRefusal(Reason.OFFER, "another offer than the one for which the sum began")

    def cohort(self) -> Cohort:
        """The cohort, limited to the sellers that this node was shown."""
        places = self.places or range(self.plan.sellers)
        return Cohort.remembered(self.plan.sellers, places, self.listed, self.root)

    def window(self, cohort: Cohort, context: Context) -> dict[int, int]:
        """place → node, of this node's neighbours and itself."""
        if self.places:  # of a large sum it was shown its window and nothing else, which it checked then
            return {place: member.node for place, member in cohort.shown.items()}
        own = cohort.place_of.get(context.node_id)
        if own is None:
            raise PolicyRefusal(Reason.COHORT, "a cohort without this seller")
        places = self.plan.window_of(own, cohort.ring)
        if not places <= set(cohort.shown):
            raise PolicyRefusal(Reason.COHORT, "other neighbours than those that follow from the keys")
        return {place: cohort.shown[place].node for place in places}
