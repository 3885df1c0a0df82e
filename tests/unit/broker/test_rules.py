"""A rule that does something else has another version: what each rule does is kept beside its version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privmarket.broker import _rules as rules
from privmarket.mechanisms import learned_names, mechanism, mechanism_names

KEPT = Path(__file__).with_name("rule_versions.json")
CLASSICAL = [name for name in mechanism_names() if name not in learned_names() and ":" not in name]


@pytest.mark.parametrize("name", CLASSICAL)
def test_what_a_rule_does_goes_with_its_version(name: str) -> None:
    """After a change: raise the rule's `version`, leave the old form in `rules.RETIRED`, add the new line here."""
    known: dict[str, list[str]] = json.loads(KEPT.read_text())
    now = rules.version_of(mechanism(name))
    assert name in known, f'add "{name}": ["{now}"] to {KEPT.name}'
    assert known[name][-1] == now
    versions = [one.rpartition("/")[2].partition("+")[0] for one in known[name]]
    assert len(set(versions)) == len(versions), "two forms under one version"
    missing = [one for one in versions[:-1] if (name, one) not in rules.RETIRED]
    assert missing == [], "an older form is gone, and its rounds cannot be replayed"
