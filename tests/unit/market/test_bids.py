"""Bids: validation, CSV files, data frames."""

from __future__ import annotations

import sys

import numpy as np
import pandas
import pytest

import privmarket as pm
from privmarket.errors import BidError, ConfigurationError, MissingPartError
from privmarket.market._bids import frame_of, read_bids


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"valuation": [0.1, np.nan], "epsilon": [1, 1]}, "valuation[1] is nan"),
        ({"valuation": [0.1, np.inf], "epsilon": [1, 1]}, "valuation[1] is inf"),
        ({"valuation": [-0.1, 1], "epsilon": [1, 1]}, "valuation[0] is -0.1"),
        ({"valuation": [0.1, 1], "epsilon": [1, 0]}, "epsilon[1] is 0.0"),
        ({"valuation": [0.1, 1], "epsilon": [1, -2]}, "epsilon[1] is -2.0"),
        ({"valuation": [0.1, 1], "epsilon": [1, np.nan]}, "epsilon[1] is nan"),
        ({"valuation": [0.1, 1], "epsilon": [1, 1, 1]}, "epsilon: shape (3,)"),
        ({"valuation": [], "epsilon": []}, "no clients"),
        ({"valuation": 1.0, "epsilon": 1.0}, "no clients"),
        ({"valuation": ["a"], "epsilon": [1]}, "not an array of numbers"),
        ({"valuation": [1.0], "epsilon": [1], "data_size": [0]}, "data_size[0] is 0.0"),
        ({"valuation": [1.0], "epsilon": [1], "accuracy": [1.1]}, "accuracy[0] is 1.1"),
        ({"valuation": [[1.0], [-1]], "epsilon": [[1], [1]]}, "valuation[(1, 0)] is -1.0"),
    ],
)
def test_bad_bids_are_named(fields, words):
    with pytest.raises(BidError, match=r".") as caught:
        pm.Bids(**fields)
    assert words in caught.value.message
    assert caught.value.hint


def test_bids_cannot_change_and_own_their_arrays():
    given = np.array([0.5, 0.6])
    bids = pm.Bids(given, [1, 1])
    given[0] = 9.0
    assert bids.valuation[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        bids.valuation[0] = 1.0
    with pytest.raises(AttributeError):
        bids.valuation = given


def test_replace_and_index_keep_every_field():
    bids = pm.Bids([[1, 2], [3, 4]], np.ones((2, 2)), data_size=[[1, 3], [2, 2]], accuracy=[[0, 1], [1, 1]])
    assert bids[1].valuation.tolist() == [3, 4]
    assert bids[0].accuracy.tolist() == [0, 1]
    assert bids.replace(epsilon=np.full((2, 2), 2.0)).data_size.tolist() == [[1, 3], [2, 2]]
    np.testing.assert_allclose(bids.data_share, [[0.25, 0.75], [0.5, 0.5]])
    np.testing.assert_allclose(pm.Bids([1, 2, 3, 4], [1] * 4).data_share, 0.25)


@pytest.mark.parametrize("budget", [0, -1, np.nan, np.inf, [1.0, 2.0, 3.0]])
def test_bad_budgets_are_refused(budget):
    bids = pm.Bids([[1.0, 2.0], [1.0, 2.0]], np.ones((2, 2)))
    with pytest.raises(ConfigurationError, match="budget"):
        pm.mechanism("proportional-share").run(bids, budget)


def test_outcome_figures():
    bids = pm.Bids([0.2, 0.9, 0.4], [1.0, 2.0, 0.5])
    outcome = pm.mechanism("proportional-share").run(bids, 1.0)
    # k = 2: 0.4·1.5 ≤ 1; price min(1/1.5, 0.9).
    np.testing.assert_allclose(outcome.epsilon, [1.0, 0.0, 0.5])
    np.testing.assert_allclose(outcome.payment, [2 / 3, 0.0, 1 / 3])
    assert outcome.total_epsilon == 1.5
    assert outcome.spend == pytest.approx(1.0)
    assert outcome.welfare(bids) == pytest.approx(1 - 0.2 - 0.2)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigurationError, match="unknown mechanism 'pack'") as caught:
        pm.mechanism("pack")
    assert "pac," in caught.value.hint
    with pytest.raises(ConfigurationError, match="unknown setting 'limit'") as caught:
        pm.mechanism("pac", limit=1)
    assert "offer_limit" in caught.value.hint


def write(tmp_path, text):
    path = tmp_path / "bids.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_names_and_optional_columns(tmp_path):
    path = write(tmp_path, "client,epsilon,valuation,data_size\nann,1.5,0.2,600\n\nbob,2,0.3,50\n")
    file = read_bids(path)
    assert file.clients == ("ann", "bob")
    assert file.bids.epsilon.tolist() == [1.5, 2.0]
    assert file.bids.data_size.tolist() == [600.0, 50.0]
    assert file.bids.accuracy is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: missing column 'client'"),
        ("client,valuation\na,1\n", "line 1: missing column 'epsilon'"),
        ("client,valuation,epsilon,datasize\na,1,1,1\n", "line 1: unknown column 'datasize'"),
        ("client,valuation,epsilon\na,0,5,1\n", "line 2: 4 fields where the header has 3"),
        ("client;valuation;epsilon\na;0,5;1,000.5\n", "line 2, field epsilon: '1,000.5'"),
        ("client,valuation,epsilon,epsilon\na,1,1,1\n", "line 1: column 'epsilon' appears twice"),
        ("client,valuation,epsilon\n", "no bids below the header"),
        ("client,valuation,epsilon\na,1,1\na,2,2\n", "line 3, field client: 'a' was already on line 2"),
        ("client,valuation,epsilon\n,1,1\n", "line 2, field client: empty"),
        ("client,valuation,epsilon\na,1\n", "line 2: 2 fields where the header has 3"),
        ("client,valuation,epsilon\na,x,1\n", "line 2, field valuation: 'x'"),
        ("client,valuation,epsilon\na,1,1\nb,nan,1\n", "line 3, field valuation: 'nan'"),
        ("client,valuation,epsilon\na,-1,1\n", "line 2, field valuation: '-1'"),
        ("client,valuation,epsilon\na,inf,1\n", "line 2, field valuation: 'inf'"),
        ("client,valuation,epsilon\na,1,0\n", "line 2, field epsilon: '0'"),
        ("client,valuation,epsilon,accuracy\na,1,1,2\n", "line 2, field accuracy: '2'"),
    ],
)
def test_the_first_thing_wrong_is_named(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(BidError) as caught:
        read_bids(path)
    assert words in caught.value.message
    assert "bids.csv" in caught.value.message
    assert caught.value.hint


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(BidError, match="cannot be read"):
        read_bids(tmp_path / "no.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01client")
    with pytest.raises(BidError):
        read_bids(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('client,valuation,epsilon\na,"1,5",1\n', "field valuation: '1,5'"),
        ("client,valuation,epsilon\na,1,inf\n", "field epsilon: 'inf'"),
        ("client,valuation,epsilon,data_size\na,1,1,inf\n", "field data_size: 'inf'"),
    ],
)
def test_a_decimal_comma_needs_another_separator_and_numbers_are_finite(tmp_path, text, words):
    path = tmp_path / "b.csv"
    path.write_text(text)
    with pytest.raises(BidError, match=words):
        read_bids(path)


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
