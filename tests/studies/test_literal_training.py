"""The quick local training of the paper's letter against torch's own optimiser, step by step."""

import numpy as np
import pytest
import torch
from torch import nn

from privmarket_studies.literal_training import Background, LocalTraining, cnn, mlp, train_cnn, train_mlp

RECORDS = 70


def slowly(module: nn.Module, x, y, plan: LocalTraining, seed: int):
    """The same training by `torch.optim.SGD` and `clip_grad_norm_`, in float64."""
    module = module.double()
    optimiser = torch.optim.SGD(module.parameters(), lr=plan.rate)
    rng = np.random.default_rng(seed)
    for _ in range(plan.epochs):
        order = torch.from_numpy(rng.permutation(len(y)))
        for rows in order.split(plan.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[rows].double()), y[rows]).backward()
            if plan.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), plan.clip_norm)
            optimiser.step()
    return [one.detach() for one in module.parameters()]


def case(kind: str, scale: float = 1.0):
    """A module, records of which some pixels are the same in all, and the quick training of it."""
    torch.manual_seed(3)
    if kind == "mlp":
        x = torch.rand(RECORDS, 40)
        x[:, 5:20] = -0.4242
        module, train = mlp(40, 10, (12, 9)), train_mlp
    else:
        x = torch.rand(RECORDS, 3, 8, 8)
        module, train = cnn(10, (4, 6), (3, 8, 8)), train_cnn
    with torch.no_grad():
        for one in module.parameters():
            one.mul_(scale)
    return module, x, torch.randint(0, 10, (RECORDS,)), train


def difference(kind: str, plan: LocalTraining, scale: float = 1.0) -> float:
    """The largest difference of a weight from slow training, over the largest move of a weight."""
    module, x, y, train = case(kind, scale)
    start = [one.detach().clone() for one in module.parameters()]
    quick = train(start, x, y, plan, np.random.default_rng(8))
    slow = slowly(module, x, y, plan, 8)
    moved = max(float((one - before).abs().max()) for one, before in zip(slow, start, strict=True))
    return max(float((a - b).abs().max()) for a, b in zip(quick, slow, strict=True)) / moved


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_quick_training_is_torchs_sgd(kind, clip_norm):
    assert difference(kind, LocalTraining(rate=0.05, clip_norm=clip_norm)) < 1e-4


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_records_without_slope_are_left_out_and_nothing_changes(kind):
    # Weights this large saturate the softmax: most records have a slope of exactly 0.
    scale = 30.0 if kind == "mlp" else 60.0
    module, x, y, _ = case(kind, scale)
    slopes = torch.softmax(module(x), 1) - nn.functional.one_hot(y, 10)
    assert 0 < int((slopes == 0).all(1).sum()) < RECORDS
    assert difference(kind, LocalTraining(rate=1e-4, epochs=1), scale) < 1e-3


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_training_that_leaves_the_finite_numbers_gives_nothing(kind):
    module, x, y, train = case(kind)
    start = [one.detach() * 1e25 for one in module.parameters()]
    assert train(start, x, y, LocalTraining(), np.random.default_rng(0)) is None


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize(("kind", "off"), [("mlp", 1), ("mlp", 3), ("cnn", 3)])
def test_units_that_are_off_stay_off(kind, off, clip_norm):
    """With some units of the first layer off, and with all of the second off."""
    module, x, y, train = case(kind)
    start = [one.detach().clone() for one in module.parameters()]
    start[off][: None if off == 3 else 5] = -100.0
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(start), module.parameters())
    plan = LocalTraining(rate=0.05, clip_norm=clip_norm)
    quick = train([one.clone() for one in start], x, y, plan, np.random.default_rng(8))
    for a, b in zip(quick, slowly(module, x, y, plan, 8), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)
    assert not torch.equal(quick[5], start[5])


def test_a_wrong_step_is_seen():
    module, x, y, train = case("mlp")
    start = [one.detach().clone() for one in module.parameters()]
    quick = train(start, x, y, LocalTraining(rate=0.05, batch=31), np.random.default_rng(8))
    slow = slowly(module, x, y, LocalTraining(rate=0.05), 8)
    assert max(float((a - b).abs().max()) for a, b in zip(quick, slow, strict=True)) > 1e-3


def test_the_background_turned_and_back():
    _, x, _, _ = case("mlp")
    turned = Background.of(x)
    matrix = torch.randn(12, 40)
    assert turned.of_records(x).shape == (RECORDS, 26)
    torch.testing.assert_close(turned.of_records(x) @ turned.of_matrix(matrix).T, x @ matrix.T)
    torch.testing.assert_close(turned.back(turned.of_matrix(matrix), matrix), matrix)
