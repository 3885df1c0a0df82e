import pytest

from privmarket.errors import PrivacyError
from privmarket.privacy.events import (
    GaussianRelease,
    Step,
    SubsampledGaussian,
    from_json,
    release,
    step_counts,
    to_dp_event,
    to_json,
)


def test_ten_events_of_one_step_equal_one_event_of_ten():
    assert step_counts([SubsampledGaussian(1.5, 0.1, 1)] * 10) == step_counts([SubsampledGaussian(1.5, 0.1, 10)])


def test_counts_add_up_over_kinds_and_skip_rounds_without_a_release():
    events = [GaussianRelease(2.0), None, SubsampledGaussian(2.0, 1.0, 3), SubsampledGaussian(2.0, 0.5, 7)]
    assert step_counts(events) == {Step(2.0, 1.0): 4, Step(2.0, 0.5): 7}


def test_dp_event_holds_the_same_counts():
    import dp_accounting

    event = to_dp_event([SubsampledGaussian(1.0, 0.25, 4), SubsampledGaussian(1.0, 0.25, 2)])
    (part,) = event.events
    assert part.count == 6
    assert part.event == dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.0))
    assert isinstance(to_dp_event([None]), dp_accounting.NoOpDpEvent)


def test_release_picks_the_plain_gaussian_where_nothing_is_sampled():
    assert release(3.0) == GaussianRelease(3.0)
    assert release(3.0, 0.5, 2) == SubsampledGaussian(3.0, 0.5, 2)


@pytest.mark.parametrize("event", [GaussianRelease(1.25), SubsampledGaussian(0.7, 0.05, 19)])
def test_json_round_trip(event):
    assert from_json(to_json(event)) == event


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianRelease(0.0),
        lambda: GaussianRelease(float("nan")),
        lambda: GaussianRelease(float("inf")),
        lambda: SubsampledGaussian(1.0, 0.0),
        lambda: SubsampledGaussian(1.0, 1.5),
        lambda: SubsampledGaussian(1.0, float("nan")),
        lambda: SubsampledGaussian(1.0, 0.5, 0),
        lambda: SubsampledGaussian(1.0, 0.5, 1.5),
        lambda: from_json({"noise_multiplier": 1.0}),
    ],
)
def test_bad_events_are_refused_with_a_remedy(make):
    with pytest.raises(PrivacyError) as caught:
        make()
    assert caught.value.hint
