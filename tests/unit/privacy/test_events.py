from dataclasses import asdict

import pytest

from privmarket.errors import PrivacyError
from privmarket.privacy._events import PrivacyEvent, Step, from_json, step_counts, to_dp_event


def test_ten_events_of_one_step_equal_one_event_of_ten():
    assert step_counts([PrivacyEvent(1.5, 0.1, 1)] * 10) == step_counts([PrivacyEvent(1.5, 0.1, 10)])


def test_counts_add_up_over_kinds_and_skip_rounds_without_a_release():
    events = [PrivacyEvent(2.0), None, PrivacyEvent(2.0, 1.0, 3), PrivacyEvent(2.0, 0.5, 7)]
    assert step_counts(events) == {Step(2.0, 1.0): 4, Step(2.0, 0.5): 7}


def test_dp_event_holds_the_same_counts():
    import dp_accounting

    event = to_dp_event([PrivacyEvent(1.0, 0.25, 4), PrivacyEvent(1.0, 0.25, 2)])
    (part,) = event.events
    assert part.count == 6
    assert part.event == dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.0))
    assert isinstance(to_dp_event([None]), dp_accounting.NoOpDpEvent)
    (part,) = to_dp_event([PrivacyEvent(1.0)]).events
    assert part.event == dp_accounting.GaussianDpEvent(1.0)  # nothing is sampled


@pytest.mark.parametrize("event", [PrivacyEvent(1.25), PrivacyEvent(0.7, 0.05, 19)])
def test_json_round_trip(event):
    assert from_json(asdict(event)) == event


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrivacyEvent(0.0),
        lambda: PrivacyEvent(float("nan")),
        lambda: PrivacyEvent(float("inf")),
        lambda: PrivacyEvent(1.0, 0.0),
        lambda: PrivacyEvent(1.0, 1.5),
        lambda: PrivacyEvent(1.0, float("nan")),
        lambda: PrivacyEvent(1.0, 0.5, 0),
        lambda: PrivacyEvent(1.0, 0.5, 1.5),
        lambda: from_json({"noise_multiplier": 1.0}),
    ],
)
def test_bad_events_are_refused_with_a_remedy(make):
    with pytest.raises(PrivacyError) as caught:
        make()
    assert caught.value.hint
