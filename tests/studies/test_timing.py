"""Jobs are timed in turn: every one as often as the others, at least three times."""

import math

from privmarket_studies.timing import best_in_turn


def test_jobs_take_turns_and_each_has_a_time():
    calls = []
    best = best_in_turn([lambda: calls.append("a"), lambda: calls.append("b")], 4)
    assert calls == ["a", "b"] * 4
    assert all(0 <= seconds < math.inf for seconds in best)


def test_no_turn_begins_after_the_limit_once_there_were_three():
    calls = []
    best_in_turn([lambda: calls.append("a")], 1000, limit_seconds=0.0)
    assert calls == ["a"] * 3
