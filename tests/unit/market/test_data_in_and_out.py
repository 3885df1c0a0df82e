"""Bids and outcomes as Python objects and as data frames."""

from __future__ import annotations

import sys

import numpy as np
import pandas
import pytest

import privmarket as pm
from privmarket.errors import BidError, MissingPartError
from privmarket.market._bids import frame_of, read_bids

FRAME = pandas.DataFrame(
    {"client": ["ann", "bob", "cyd"], "valuation": [0.2, 0.9, 0.4], "epsilon": [1.0, 2.0, 0.5], "city": list("abc")}
)
BIDS = pm.Bids([0.2, 0.9, 0.4], [1.0, 2.0, 0.5], client_ids=["ann", "bob", "cyd"])


def test_frame_in_auction_frame_out():
    bids = pm.Bids.from_frame(FRAME)
    assert bids == BIDS
    outcome = pm.mechanism("proportional-share").run(bids, 1.0)
    assert outcome.client_ids == ("ann", "bob", "cyd")
    frame = outcome.to_frame(bids)
    assert frame.loc["ann", "epsilon"] == 1.0
    assert frame["payment"].sum() == pytest.approx(1.0)
    assert frame.loc["cyd", "utility"] == pytest.approx(outcome.payment[2] - 0.4 * 0.5)
    assert bids.to_frame().loc["bob", "valuation"] == 0.9
    assert pm.Bids.from_frame(FRAME.set_index("client")) == BIDS


def test_a_batch_as_a_frame():
    batch = pm.Bids(np.full((2, 3), 0.1), np.ones((2, 3)), client_ids=["a", "b", "c"])
    frame = pm.mechanism("proportional-share").run(batch, 5.0).to_frame()
    assert frame.index.names == ["market", "client"]
    assert frame.loc[(1, "c"), "epsilon"] == 1.0
    assert len(pm.Outcome(np.zeros((2, 3)), np.zeros((2, 3))).to_frame()) == 6


def test_bad_frames_are_named():
    with pytest.raises(BidError, match="no column 'epsilon'"):
        pm.Bids.from_frame(FRAME.drop(columns="epsilon"))
    with pytest.raises(BidError, match="of client 'bob' is nan"):
        pm.Bids.from_frame(FRAME.assign(valuation=[0.1, np.nan, 0.2]))
    with pytest.raises(BidError, match="column 'valuation': not numbers"):
        pm.Bids.from_frame(FRAME.assign(valuation=["x", "y", "z"]))
    with pytest.raises(BidError, match="'ann' appears twice"):
        pm.Bids.from_frame(FRAME.assign(client=["ann", "bob", "ann"]))
    with pytest.raises(BidError, match="2 names for 3 clients"):
        pm.Bids([1, 1, 1], [1, 1, 1], client_ids=["a", "b"])


def test_without_pandas_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPartError, match=r"privmarket\[pandas\]"):
        BIDS.to_frame()


def test_length_iteration_equality_and_names():
    assert len(BIDS) == 3
    assert [bid.client for bid in BIDS] == ["ann", "bob", "cyd"]
    first = next(iter(BIDS))
    assert (first.valuation, first.epsilon, first.data_size) == (0.2, 1.0, None)
    batch = pm.Bids(np.ones((4, 2)), np.ones((4, 2)), client_ids=["x", "y"])
    assert len(batch) == 4
    assert all(market == pm.Bids([1, 1], [1, 1], client_ids=["x", "y"]) for market in batch)
    assert batch[1:, 0].client_ids is None  # one column of markets: no longer one entry per client
    assert BIDS[[0, 2]].client_ids == ("ann", "cyd")
    assert BIDS[[0, 0]].client_ids is None  # drawn with replacement
    assert BIDS[np.array([[0, 1], [2, 1]])].client_ids is None
    assert BIDS.replace(valuation=[1, 1, 1]).client_ids == BIDS.client_ids
    assert pm.Bids([1.0], [1.0]) == pm.Bids([1.0], [1.0])
    assert hash(pm.Bids([1.0], [1.0])) == hash(pm.Bids([1.0], [1.0]))
    assert pm.Bids([1.0], [1.0]) != pm.Bids([1.0], [1.0], data_size=[3])
    assert pm.Bids([1.0], [1.0]) != "bids"
    outcome = pm.Outcome([1.0, 0.0], [0.5, 0.0])
    assert outcome == pm.Outcome([1.0, 0.0], [0.5, 0.0])
    assert outcome != pm.Outcome([1.0, 0.0], [0.4, 0.0])
    assert len(outcome) == 2


def test_what_a_notebook_shows():
    assert repr(BIDS) == "Bids(3 clients: valuation 0.2…0.9, epsilon 0.5…2)"
    assert repr(pm.Bids(np.ones((2, 5)), np.ones((2, 5)))) == "Bids(2 markets of 5 clients: valuation 1, epsilon 1)"
    assert "<td>ann</td>" in BIDS._repr_html_()
    outcome = pm.mechanism("proportional-share").run(BIDS, 1.0)
    assert repr(outcome) == "Outcome(2 of 3 clients sell 1.5 ε for 1)"
    assert "<td>ann</td>" in outcome._repr_html_()
    assert "bob" not in outcome._repr_html_()
    batch = pm.Bids(np.ones((2, 50)), np.ones((2, 50)))
    assert "2 markets" in batch._repr_html_()
    assert "30 more" in batch[0]._repr_html_()
    assert "2 markets of 50 clients" in repr(pm.mechanism("pac").run(batch, 5.0))
    assert pm.Bids([1], [1], client_ids=["<script>"])._repr_html_().count("<script>") == 0


def test_an_offer_above_the_limit_names_the_client():
    with pytest.raises(BidError, match=r"client 'bob' offers ε = 2: above the market's limit epsilon_max = 1.5"):
        pm.mechanism("mean-field-menu", epsilon_max=1.5).run(BIDS, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "client;valuation;epsilon\nann;0,2;1\nbob;0,9;2\ncyd;0,4;0,5\n",
        "client;valuation;epsilon\nann;0.2;1\nbob;0.9;2\ncyd;0.4;0.5\n",
        "client\tvaluation\tepsilon\nann\t0,2\t1\nbob\t0.9\t2\ncyd\t0.4\t0.5\n",
        'client,valuation,epsilon,note\nann,0.2,1,"yes, please"\nbob,0.9,2,\ncyd,0.4,0.5,x\n',
    ],
    ids=["semicolons and decimal commas", "semicolons", "tabs", "an extra column"],
)
def test_csv_as_spreadsheets_write_it(tmp_path, text):
    path = tmp_path / "bids.csv"
    path.write_text(text, encoding="utf-8")
    assert read_bids(path).bids == BIDS


def test_a_batch_of_named_clients_is_a_frame_by_market_and_client():
    frame = frame_of((2, 3), ["a", "b", "c"], {"x": np.arange(6.0).reshape(2, 3)})
    assert frame.index.tolist() == [(m, c) for m in (0, 1) for c in "abc"]
    assert frame.loc[(1, "b"), "x"] == 4.0
