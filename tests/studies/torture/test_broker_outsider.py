"""A sample of the outsider's campaign: what it found missing in the checks, and that it can say "missed".

The whole of it is `python -m privmarket_studies.torture.broker_outsider`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from privmarket.broker._errors import ConflictError
from privmarket_fixtures.market import key, make_market
from privmarket_studies.torture import broker_outsider as outsider
from privmarket_studies.torture.broker_outsider import Attempt, Victim, all_attempts, make_victim, run_attempt

STEP = 17
# Each of these passed once.
ONCE_MISSED = (
    "rules alone: a settled round with a fault",
    "a reference that does not print",
    "a proposal to undo what was undone",
    "a payout of more than there is",
    "a token of two hundred years",
    "a webhook without TLS",
    "a webhook for nobody",
    "an older report put back",
    "an older key put back",
    "a name twice in one entry",
    "an idempotency key without a request",
    "an answer that is no JSON",
)


@pytest.fixture(scope="session")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    """The market that is tampered with."""
    return make_victim(tmp_path_factory.mktemp("victim"))


def _attempts(victim: Victim) -> dict[str, Attempt]:
    return {one.name: one for one in all_attempts(victim)}


def test_a_sample_is_found_or_harms_nobody(victim: Victim, tmp_path: Path) -> None:
    attempts = [one for one in all_attempts(victim) if not one.own]
    assert len(attempts) >= 400
    outcomes = {one.name: run_attempt(victim, one, tmp_path) for one in attempts[::STEP]}
    assert {name for name, one in outcomes.items() if one is not None and one.result == "missed"} == set()


@pytest.mark.parametrize("name", ONCE_MISSED)
def test_what_was_missed_once_is_found(victim: Victim, tmp_path: Path, name: str) -> None:
    outcome = run_attempt(victim, _attempts(victim)[name], tmp_path)
    assert outcome is not None
    assert outcome.result == "found"


def test_own_acts_raise_no_alarm(victim: Victim, tmp_path: Path) -> None:
    own = [one for one in all_attempts(victim) if one.own]
    assert len(own) >= 15
    outcomes = [run_attempt(victim, one, tmp_path) for one in own]
    assert [one for one in outcomes if one is None or one.result != "own"] == []


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("an older report put back", "_entry_rules.EntryRules._is_signed_again"),
        ("a webhook set by the operator", "_entry_rules.EntryRules._webhook_set"),
        ("approved by its proposer", "_entry_rules.EntryRules._approved"),
        ("undone twice", "_entry_rules.EntryRules._undoes"),
    ],
)
def test_without_its_rule_a_forgery_is_missed(
    victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    """Broken on purpose: the campaign would notice a check that is gone."""
    monkeypatch.setattr(f"privmarket.broker.{rule}", lambda *_: ())
    outcome = run_attempt(victim, _attempts(victim)[name], tmp_path)
    assert outcome == outsider.Outcome("missed", "no difference was reported")


def test_two_open_proposals_undo_a_booking_once(tmp_path: Path) -> None:
    """Both are open at once; when the first is approved the second has nothing left to undo."""
    market = make_market(f"sqlite:///{tmp_path / 'market.db'}")
    broker, first = market.broker, market.operator
    second = broker.authenticate(broker.register({"role": "operator", "name": "night"}, key(), first)["token"])
    party = market.sellers[0].party_id
    booked = broker.deposit(first, party, 100, key(), "bank 1")["entry"]
    broker.deposit(first, party, 100, key(), "bank 2")
    broker.second_approver_above_micro = 50
    proposals = [broker.undo_booking(first, booked, "typed wrongly", key())["entry"] for _ in range(2)]
    assert broker.approve_booking(second, proposals[0], key())["balance_micro"] == 100
    with pytest.raises(ConflictError, match="was undone already"):
        broker.approve_booking(second, proposals[1], key())
