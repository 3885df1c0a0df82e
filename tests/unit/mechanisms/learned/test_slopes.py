"""Derivative intervals: whatever a function does on a box stays inside, and small boxes are tight."""

import pytest

torch = pytest.importorskip("torch")

from privmarket.errors import ConfigurationError  # noqa: E402
from privmarket.mechanisms.learned._slopes import Slope  # noqa: E402


def box(centre, radius):
    centre = torch.tensor(centre, dtype=torch.float64)
    one = torch.ones_like(centre)
    return Slope(centre, one, one, torch.full((centre.shape[0],), radius, dtype=torch.float64))


FUNCTIONS = {
    "product": lambda w: w * (2 - w) * w,
    "quotient": lambda w: (1 + w) / (2 + w * w),
    "exp": lambda w: torch.exp(-w) * w,
    "log": lambda w: torch.log(w + 0.5) - torch.log1p(w),
    "sigmoid": lambda w: torch.sigmoid(3 * w - 2),
    "relu": lambda w: torch.relu(w - 0.7) * 2 - torch.relu(0.3 - w),
    "clamp": lambda w: (w * w).clamp(0.2, 0.8),
    "softmax": lambda w: torch.softmax(torch.stack((w, w * w, 1 - w), dim=-1), dim=-1)[..., 1],
    "cummin": lambda w: torch.cummin(torch.stack((w, 1 - w, w * w), dim=-1), dim=-1).values.sum(-1),
    "matmul": lambda w: (
        torch.stack((w, 1 - w), -1) @ torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    )[..., 1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_slopes_on_a_box_stay_inside(name):
    function = FUNCTIONS[name]
    centres = torch.linspace(0.05, 1.5, 30, dtype=torch.float64)
    for radius in (0.04, 0.01):
        found = function(box(centres.tolist(), radius))
        torch.testing.assert_close(found.middle, function(centres))
        for part in torch.linspace(-1, 1, 21, dtype=torch.float64):
            at = (centres + part * radius).requires_grad_()
            value = function(at)
            (slope,) = torch.autograd.grad(value.sum(), at)
            assert bool((value <= found.most + 1e-12).all())
            assert bool((value >= found.least - 1e-12).all())
            assert bool((slope <= found.high + 1e-9).all())
            assert bool((slope >= found.low - 1e-9).all())


def test_small_boxes_are_tight():
    wide = FUNCTIONS["quotient"](box([0.3, 0.9], 0.1))
    narrow = FUNCTIONS["quotient"](box([0.3, 0.9], 0.001))
    assert float((narrow.high - narrow.low).max()) < 0.02 * float((wide.high - wide.low).max())


def test_a_network_runs_unchanged():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).double()

    def function(w):
        return net(torch.stack((w, w * w, torch.ones_like(w)), dim=-1))[..., 0]

    with torch.no_grad():
        found = function(box([0.2, 0.5, 0.8], 0.05))
        for part in torch.linspace(-1, 1, 41, dtype=torch.float64):
            value = function(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64) + 0.05 * part)
            assert bool((value <= found.most + 1e-12).all() and (value >= found.least - 1e-12).all())


def test_what_has_no_rule_is_refused():
    with pytest.raises(ConfigurationError, match="no bound is known for cosh"):
        torch.cosh(box([0.1], 0.1))
    with pytest.raises(AttributeError):
        box([0.1], 0.1).erf()
