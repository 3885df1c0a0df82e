"""Menu curves on disk: stopping, going on, and what is left behind."""

from __future__ import annotations

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import scenario
from privmarket.market._objectives import TOTAL_EPSILON
from privmarket.mechanisms.learned._menu_training import CurveSearch, DesignPoint, learn_menus, search_called
from privmarket.mechanisms.learned._weights import WeightsError, load

SEARCH = CurveSearch(prices=8, steps=4, markets=2, validation=4)
POINTS = [
    DesignPoint(scenario("uniform"), 8, 4.0, TOTAL_EPSILON),
    DesignPoint(scenario("bimodal"), 8, 4.0, TOTAL_EPSILON),
]


def curves(path):
    stored = load(path, "mfg-menunet")
    return {name: np.asarray(array) for name, array in stored.arrays.items()}, stored.facts["curves"]


def test_a_stopped_session_goes_on_with_the_next_curve_and_ends_the_same(tmp_path):
    straight = learn_menus(POINTS, tmp_path / "a.safetensors", search=SEARCH)
    assert straight.resumed_at == 0

    def stop_in_the_second(progress):
        if progress.curve == 1:
            raise KeyboardInterrupt

    out = tmp_path / "b.safetensors"
    with pytest.raises(KeyboardInterrupt):
        learn_menus(POINTS, out, search=SEARCH, report=stop_in_the_second)
    assert not out.exists()
    done = learn_menus(POINTS, out, search=SEARCH)
    assert done.resumed_at == 1
    known, found = curves(straight.weights), curves(done.weights)
    assert found[1] == known[1]
    for name, array in known[0].items():
        np.testing.assert_array_equal(found[0][name], array)
    lines = done.curve.read_text().splitlines()
    assert lines[0] == "curve,step,objective"
    assert len(lines) == 1 + 2 * SEARCH.steps


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    out = tmp_path / "w.safetensors"
    learn_menus(POINTS[:1], out, search=SEARCH)
    with pytest.raises(WeightsError, match="other settings"):
        learn_menus(POINTS[:1], out, seed=1, search=SEARCH)


def test_the_quick_profile_searches_less():
    quick, full = search_called("quick"), search_called("full")
    assert quick.steps * quick.markets < 0.5 * full.steps * full.markets
    with pytest.raises(ConfigurationError, match="unknown profile"):
        search_called("slow")
