"""The kept page of small markets is what its data render to, and two of its figures come out again."""

import json

import pytest

from privmarket_studies import small_markets


def test_the_page_is_rendered_from_its_data():
    rows = json.loads((small_markets.FOLDER / small_markets.NAME).read_text(encoding="utf-8"))
    assert small_markets.page(rows) == (small_markets.FOLDER / "README.md").read_text(encoding="utf-8")
    assert {(row["law"], row["clients"]) for row in rows} == {
        (distribution, clients) for distribution in small_markets.DISTRIBUTIONS for clients in small_markets.CLIENTS
    }
    for row in rows:
        assert {rule["rule"] for rule in row["rules"]} == set(small_markets.rule_names())
        for rule in row["rules"]:
            if rule["truthful"] and rule["over_budget"] == 0 and rule["underpaid"] == 0:
                assert rule["ratio"] <= 1 + 1e-9, rule


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_kept_market_comes_out_again(monkeypatch):
    monkeypatch.setattr(small_markets.pm, "mechanism_names", lambda: ("pac", "proportional-share"))
    kept = json.loads((small_markets.FOLDER / small_markets.NAME).read_text(encoding="utf-8"))[0]
    again = small_markets.measure(kept["law"], kept["clients"])
    assert again["optimum"] == pytest.approx(kept["optimum"], rel=1e-6)
    by_name = {rule["rule"]: rule["ratio"] for rule in kept["rules"]}
    for rule in again["rules"]:
        assert rule["ratio"] == pytest.approx(by_name[rule["rule"]], rel=1e-6)
