"""Rules that users add: one that is right is used, one that is wrong is noticed before anything is trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privmarket.errors import ConfigurationError
from privmarket.training import (
    ClientRecords,
    PrivateModel,
    _layers as layers,
    add_rule,
    clipped_sums,
    method_for,
    require_per_record,
)

ROWS = 40
CLIP = 0.5


class Pairs(nn.Module):
    """A layer without a rule of its own, between layers that have one."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(6, 5)
        self.mix = nn.Bilinear(5, 4, 3)

    def forward(self, x):
        lifted = torch.tanh(self.lift(x))
        return self.mix(lifted, lifted[:, :4])


def right(slope, input1, input2, weight, bias=None):
    return {"weight": torch.einsum("ro,ri,rj->roij", slope, input1, input2), "bias": slope}


def doubled(slope, input1, input2, weight, bias=None):
    return {name: 2 * rows for name, rows in right(slope, input1, input2, weight, bias).items()}


def neighbours(slope, input1, input2, weight, bias=None):
    return {name: rows.roll(1, 0) for name, rows in right(slope, input1, input2, weight, bias).items()}


def kind_and_sum():
    torch.manual_seed(0)
    model = PrivateModel(Pairs())
    x = torch.randn(ROWS, 6)
    y = torch.randint(0, 3, (ROWS,))
    require_per_record(model.module, x, y)
    total = clipped_sums(model, model.built_weights()[None], ClientRecords(x, y, [ROWS]), CLIP).values[0]
    return method_for(model, x, y).kind, total


@pytest.fixture
def _table(monkeypatch):
    monkeypatch.setattr(layers, "_RULES", dict(layers._RULES))


@pytest.mark.usefixtures("_table")
def test_added_rule():
    kind, record_by_record = kind_and_sum()
    assert kind == "vmap"
    add_rule(F.bilinear, right)
    kind, by_rule = kind_and_sum()
    assert kind == "rules"
    torch.testing.assert_close(by_rule, record_by_record, atol=1e-5, rtol=0)


def forgetful(slope, input1, input2, weight, bias):
    told = right(slope, input1, input2, weight, bias)
    return {"weight": told["weight"]}


def misshapen(slope, input1, input2, weight, bias):
    told = right(slope, input1, input2, weight, bias)
    return told | {"bias": told["bias"][:-1]}


def failing(slope, input1, input2, weight, bias):
    return 1 / 0


@pytest.mark.usefixtures("_table")
@pytest.mark.parametrize("wrong", [doubled, neighbours, forgetful, misshapen, failing])
def test_wrong_rule(wrong):
    """Subjects broken on purpose: twice the gradient, that of another record, one missing, cut off, an error."""
    _, expected = kind_and_sum()
    add_rule(F.bilinear, wrong)
    kind, found = kind_and_sum()
    assert kind == "vmap"
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("_table")
def test_second_rule():
    with pytest.raises(ConfigurationError, match="linear has a rule already"):
        add_rule(F.linear, right)


@pytest.mark.usefixtures("_table")
def test_rule_for_a_class():
    with pytest.raises(ConfigurationError, match="a rule for the class Bilinear"):
        add_rule(torch.nn.Bilinear, right)
