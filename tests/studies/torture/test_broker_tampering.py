"""A sample of the tampering campaign, and theft: what somebody with the log's key could do at worst.

The whole campaign is `python -m privmarket_studies.torture.broker_tampering`; its last result is in
docs/results/broker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from privmarket.broker._log import Entry
from privmarket.broker._signatures import canonical
from privmarket_fixtures.tampering import SIGNING, Target, checked, entries_of, resigned, rewritten
from privmarket_studies.torture import broker_tampering as campaign
from privmarket_studies.torture.broker_tampering import run_edit

STEPS = {"tables": 9, "schema": 4, "re-chained": 6, "history": 8, "appended": 3}


@pytest.mark.parametrize("kind", campaign.CLASSES)
def test_a_sample_of_the_campaign(target: Target, tmp_path: Path, kind: str) -> None:
    edits = [one for one in campaign.all_edits(target) if one.kind == kind]
    outcomes = {edit.name: run_edit(target, edit, tmp_path) for edit in edits[:: STEPS[kind]]}
    assert {name for name, found in outcomes.items() if found is not None and found.result == "missed"} == set()
    assert sum(found is not None for found in outcomes.values()) >= min(len(edits) // STEPS[kind] // 2, 5)


def test_the_campaign_says_missed_where_a_check_is_missing(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: without one rule of the check, its forgery passes, and the campaign says so."""
    edits = {one.name: one for one in campaign.appended_edits(target)}
    edit = edits["a rejection invented"]
    assert run_edit(target, edit, tmp_path).result == "found"
    monkeypatch.setattr("privmarket.broker._entry_rules.EntryRules._signed", lambda *_: iter(()))
    assert run_edit(target, edit, tmp_path).result == "missed"


@pytest.mark.parametrize("name", ["a policy", "a partial index", "another search path", "a rule", "a default"])
def test_another_schema_is_found_on_postgresql(postgres_server: str, name: str) -> None:
    assert campaign.run_on_postgresql(postgres_server, campaign.POSTGRESQL_SCHEMA[name]).result == "found"


# ---- theft ----------------------------------------------------------------------------------------------------


def test_theft_is_found_whatever_the_version(target: Target, tmp_path: Path) -> None:
    """The budget goes to a party that never bid, with the log's key, through settlement.

    Even a buyer that plays along, and opens its round with a version that nobody has, leaves differences that no
    auditor can accept.
    """
    thefts = [one for one in campaign.appended_edits(target) if one.name.startswith("theft")]
    assert len(thefts) >= 9
    for theft in thefts:
        rewritten(target.file, tmp_path / "theft.db", theft.change)
        resigned(tmp_path / "theft.db", SIGNING)
        late = entries_of(tmp_path / "theft.db")[-1].at_ms
        assert checked(tmp_path / "theft.db", now_ms=late, accept=["rule@132"]).differences, theft.name

    unknown = "proportional-share/9.9.9+0000000000000000"

    def opened_with_it(entries: list[Entry]) -> list[Entry]:
        with_version = []
        for one in thefts[0].change(entries):
            fields = one.fields()
            if one.subject == target.rounds["open"] and "mechanism_version" in fields:
                one = one._replace(details=canonical({**fields, "mechanism_version": unknown}))
            with_version.append(one)
        return with_version

    rewritten(target.file, tmp_path / "theft.db", opened_with_it)
    resigned(tmp_path / "theft.db", SIGNING)
    late = entries_of(tmp_path / "theft.db")[-1].at_ms
    differences = checked(tmp_path / "theft.db", now_ms=late).differences
    assert any("sells without a bid that counts" in one for one in differences)
    assert any("--accept rule@132" in one for one in differences)
    accepted = checked(tmp_path / "theft.db", now_ms=late, accept=["rule@132"]).differences
    assert any("sells without a bid that counts" in one for one in accepted)
