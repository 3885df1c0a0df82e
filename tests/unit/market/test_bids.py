import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import BidError, ConfigurationError


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"valuation": [0.1, np.nan], "epsilon": [1, 1]}, "valuation[1] is nan"),
        ({"valuation": [0.1, np.inf], "epsilon": [1, 1]}, "valuation[1] is inf"),
        ({"valuation": [-0.1, 1], "epsilon": [1, 1]}, "valuation[0] is -0.1"),
        ({"valuation": [0.1, 1], "epsilon": [1, 0]}, "epsilon[1] is 0.0"),
        ({"valuation": [0.1, 1], "epsilon": [1, -2]}, "epsilon[1] is -2.0"),
        ({"valuation": [0.1, 1], "epsilon": [1, np.nan]}, "epsilon[1] is nan"),
        ({"valuation": [0.1, 1], "epsilon": [1, 1, 1]}, "epsilon: shape (3,)"),
        ({"valuation": [], "epsilon": []}, "no clients"),
        ({"valuation": 1.0, "epsilon": 1.0}, "no clients"),
        ({"valuation": ["a"], "epsilon": [1]}, "not an array of numbers"),
        ({"valuation": [1.0], "epsilon": [1], "data_size": [0]}, "data_size[0] is 0.0"),
        ({"valuation": [1.0], "epsilon": [1], "accuracy": [1.1]}, "accuracy[0] is 1.1"),
        ({"valuation": [[1.0], [-1]], "epsilon": [[1], [1]]}, "valuation[(1, 0)] is -1.0"),
    ],
)
def test_bad_bids_are_named(fields, words):
    with pytest.raises(BidError, match=r".") as caught:
        pm.Bids(**fields)
    assert words in caught.value.message
    assert caught.value.hint


def test_bids_cannot_change_and_own_their_arrays():
    given = np.array([0.5, 0.6])
    bids = pm.Bids(given, [1, 1])
    given[0] = 9.0
    assert bids.valuation[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        bids.valuation[0] = 1.0
    with pytest.raises(AttributeError):
        bids.valuation = given


def test_replace_and_index_keep_every_field():
    bids = pm.Bids([[1, 2], [3, 4]], np.ones((2, 2)), data_size=[[1, 3], [2, 2]], accuracy=[[0, 1], [1, 1]])
    assert bids[1].valuation.tolist() == [3, 4]
    assert bids[0].accuracy.tolist() == [0, 1]
    assert bids.replace(epsilon=np.full((2, 2), 2.0)).data_size.tolist() == [[1, 3], [2, 2]]
    np.testing.assert_allclose(bids.data_share, [[0.25, 0.75], [0.5, 0.5]])
    np.testing.assert_allclose(pm.Bids([1, 2, 3, 4], [1] * 4).data_share, 0.25)


@pytest.mark.parametrize("budget", [0, -1, np.nan, np.inf, [1.0, 2.0, 3.0]])
def test_bad_budgets_are_refused(budget):
    bids = pm.Bids([[1.0, 2.0], [1.0, 2.0]], np.ones((2, 2)))
    with pytest.raises(ConfigurationError, match="budget"):
        pm.mechanism("proportional-share").run(bids, budget)


def test_outcome_figures():
    bids = pm.Bids([0.2, 0.9, 0.4], [1.0, 2.0, 0.5])
    outcome = pm.mechanism("proportional-share").run(bids, 1.0)
    # k = 2: 0.4·1.5 ≤ 1; price min(1/1.5, 0.9).
    np.testing.assert_allclose(outcome.epsilon, [1.0, 0.0, 0.5])
    np.testing.assert_allclose(outcome.payment, [2 / 3, 0.0, 1 / 3])
    assert outcome.total_epsilon == 1.5
    assert outcome.spend == pytest.approx(1.0)
    assert outcome.welfare(bids) == pytest.approx(1 - 0.2 - 0.2)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigurationError, match="unknown mechanism 'pack'") as caught:
        pm.mechanism("pack")
    assert "pac," in caught.value.hint
    with pytest.raises(ConfigurationError, match="unknown setting 'limit'") as caught:
        pm.mechanism("pac", limit=1)
    assert "offer_limit" in caught.value.hint
