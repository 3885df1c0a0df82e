"""Derivative intervals: whatever a function does on a box stays inside, and small boxes are tight."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import privmarket as pm  # noqa: E402
from privmarket.errors import ConfigurationError  # noqa: E402
from privmarket.market._audit import audit  # noqa: E402
from privmarket.market._certificate import certified_regret  # noqa: E402
from privmarket.mechanisms.learned import AuctionNetwork, Trade  # noqa: E402
from privmarket.mechanisms.learned._learned_mechanism import network_mechanism  # noqa: E402
from privmarket.mechanisms.learned._slopes import Slope, bounded_operations, check_bounded  # noqa: E402


def box(centre, radius):
    centre = torch.tensor(centre, dtype=torch.float64)
    one = torch.ones_like(centre)
    return Slope(centre, one, one, torch.full((centre.shape[0],), radius, dtype=torch.float64))


torch.manual_seed(0)
MULTIHEAD = torch.nn.MultiheadAttention(2, 2, batch_first=True).double().requires_grad_(False)
ENCODER = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True, layer_norm_eps=1e-2), 1
)
ENCODER = ENCODER.double().requires_grad_(False)


def ATTENTION(rows):
    return MULTIHEAD(rows, rows, rows)[0]


FUNCTIONS = {
    "product": lambda w: w * (2 - w) * w,
    "quotient": lambda w: (1 + w) / (2 + w * w),
    "power": lambda w: w**3 - w**2,
    "exp": lambda w: torch.exp(-w) * w,
    "log": lambda w: torch.log(w + 0.5) - torch.log1p(w),
    "sigmoid": lambda w: torch.sigmoid(3 * w - 2),
    "relu": lambda w: torch.relu(w - 0.7) * 2 - torch.relu(0.3 - w),
    "clamp": lambda w: (w * w).clamp(0.2, 0.8),
    "softmax": lambda w: torch.softmax(torch.stack((w, w * w, 1 - w), dim=-1), dim=-1)[..., 1],
    "tanh": lambda w: torch.tanh(3 * w - 2) - (w * w).tanh(),
    "softplus": lambda w: torch.nn.functional.softplus(4 * w - 2) * torch.nn.functional.softplus(30 * w - 10),
    "gelu": lambda w: torch.nn.functional.gelu(9 * w - 6),
    "layer_norm": lambda w: torch.nn.functional.layer_norm(
        torch.stack((w, w * w, 1 - w), dim=-1), (3,), torch.tensor([1.0, 2.0, -1.0]).double(), eps=1e-3
    )[..., 1],
    "maximum": lambda w: torch.maximum(w * w, 1 - w) + torch.minimum(torch.full_like(w, 0.6), w),
    "attention": lambda w: ATTENTION(torch.stack((w, w * w, 1 - w, 2 * w), -1).unflatten(-1, (2, 2)))[..., 1, 0],
    "encoder layer": lambda w: ENCODER(torch.stack((w, w * w, 1 - w, 2 * w), -1).unflatten(-1, (2, 2)))[..., 0, 1],
    "boxes last": lambda w: (torch.stack((w, w * w), 0) * w).transpose(0, 1)[..., 1],
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
            assert bool((radius * slope <= found.high + 1e-9).all())
            assert bool((radius * slope >= found.low - 1e-9).all())


def test_small_boxes_are_tight():
    wide = FUNCTIONS["quotient"](box([0.3, 0.9], 0.1))
    narrow = FUNCTIONS["quotient"](box([0.3, 0.9], 0.001))
    assert float((narrow.high - narrow.low).max()) < 0.0002 * float((wide.high - wide.low).max())


@pytest.mark.parametrize("compare", [lambda w: w > 0.5, lambda w: w < 0.5, lambda w: w >= 0.5, lambda w: w <= 0.5])
def test_what_may_jump_on_a_box_lies_where_it_can(compare):
    centres = torch.tensor([0.3, 0.49, 0.5, 0.52, 0.9], dtype=torch.float64)
    found = compare(box(centres.tolist(), 0.05)) * 2.0
    for part in torch.linspace(-1, 1, 21, dtype=torch.float64):
        value = 2.0 * compare(centres + 0.05 * part).double()
        assert bool((value <= found.most).all() and (value >= found.least).all())
    assert found.reach.tolist() == pytest.approx([0, 2, 2, 2, 0], abs=1e-12)


def test_boxes_as_many_as_clients_are_not_mixed_up_when_axes_change_places():
    """Radii differ: a rule that looked for the boxes in the first axis took those of others."""
    w = torch.tensor([0.2, 0.5], dtype=torch.float64)
    radius = torch.tensor([0.1, 0.001], dtype=torch.float64)
    slope = Slope(w, torch.ones_like(w), torch.ones_like(w), radius)
    square = torch.stack((slope, slope * slope), -1).transpose(0, 1) * 1.0
    assert bool((square.most[1] >= (w + radius) ** 2 - 1e-12).all())
    assert bool((square.exp().most[1] >= ((w + radius) ** 2).exp() - 1e-12).all())


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
    for guess in (lambda w: w == 0, lambda w: 1 if w > 0.1 else 0):  # python would answer itself
        with pytest.raises(ConfigurationError, match="no bound is known"):
            guess(box([0.1], 0.1))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: torch.nn.functional.relu(w, inplace=True), "relu in place"),
        (lambda w: w.__iadd__(1.0), "a change in place"),
        (lambda w: w.__imul__(2.0), "a change in place"),
        (abs, "abs"),
        (lambda w: w.div(2.0, rounding_mode="floor"), "div with these arguments"),
    ],
)
def test_what_another_name_of_a_tensor_would_see_is_refused_and_so_are_unknown_arguments(change, named):
    with pytest.raises(ConfigurationError, match=f"no bound is known for {named}"):
        change(box([0.1], 0.1))
    with pytest.raises(ConfigurationError, match=f"no bound is known for {named}"):
        check_bounded(lambda: change(box([0.1], 0.1)))


def test_figures_in_float64_stay_inside_where_rounding_makes_them_a_staircase():
    def stairs(w):
        return (w + 1.5 * 2.0**52) - 1.5 * 2.0**52

    for function in (stairs, lambda w: (w * 1e16).sum(-1, keepdim=True) - 1e16 * w, lambda w: (w + 1e15) - 1e15):
        found = function(box([[0.1]], 0.9))
        w = torch.linspace(-0.8, 1.0, 3001, dtype=torch.float64)[:, None]
        value = function(w)
        assert bool((value <= found.most).all() and (value >= found.least).all())
    narrow = stairs(box([0.45], 0.02))  # 0 and then, from 0.5 on, 1
    assert float(narrow.most) >= 0.5


def test_softplus_jumps_at_its_threshold():
    def bent(w):
        return torch.nn.functional.softplus(w, beta=1.0, threshold=0.1)

    centres = torch.tensor([0.0, 0.08, 0.15], dtype=torch.float64)
    found = bent(box(centres.tolist(), 0.06))
    for part in np.linspace(-1, 1, 101):
        value = bent(centres + 0.06 * part)
        assert bool((value <= found.most + 1e-12).all() and (value >= found.least - 1e-12).all())


def test_small_numbers_keep_their_digits_in_log1p():
    found = torch.log1p(box([3e-14], 0.0))
    assert float(found.middle) == pytest.approx(3e-14, rel=1e-12, abs=0.0)


def test_all_operations_without_bounds_are_named_at_once():
    def network(w):
        return torch.cosh(w).erf() + torch.sinh(w.relu()).floor() * w**3 * w**0.5

    with pytest.raises(ConfigurationError, match=r"no bound is known for cosh, erf, floor, power 0\.5, sinh"):
        check_bounded(lambda: network(box([0.1], 0.1)))
    with pytest.raises(ZeroDivisionError):
        check_bounded(lambda: 1 / 0)
    check_bounded(lambda: FUNCTIONS["gelu"](box([0.1], 0.1)))


class DeepSets(AuctionNetwork):
    """Own features beside the mean of all, and a price that the others make, too."""

    def __init__(self, width=12):
        super().__init__()
        self.width = width
        self.inner = torch.nn.Linear(4, width)
        self.outer = torch.nn.Linear(2 * width, 2)

    def forward(self, markets):
        rows = torch.tanh(self.inner(markets.features()))
        rows = torch.cat([rows, rows.mean(1, keepdim=True).expand_as(rows)], -1)
        price, steep = torch.nn.functional.softplus(self.outer(rows) + 1).unbind(-1)
        paid = markets.unit * price
        sold = markets.epsilon * torch.sigmoid((4 + steep) * (paid - markets.valuation) / markets.unit)
        return Trade(sold, torch.maximum(paid, markets.valuation) * sold)


def test_an_own_network_is_certified_above_what_dense_reports_gain():
    rule = network_mechanism(DeepSets)(untrained=True)
    bids = pm.scenario("uniform").sample(np.random.default_rng(1), 6)
    found = certified_regret(rule, bids, 3.0)
    truth = rule.run(bids, 3.0).utility(bids)
    best = np.zeros(6)
    for report in np.linspace(0.001, 3.0, 1500):
        tried = rule.unilateral(bids, bids.replace(valuation=np.full(6, report)), 3.0).utility(bids)
        best = np.maximum(best, tried - truth)
    assert best.max() > 1e-3
    assert (found.upper >= best).all()
    assert (found.upper <= best + 1e-3).all()


class AtTheLeastShare(AuctionNetwork):
    """Sells a thousandth of the offer, which just counts, and pays three money units to who asks two."""

    def __init__(self):
        super().__init__()

    def forward(self, markets):
        asked = markets.valuation / markets.unit
        sold = markets.epsilon / 1000
        near = torch.relu(1 - torch.relu(asked - 2) - torch.relu(2 - asked))
        return Trade(sold, markets.valuation * sold + 3 * markets.unit * near)


class WithDropout(DeepSets):
    """Dropout is for training only."""

    def forward(self, markets):
        trade = super().forward(markets)
        return Trade(torch.nn.functional.dropout(trade.epsilon, 0.5, self.training), trade.payment)


def test_a_sale_that_just_counts_is_not_left_out_of_the_bound():
    rule = network_mechanism(AtTheLeastShare)(untrained=True)
    offers = np.array([[0.9, 1.3, 1.8]])  # a thousandth of these is rounded down
    bids = pm.Bids(np.full(offers.shape, 0.05), offers)
    found = certified_regret(rule, bids[0], 2.0)
    unit = 2.0 / (offers.size * 5.0)
    lies = bids.replace(valuation=np.full(offers.shape, 2 * unit))
    gain = rule.unilateral(bids, lies, 2.0).utility(bids) - rule.run(bids, 2.0).utility(bids)
    assert gain.max() > unit
    assert (found.upper >= gain).all()


@pytest.mark.parametrize("name", ["mfg-regretnet", "regretnet", "dm-regretnet"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_market_in_which_nobody_asks_anything_is_bounded(name):
    rule = pm.mechanism(name)
    bids = pm.Bids([0.0, 0.0, 0.0], [1.0, 2.0, 3.0])
    found = certified_regret(rule, bids, 1.0)
    assert found.closed.all()
    gain = rule.unilateral(bids, bids.replace(valuation=np.full(3, 0.1)), 1.0).utility(bids)
    assert (found.upper >= gain - rule.run(bids, 1.0).utility(bids)).all()


def test_a_network_with_dropout_is_audited_without_it():
    rule = network_mechanism(WithDropout)(untrained=True)
    bids = pm.scenario("uniform").sample(np.random.default_rng(1), 6)
    assert rule.run(bids, 3.0) == rule.run(bids, 3.0)
    certified_regret(rule, bids, 3.0)


def test_bounds_of_the_network_on_the_page_hold_what_dense_reports_give():
    page = Path(__file__).parents[4] / "docs/how-to/your-own-network.md"
    names = {"__name__": "my_network"}
    exec(page.read_text().split("```python\n")[1].split("```")[0], names)
    rule = network_mechanism(names["Transformer"])(untrained=True)
    bids = pm.scenario("uniform").sample(np.random.default_rng(1), 6)
    rule.check_bounded(bids, 3.0)
    centre = torch.linspace(0.3, 1.5, 5, dtype=torch.float64)
    radius = 1e-4
    found = rule.own_trade(bids, 3.0, 2, centre, torch.full((5,), radius, dtype=torch.float64))
    assert float(found.payment.reach.max()) < 0.5
    for part in np.linspace(-1, 1, 9):
        at = centre + part * radius
        trade = rule.own_trade(bids, 3.0, 2, at, torch.zeros(5, dtype=torch.float64))
        for bound, value in ((found.epsilon, trade.epsilon.middle), (found.payment, trade.payment.middle)):
            assert bool((value <= bound.most + 1e-9).all() and (value >= bound.least - 1e-9).all())


def test_an_audit_that_cannot_be_certified_says_so_before_it_attacks():
    class Rounding(DeepSets):
        def forward(self, markets):
            trade = super().forward(markets)
            return Trade(trade.epsilon.floor().erf(), trade.payment)

    def attack(*_):
        raise AssertionError("the attack ran first")

    rule = network_mechanism(Rounding)(untrained=True)
    with pytest.raises(ConfigurationError, match="no bound is known for erf, floor") as refused:
        audit(rule, pm.scenario("uniform"), 6, 3.0, profiles=1, attack=attack, certify=True)
    assert "layer_norm" in refused.value.hint


def test_the_page_lists_the_operations_with_bounds():
    page = Path(__file__).parents[4] / "docs/how-to/your-own-network.md"
    (line,) = [line for line in page.read_text().splitlines() if "`layer_norm`" in line]
    assert re.findall(r"`(\w+)`", line) == bounded_operations()
