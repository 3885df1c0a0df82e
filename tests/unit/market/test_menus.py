"""Price curves."""

import numpy as np
import pytest
from scipy.integrate import quad

from privmarket.errors import ConfigurationError
from privmarket.market._menus import POSTED_PRICE, MenuCurve, RationCurve, from_function


def test_posted_price_is_all_or_nothing():
    assert POSTED_PRICE.share([0, 0.999, 1.0, 2.0]).tolist() == [1, 1, 0, 0]
    assert POSTED_PRICE.unit_payment([0, 0.999, 1.0]).tolist() == [1, 1, 0]
    assert POSTED_PRICE.area == 1.0


def test_payment_is_myersons_integral():
    curve = MenuCurve([0.5, 1.0, 2.5], [0.2, 0.5, 0.1])
    for s in (0.0, 0.3, 0.5, 0.7, 1.0, 2.0, 2.5, 3.0):
        tail = quad(lambda x: float(curve.share(x)), s, 3.0, points=[0.5, 1.0, 2.5], limit=200)[0]
        assert curve.surplus(s) == pytest.approx(tail, abs=1e-9)
        assert curve.unit_payment(s) == pytest.approx(s * float(curve.share(s)) + tail, abs=1e-9)


def test_steps_lie_under_the_function_and_close_to_it():
    curve = from_function(lambda s: np.exp(-s), limit=5.0, steps=500)
    s = np.linspace(0, 4.99, 1000)
    gap = np.exp(-s) - curve.share(s)
    assert gap.min() >= -1e-12
    assert gap.max() <= 5.0 / 500 + 1e-9


@pytest.mark.parametrize(
    ("price", "weight"),
    [
        ([], []),
        ([1, 1], [0.5, 0.5]),
        ([2, 1], [0.5, 0.5]),
        ([0, 1], [0.5, 0.5]),
        ([1], [1.5]),
        ([1], [0]),
        ([1, 2], [1]),
    ],
)
def test_bad_curves_are_refused(price, weight):
    with pytest.raises(ConfigurationError):
        MenuCurve(price, weight)


def test_rising_functions_are_refused():
    with pytest.raises(ConfigurationError, match="fall"):
        from_function(lambda s: s, limit=1.0)


def test_a_ration_may_have_a_floor_below_one():
    assert RationCurve([0.5], [1.0], floor=0.5).floor == 0.5
    with pytest.raises(ConfigurationError, match="floor"):
        RationCurve([0.5], [1.0], floor=-0.1)
