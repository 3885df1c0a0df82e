"""A server that chooses whom a seller masks against: links are hidden, and the sum is opened for fewer than agreed.

Each seller hears from the server whose pieces of keys came, and masks against those. So a server can keep one
seller's pieces from all others and still have it named as a survivor: it makes the survivors look one more than are
in the sum. The subject kept broken on purpose is a seller that confirms such a list.
"""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privmarket.federated.shares import survivors_needed
from privmarket.flower import masks, secure_seller, sum_opening, sum_replies, sum_server, wire
from privmarket.flower.cohort import Cohort, Member
from privmarket.flower.sum_memory import COHORT, LIST, RememberedSum
from tests.hostile.test_secure_sums import STEPS, VICTIM, attacked, reasons
from tests.unit.flower.toy import CLIENTS

PHANTOM, DROPPED = 1000, 1005
NEEDED = survivors_needed(CLIENTS, 2 / 3)


class LinksHidden(sum_server.SumServer):
    """Leaves two of six sellers out of the sum, where one may drop out: for one of them it hides all links."""

    def _collect(self, near, pieces):
        hidden = {node: others if node == PHANTOM else others - {PHANTOM} for node, others in near.items()}
        vectors = super()._collect(hidden, pieces)
        return {node: vector for node, vector in vectors.items() if node not in (PHANTOM, DROPPED)}

    def _enough(self, *_):
        return True

    def _as_survivor(self, step, *arguments):
        """Runs a step in which the phantom is said to have survived."""
        came, self.came = self.came, self.came | {PHANTOM}
        answer = step(*arguments)
        self.came = came
        return answer

    def _agree(self, cohort):
        return self._as_survivor(super()._agree, cohort)

    def _restore(self, cohort, near, keys, signed):
        return self._as_survivor(super()._restore, cohort, near, keys, signed)

    def _unmask(self, vectors, secrets, keys, near, public):
        bare = {node: secret for node, secret in secrets.items() if node != PHANTOM}
        return super()._unmask(vectors, bare, keys, near, public)


def obliging(state, configs):
    """Flower's last step, for a seller that gives out the pieces that it has."""
    active = [node for node in configs["active_nids"] if node in state.rd_seed_share_dict]
    dead = [node for node in configs["dead_nids"] if node in state.sk1_share_dict]
    shares = [state.rd_seed_share_dict[node] for node in active] + [state.sk1_share_dict[node] for node in dead]
    return {"nids": active + dead, "shares": shares}


def restored(restore):
    """The server can do without the phantom's own secret: nobody masked against it."""

    def lenient(pieces, threshold=None):
        return restore(pieces, threshold) if len(pieces) >= (threshold or 0) else bytes(32)

    return lenient


def play(monkeypatch, *, signs, gives):
    monkeypatch.setattr("privmarket.flower.secure.SumServer", LinksHidden)
    monkeypatch.setattr(
        sum_replies, "read_opened", lambda configs, _: dict(zip(configs["nids"], configs["shares"], strict=True))
    )
    monkeypatch.setattr(sum_server.key_pieces, "restore", restored(sum_server.key_pieces.restore))
    if signs:
        monkeypatch.setattr(sum_opening, "_sent_pieces", lambda *_: True)
    if gives:
        monkeypatch.setattr(masks._client, "_unmask", obliging)
    return attacked(monkeypatch)


def test_a_survivor_without_links_lets_a_gullible_seller_open_too_small_a_sum(monkeypatch):
    sent, opened, _ = play(monkeypatch, signs=True, gives=True)
    added = [sent[node] for node in sent if node not in (PHANTOM, DROPPED)]
    assert len(sent) == CLIENTS
    assert len(added) < NEEDED
    np.testing.assert_array_equal(opened, sum(added))


@pytest.mark.parametrize("gives", [False, True])
def test_a_survivor_without_links_is_not_confirmed(gives, monkeypatch):
    sent, opened, grid = play(monkeypatch, signs=False, gives=gives)
    assert len(sent) == CLIENTS
    assert opened is None
    assert "cohort" in reasons(grid)


def test_flowers_own_code_would_have_refused_by_a_missing_entry(monkeypatch):
    """What kept such a sum closed before sellers checked it: the last step looks up a piece that is not there."""
    _, opened, grid = play(monkeypatch, signs=True, gives=False)
    assert opened is None
    assert reasons(grid) == {"failed"}


# A second list of sellers, after pieces of keys went out for the first one.


def second_list():
    """Before the victim is asked for its vector it is shown a list in which another seller sent no keys."""
    shown, grids = [], []

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        stage = None if configs is None else configs.get("stage")
        if message.metadata.dst_node_id != VICTIM:
            return
        if stage == "share_keys":
            shown[:] = [
                RecordDict(
                    {name: ConfigRecord({**record}) for name, record in message.content.config_records.items()}
                )
            ]
        if stage != "collect_masked_vectors":
            return
        members = Cohort.read(shown[0][COHORT][LIST]).members
        gone = next(member.node for member in members if member.node != VICTIM)
        shown[0][COHORT][LIST] = Cohort.of([Member(m.node) if m.node == gone else m for m in members]).write()
        del shown[0][STEPS][str(gone)]
        context = grids[0].contexts[VICTIM]
        before = RememberedSum.of(context).root
        super(type(grids[0]), grids[0]).answer(Message(shown[0], VICTIM, wire.TRAIN))
        roots.append((before, RememberedSum.of(context).root))

    roots = []
    return tamper, grids, roots


@pytest.mark.parametrize("gullible", [False, True])
def test_a_seller_is_shown_one_list_of_sellers(gullible, monkeypatch):
    from tests.hostile import test_secure_sums as sums

    tamper, grids, roots = second_list()
    made = sums.Wire
    monkeypatch.setattr(sums, "Wire", lambda *args, **options: grids.append(made(*args, **options)) or grids[0])
    if gullible:
        check = secure_seller._check_cohort

        def at_any_time(seller, message, configs, context):
            state = context.state.config_records["secaggplus_state"]
            stage, state["current_stage"] = state["current_stage"], "setup"
            try:
                check(seller, message, configs, context)
            finally:
                state["current_stage"] = stage

        monkeypatch.setattr(secure_seller, "_check_cohort", at_any_time)
    _, opened, _ = attacked(monkeypatch, tamper)
    ((before, after),) = roots
    assert (after == before) is not gullible
    assert (opened is None) is gullible
