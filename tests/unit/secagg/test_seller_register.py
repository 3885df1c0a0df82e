"""A register in a folder: it signs one roster per round, of sellers that it knows."""

import os
import stat
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.errors import ConfigurationError
from privmarket.secagg import Roster, SellerRegister, SumRefusal
from tests.unit.secagg.parties import IDENTITIES, STRANGER

ROSTER = Roster("run", 0, tuple(one.public_key for one in IDENTITIES[:7]), 2 / 3)


@pytest.fixture
def register(tmp_path):
    made = SellerRegister.make(tmp_path / "register")
    for number, one in enumerate(IDENTITIES[:8]):
        made.add(one.public_key.hex(), f"clinic {number}")
    return made


def test_a_roster_of_known_sellers_is_signed(register):
    signature = SellerRegister(register.folder).sign(ROSTER)
    ROSTER.check_signature(register.public_key, signature)
    assert register.sign(ROSTER) == signature  # a server may ask again


@pytest.mark.parametrize(
    ("roster", "cause"),
    [
        (replace(ROSTER, members=tuple(sorted([*ROSTER.members, STRANGER.public_key]))), "members"),
        (replace(ROSTER, members=ROSTER.members[1:]), "repeated"),
        (replace(ROSTER, honest_share=0.9), "repeated"),
        (replace(ROSTER, members=ROSTER.members[::-1]), "members"),
    ],
)
def test_strangers_and_second_rosters_are_not(register, roster, cause):
    register.sign(ROSTER)
    with pytest.raises(SumRefusal) as caught:
        SellerRegister(register.folder).sign(roster)
    assert caught.value.cause == cause


def test_rounds_go_forward_and_tasks_are_apart(register):
    register.sign(replace(ROSTER, round=3))
    for earlier in (replace(ROSTER, round=2), replace(ROSTER, round=3, members=ROSTER.members[1:])):
        with pytest.raises(SumRefusal) as caught:
            register.sign(earlier)
        assert caught.value.cause == "repeated"
    register.sign(replace(ROSTER, round=4))
    register.sign(replace(ROSTER, task="another"))


def test_a_register_that_forgets_signs_two_rosters(register):
    """The subject broken on purpose: without its book the server gets a second roster for the round."""
    register.sign(ROSTER)
    (register.folder / "signed.jsonl").unlink()
    part = replace(ROSTER, members=ROSTER.members[1:])
    part.check_signature(register.public_key, register.sign(part))


def test_a_damaged_book_signs_nothing(register):
    register.sign(ROSTER)
    (register.folder / "signed.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(SumRefusal, match="damaged"):
        register.sign(replace(ROSTER, round=1))


def test_one_key_and_one_name_per_party(register):
    for key, name in (
        (IDENTITIES[0].public_key.hex(), "another"),
        (STRANGER.public_key.hex(), "clinic 0"),
        ("12", "short"),
        (STRANGER.public_key.hex(), "two\nlines"),
        (STRANGER.public_key.hex(), ""),
    ):
        with pytest.raises(ConfigurationError):
            register.add(key, name)
    assert len(register.sellers()) == 8


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_its_owner_reads_the_key(register):
    assert stat.S_IMODE((register.folder / "key").stat().st_mode) == 0o600


def test_a_key_is_never_replaced(register, tmp_path):
    with pytest.raises(ConfigurationError, match="never replaced"):
        SellerRegister.make(register.folder)
    with pytest.raises(ConfigurationError, match="no register"):
        SellerRegister(tmp_path)


def test_rosters_travel_as_text():
    assert Roster.from_json(ROSTER.to_json()) == ROSTER
    for text in (
        "",
        "{}",
        "[]",
        ROSTER.to_json().replace("0.66", "-0.66"),
        ROSTER.to_json().replace('"run"', '""'),
    ):
        with pytest.raises(SumRefusal):
            Roster.from_json(text)


def test_the_commands(tmp_path):
    run = CliRunner()
    folder = str(tmp_path / "register")
    key = run.invoke(app, ["register", "init", folder])
    assert bytes.fromhex(key.stdout.strip()) == SellerRegister(folder).public_key
    for number, one in enumerate(IDENTITIES[:7]):
        added = run.invoke(app, ["register", "add", folder, one.public_key.hex(), f"clinic {number}"])
    assert added.stdout.endswith("has 7 sellers\n")
    assert "clinic 3" in run.invoke(app, ["register", "show", folder]).stdout
    place = tmp_path / "roster.json"
    place.write_text(ROSTER.to_json(), encoding="utf-8")
    signed = run.invoke(app, ["register", "sign", folder, str(place)])
    ROSTER.check_signature(SellerRegister(folder).public_key, bytes.fromhex(signed.stdout.strip()))
    place.write_text(replace(ROSTER, members=ROSTER.members[1:]).to_json(), encoding="utf-8")
    assert run.invoke(app, ["register", "sign", folder, str(place)]).exit_code != 0
    assert run.invoke(app, ["register", "sign", folder, str(tmp_path / "none.json")]).exit_code != 0
