import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privmarket.training import ModelError, _check as model_check, layer_findings, require_per_record, row_findings

IMAGES, VECTORS, TOKENS = torch.zeros(3, 1, 8, 8), torch.zeros(3, 6), torch.zeros(3, 7, dtype=torch.int64)


class Custom(nn.Module):
    """A linear layer behind any function of the batch."""

    def __init__(self, forward):
        super().__init__()
        self.linear, self._forward = nn.Linear(6, 4), forward

    def forward(self, x):
        return self.linear(self._forward(self, x))


class Tokens(nn.Module):
    def __init__(self, core):
        super().__init__()
        self.embedding, self.core, self.head = nn.Embedding(20, 8), core, nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.core(self.embedding(x)).mean(1))


class Outputs(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, core):
        super().__init__()
        self.core = core

    def forward(self, x):
        return self.core(x)[0]


class SequenceFirst(nn.Module):
    """Puts the sequence first: layers see tokens where records are expected, and are differentiated one by one."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.transpose(0, 1)))).mean(0)


def convolution(*middle):
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))


GOOD = {
    "mlp": (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), VECTORS),
    "cnn": (convolution(nn.GroupNorm(2, 4)), IMAGES),
    "instance norm": (convolution(nn.InstanceNorm2d(4)), IMAGES),
    "layer norm": (nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), VECTORS),
    "dropout": (nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)), VECTORS),
    "embedding": (Tokens(nn.Linear(8, 8)), TOKENS),
    "lstm": (Tokens(Outputs(nn.LSTM(8, 8, batch_first=True))), TOKENS),
    "gru with dropout": (Tokens(Outputs(nn.GRU(8, 8, 2, batch_first=True, dropout=0.3))), TOKENS),
    "encoder": (Tokens(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), TOKENS),
    "sequence first": (SequenceFirst(), torch.zeros(3, 5, 6)),
    "custom": (Custom(lambda _, x: x / (1 + x.square().sum(1, keepdim=True))), VECTORS),
    "frozen start": (nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)), VECTORS),
    "doubles": (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), VECTORS.reshape(3, 2, 3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_modules_that_treat_records_alone_pass_unchanged(name):
    module, like = GOOD[name]
    module.eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    weights = {n: p.detach().numpy() for n, p in module.named_parameters() if p.requires_grad}
    drawn = torch.random.get_rng_state()
    require_per_record(module, like, weights=weights)
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert not module.training


def frozen(layer):
    return layer.requires_grad_(False).eval()


@pytest.mark.parametrize(
    ("module", "layer", "instead"),
    [
        (convolution(nn.BatchNorm2d(4)), r"layer 1 \(BatchNorm2d\)", r"GroupNorm\(4, 4\)"),
        (convolution(nn.BatchNorm2d(4, affine=False)), "BatchNorm2d", "GroupNorm"),
        (convolution(frozen(nn.BatchNorm2d(4))), "BatchNorm2d", "fixed scale"),
        (convolution(nn.SyncBatchNorm(4)), "SyncBatchNorm", "GroupNorm"),
        (nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48)), "BatchNorm1d", r"GroupNorm\(24, 48\)"),
        (convolution(nn.InstanceNorm2d(4, track_running_stats=True)), "InstanceNorm2d", "running_stats=False"),
        (nn.Sequential(nn.Embedding(5, 4, max_norm=1.0), nn.Linear(4, 3)), "Embedding", "max_norm=None"),
        (nn.Sequential(nn.Embedding(5, 4, scale_grad_by_freq=True), nn.Linear(4, 3)), "Embedding", "by_freq=False"),
        (nn.Sequential(nn.LazyLinear(3)), "LazyLinear", "not lazy"),
        (nn.Sequential(nn.Flatten()), "no trainable layer", "require gradients"),
        (nn.Linear(6, 3).requires_grad_(False), "no trainable layer", "require gradients"),
        (nn.Linear(6, 3).double(), "float64", "float32"),
    ],
)
def test_layers_that_mix_records_are_named_with_what_to_use(module, layer, instead):
    with pytest.raises(ModelError, match=layer) as caught:
        require_per_record(module)
    assert caught.value.hint.startswith("use ")
    with pytest.raises(ModelError, match=instead):
        require_per_record(module)
    assert "\n" not in str(caught.value)


class MixedBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, slope):
        return slope - slope.mean(0)


class MixedAfter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        return MixedBackward.apply(self.linear(x))


def remembering(module, x):
    shifted = x + getattr(module, "last", 0.0)
    module.last = x.detach().mean()
    return shifted


MIXED = {
    "batch mean": lambda _, x: x - x.mean(0),
    "tiny batch mean": lambda _, x: x - 1e-4 * x.mean(0),
    "neighbour": lambda _, x: x + 0.01 * x.roll(1, 0),
    "order": lambda _, x: x.sort(0).values,
    "largest": lambda _, x: x / x.abs().max(),
    "only in training": lambda m, x: x - x.mean(0) if m.training else x,
    "batch size": lambda _, x: x * x.shape[0],
    "memory": remembering,
    "cosine to first": lambda _, x: x * F.cosine_similarity(x, x[:1]).unsqueeze(1),
}


@pytest.mark.parametrize("name", MIXED)
def test_custom_forwards_that_mix_records_are_caught(name):
    with pytest.raises(ModelError, match="forward"):
        require_per_record(Custom(MIXED[name]), VECTORS)


def test_a_backward_pass_that_mixes_records_is_caught():
    with pytest.raises(ModelError, match="backward"):
        require_per_record(MixedAfter(), VECTORS)


def test_weights_that_switch_mixing_on_are_caught():
    switched = Custom(lambda m, x: x - x.mean(0) if m.linear.bias[0] > 1e3 else x)
    require_per_record(switched, VECTORS)
    weights = {"linear.weight": np.zeros((4, 6), np.float32), "linear.bias": np.full(4, 2e3, np.float32)}
    with pytest.raises(ModelError):
        require_per_record(switched, VECTORS, weights=weights)
    assert row_findings(switched, VECTORS, weights=weights, random_weights=False)


def test_a_loss_must_give_one_number_per_record():
    with pytest.raises(ModelError, match="loss"):
        require_per_record(nn.Linear(6, 3), VECTORS, loss=F.cross_entropy)
    with pytest.raises(ModelError):
        require_per_record(
            nn.Linear(6, 3), VECTORS, loss=lambda o, y: F.cross_entropy(o - o.mean(0), y, reduction="none")
        )
    regression = lambda o, y: (o[:, 0] - y).square()  # noqa: E731
    require_per_record(nn.Linear(6, 1), VECTORS, torch.zeros(3), loss=regression)


def test_a_module_that_does_not_fit_the_records_is_told_without_their_values():
    secret = torch.full((3, 5), 12345.0)
    with pytest.raises(ModelError) as caught:
        require_per_record(nn.Linear(6, 3), secret)
    assert "12345" not in str(caught.value)


def test_records_values_are_never_looked_at():
    assert row_findings(nn.Linear(6, 3), torch.full((3, 6), torch.nan)) == []


def test_the_row_check_would_pass_batch_norm_in_eval_mode_so_layers_are_looked_at_first(monkeypatch):
    module = convolution(frozen(nn.BatchNorm2d(4)))
    assert row_findings(module, IMAGES)  # train mode brings the mixing back
    assert layer_findings(module)
    monkeypatch.setattr(model_check, "_layer_findings", lambda *_: iter(()))
    with pytest.raises(ModelError, match="forward"):
        require_per_record(module, IMAGES)


def test_records_along_another_axis_are_noticed():
    """A recurrent layer that takes the first axis for time reads one record after the other."""
    with pytest.raises(ModelError, match="changes the output of other records"):
        require_per_record(Tokens(Outputs(nn.GRU(8, 8))), TOKENS)


def test_a_plain_stack_that_does_not_fit_is_refused_before_anything_is_reserved():
    stack = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    require_per_record(stack, IMAGES)
    with pytest.raises(ModelError, match="fails on random records"):
        require_per_record(stack, VECTORS)
    with pytest.raises(ModelError, match="gives shape"):
        require_per_record(nn.Conv2d(1, 4, 3), IMAGES)  # one loss for each pixel


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_noted_for_a_record_is_compared_with_its_own_gradient(monkeypatch, quick):
    """The subject broken on purpose: an engine that hands each record the gradient of its neighbour."""
    module = Tokens(nn.Linear(8, 8))
    assert row_findings(module, TOKENS, random_weights=not quick) == []
    real = model_check.formed_gradients
    monkeypatch.setattr(model_check, "formed_gradients", lambda *given: real(*given).roll(1, 0))
    (found,) = row_findings(module, TOKENS, random_weights=not quick)
    assert "another gradient than its own" in found.why
