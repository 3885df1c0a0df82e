"""The market that tests of `broker verify` tamper with, made once."""

from __future__ import annotations

import pytest

from privmarket_fixtures.tampering import SIGNING, Target, checked, make_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A market in which everybody signs everything, closed, and what a witness saw of it."""
    made = make_target(tmp_path_factory.mktemp("target"))
    clean = checked(made.file, now_ms=made.now_ms, witnessed=[made.seen], public_key=SIGNING.public)
    assert clean.differences == clean.accepted == ()
    return made
