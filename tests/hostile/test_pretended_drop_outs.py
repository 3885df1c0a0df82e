"""A server that colludes with sellers and pretends that honest ones dropped out, to be left with less noise.

The subject kept broken on purpose opens a sum with just more than h survivors, as this package once did: enough
against sellers that collude or drop out, not against a server that does both.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message

import privmarket as pm
from privmarket.federated.shares import colluders_allowed, honest_sellers, survivors_needed
from privmarket.flower import secure, secure_seller, sum_server
from privmarket.flower.neighbours import neighbourhood
from privmarket.privacy import integer_noise
from tests.hostile.test_secure_sums import STEPS, reasons
from tests.unit.flower.toy import Wire, client

SELLERS, SHARE, SIZE, RECORDS = 30, 2 / 3, 4000, 40
HONEST, COLLUDERS = honest_sellers(SELLERS, SHARE), colluders_allowed(SELLERS, SHARE)
OLD = (2 * SELLERS - HONEST) // 2 + 1  # so few survivors opened a sum
WITHIN = 7 / math.sqrt(2 * SIZE)  # deviations of a sample's deviation: passed once in 10¹¹ runs
MODEL = {"w": np.zeros(SIZE, dtype=np.float32)}


class Nothing:
    """Sellers without signal: what they send is their noise."""

    def __init__(self):
        self.sent = {}

    def records(self, context):
        return RECORDS

    def share(self, weights, job, grid):
        self.sent[job.context.node_id] = grid.noisy_integers(np.zeros(SIZE), job.noise)
        return {"w": self.sent[job.context.node_id]}


def vanish(gone):
    """A server that keeps the masked vectors of some honest sellers from its own protocol."""
    stage = []

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        stage[:] = [message, None if configs is None else configs.get("stage")]

    def after(reply):
        if stage[1] == "collect_masked_vectors" and reply.metadata.src_node_id in gone:
            return Message(Error(0, "said to have dropped out"), reply_to=stage[0])
        return reply

    return tamper, after


def play(monkeypatch, survivors):
    """One round in which only so many sellers are said to have come through; shares sent, the sum, the wire."""
    nothing, opened, add_up = Nothing(), [], secure.secure_sum

    def noted(*arguments):
        deliveries, total = add_up(*arguments)
        opened.append(total)
        return deliveries, total

    monkeypatch.setattr(secure, "secure_sum", noted)
    app = client(valuation=0.1, share=nothing, secure_aggregation=True, data_size=float(RECORDS))
    # Colluders are the first sellers, and always come through.
    tamper, after = vanish({1000 + i for i in range(survivors, SELLERS)})
    grid = Wire(app, SELLERS, tamper=tamper, after=after)
    market = pm.flower.server_app(
        initial_weights=lambda: MODEL,
        trust="aggregate",
        mechanism="ration",
        mechanism_settings={"unit_price": 0.9},
        rounds=1,
        budget=200.0,
    )
    pm.flower.run_in_process(market, app, SELLERS, grid=grid)
    assert len(nothing.sent) == SELLERS
    return nothing.sent, opened[0], grid


def noise_left(sent, total):
    """What hides the honest sellers from who knows the colluders' shares, over what was promised to hide them."""
    known = sum(sent[1000 + i] for i in range(COLLUDERS))
    promised = math.sqrt(HONEST) * integer_noise.deviation(2)
    return float(np.std(total["w"] - known)) / promised


def test_pretended_drop_outs_and_colluders_left_too_little_noise_at_the_old_threshold(monkeypatch):
    for side in (secure, secure_seller):
        monkeypatch.setattr(
            side, "neighbourhood", lambda n, share: replace(neighbourhood(n, share), needed=OLD, threshold=OLD)
        )
    sent, total, _ = play(monkeypatch, OLD)
    expected = math.sqrt((OLD - COLLUDERS) / HONEST)
    assert expected < 0.9
    assert noise_left(sent, total) == pytest.approx(expected, rel=WITHIN)


def test_all_promised_noise_is_left_however_many_drop_outs_are_pretended(monkeypatch):
    needed = survivors_needed(SELLERS, SHARE)
    assert needed - COLLUDERS == HONEST
    sent, total, _ = play(monkeypatch, needed)
    assert noise_left(sent, total) == pytest.approx(1.0, rel=WITHIN)


@pytest.mark.parametrize("survivors", [OLD, survivors_needed(SELLERS, SHARE) - 1])
def test_sellers_themselves_do_not_sign_a_list_that_is_too_short(survivors, monkeypatch):
    """The server's own count is taken away: it asks whoever is left to agree."""
    monkeypatch.setattr(sum_server.SumServer, "_enough", lambda *_: True)
    _, total, grid = play(monkeypatch, survivors)
    asked = [m for m in grid.sent if m.content.config_records.get(STEPS, {}).get("stage") == "agree"]
    assert len(asked) == survivors
    assert total is None
    assert reasons(grid) == {"honest-share"}
