"""The attacks used in training find what there is to find."""

from __future__ import annotations

import pytest
import torch

from privmarket.mechanisms.learned._markets import Trade
from privmarket.mechanisms.learned._misreports import (
    Misreports,
    ascend,
    best_of,
    cheap_candidates,
    regret,
    sign_steps,
)


def soft_first_price(valuation, epsilon):
    """Sells ε·max(0, 1 − v) and pays what was asked: utility (v' − v)(1 − v')ε', best at v' = (1 + v)/2."""
    sold = epsilon * torch.relu(1 - valuation)
    return Trade(sold, valuation * sold)


def types(count=200):
    generator = torch.Generator().manual_seed(1)
    return torch.rand((2, count), generator=generator) * 0.9, 0.5 + torch.rand((2, count), generator=generator)


def test_candidates_keep_within_what_a_client_may_report():
    v, e = types()
    tried = cheap_candidates(v, e, torch.Generator().manual_seed(0))
    assert tried.valuation.shape == tried.epsilon.shape == (12, 2, 200)
    assert (tried.valuation >= 0).all()
    assert ((tried.epsilon > 0) & (tried.epsilon <= e * (1 + 1e-6))).all()


def test_the_search_comes_close_to_the_known_best_lie():
    v, e = types()
    known = e * (1 - v) ** 2 / 4
    start = best_of(soft_first_price, cheap_candidates(v, e, torch.Generator().manual_seed(0)), v)
    found = sign_steps(soft_first_price, start, v, e)
    gained = regret(soft_first_price(found.valuation, found.epsilon), soft_first_price(v, e), v)
    assert (gained <= known + 1e-6).all()
    assert gained.mean() > 0.8 * known.mean()


def test_plain_ascent_with_small_steps_hardly_moves():
    v, e = types()
    found = ascend(soft_first_price, Misreports(v, e), v, e, steps=25, step_size=0.01)
    gained = regret(soft_first_price(found.valuation, found.epsilon), soft_first_price(v, e), v)
    known = e * (1 - v) ** 2 / 4
    assert 0 < gained.mean() < 0.75 * known.mean()


def test_no_regret_is_found_where_there_is_none():
    def posted(valuation, epsilon):
        sold = epsilon * torch.sigmoid((0.5 - valuation) / 0.05)
        markup = epsilon * 0.05 * torch.nn.functional.softplus((0.5 - valuation) / 0.05)
        return Trade(sold, valuation * sold + markup)

    v, e = (t.double() for t in types())
    start = best_of(posted, cheap_candidates(v, e, torch.Generator().manual_seed(0)), v)
    found = sign_steps(posted, start, v, e)
    assert regret(posted(found.valuation, found.epsilon), posted(v, e), v).max() == pytest.approx(0, abs=1e-9)
