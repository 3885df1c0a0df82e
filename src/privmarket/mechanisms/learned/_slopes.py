"""Interval arithmetic on derivatives: values together with bounds on how fast they change, for certificates.

A `Slope` stands for functions of one report w on boxes |w − w₀| ≤ r, many at once. With w = w₀ + r·t it keeps
their values at the middles and, for each, an interval that holds every derivative by t on the box. By the mean
value theorem

    f(w) ∈ f(w₀) + [−1, 1]·[low, high].

The axis of boxes may stand anywhere, as nothing but the first report knows the radii. A function that jumps, such
as w > 0, has no derivative; where it may jump on the box its interval is [−1, 1], so that it lies where it can.

Every operation updates both by the rules of calculus in interval arithmetic: a sum adds the intervals, a product
uses f'g + fg' with f and g anywhere in their ranges, and a ReLU that may switch on the box has a slope anywhere
between 0 and that of its input. Where the boxes are small the intervals are almost exact.

A network runs on slopes unchanged: torch asks `__torch_function__` what each of its functions does to them. A
function that is not listed is refused, never guessed; `check_bounded` names all of them. So is whatever changes a
tensor in place: another name of the same tensor would change with it.

Arithmetic is ordinary float64. A sum of large numbers that nearly cancel is a staircase in it, so every operation
makes room for its own rounding: a jump of some units in the last place of the largest value on the box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from privmarket.errors import ConfigurationError

# Networks divide by, and take logarithms of, what they keep above this themselves (1e-30 at least). On a wide box
# the range of such a number may reach below; its true value does not.
_TINY = 1e-50
# By how much the values of one operation at two reports may be rounded apart, as a share of the larger one.
ROUNDING = 4 * 2.0**-52


# While a network is only looked at: the operations without bounds that it was seen to use, with a constant in place
# of what they answer.
_SEEN: ContextVar[set[str] | None] = ContextVar("_SEEN", default=None)


class NoBoundKnownError(ConfigurationError, AttributeError):
    """Operations on slopes whose bounds nobody has written down."""

    def __init__(self, operations: str) -> None:
        self.operations = operations
        super().__init__(f"no bound is known for {operations}", "leave out the certificate: attacks still run")


def check_bounded(run: Callable[[], object]) -> None:
    """Runs a network on slopes and refuses it with all operations that have no bounds, not only the first."""
    seen: set[str] = set()
    token = _SEEN.set(seen)
    try:
        run()
    except NoBoundKnownError as error:
        seen.add(error.operations)
    except Exception:  # whatever comes of constants in place of what nobody knows
        if not seen:
            raise
    finally:
        _SEEN.reset(token)
    if seen:
        raise NoBoundKnownError(", ".join(sorted(seen)))


def bounded_operations() -> list[str]:
    """The names of all functions of torch with bounds; besides them there are arithmetic, indexing and w > 0."""
    names = {str(function.__name__) for function in _RULES}
    return sorted(name for name in names if not name.startswith("_"))


class Slope:
    """Values at the middles of boxes, and bounds of the derivative by t over each box; all of one shape.

    Args:
        middle: f(w₀), (boxes, ...).
        low, high: f′(w) lies between them on the box.
        radius: (boxes,) r, one for each box.
    """

    is_nested = False  # what torch's attention asks before anything else

    def __init__(self, middle: Tensor, low: Tensor, high: Tensor, radius: Tensor | None = None) -> None:
        if radius is not None:
            radius = radius.reshape(-1, *[1] * (middle.ndim - 1))
            low, high = radius * low, radius * high
        self.middle = middle
        self.low = low.expand_as(middle)
        self.high = high.expand_as(middle)

    @property
    def reach(self) -> Tensor:
        """How far the value can lie from the middle, anywhere on the box."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def least(self) -> Tensor:
        """A lower bound of the value on the box."""
        return self.middle - self.reach

    @property
    def most(self) -> Tensor:
        """An upper bound of the value on the box."""
        return self.middle + self.reach

    def _like(self, middle: Tensor, low: Tensor, high: Tensor) -> Slope:
        return Slope(middle, low, high)

    @property
    def largest(self) -> Tensor:
        """An upper bound of the absolute value on the box."""
        return self.middle.abs() + self.reach

    def _rounded(self, size: Tensor | None = None) -> Slope:
        """The same with room for the rounding of the operation that made it.

        Args:
            size: of the numbers that it rounded, added up; by default that of the result.
        """
        room = ROUNDING * (self.largest if size is None else size)
        return self._like(self.middle, self.low - room, self.high + room)

    def _shaped(self, change: Callable[[Tensor], Tensor]) -> Slope:
        """The same numbers in another arrangement."""
        return self._like(change(self.middle), change(self.low), change(self.high))

    # What tensors can do that torch does not ask `__torch_function__` about.
    @property
    def shape(self) -> torch.Size:
        """As of a tensor."""
        return self.middle.shape

    @property
    def ndim(self) -> int:
        """As of a tensor."""
        return self.middle.ndim

    @property
    def dtype(self) -> torch.dtype:
        """As of a tensor."""
        return self.middle.dtype

    def dim(self) -> int:
        """As of a tensor."""
        return self.middle.ndim

    def size(self, *at: int) -> Any:
        """As of a tensor."""
        return self.middle.size(*at)

    def __gt__(self, other: Slope | Tensor | float) -> Slope:
        return _greater(self - other)

    def __lt__(self, other: Slope | Tensor | float) -> Slope:
        return _greater(other - self)

    def __ge__(self, other: Slope | Tensor | float) -> Slope:
        return 1 - _greater(other - self)

    def __le__(self, other: Slope | Tensor | float) -> Slope:
        return 1 - _greater(self - other)

    def _in_place(self, other: object) -> Any:
        return _unknown("a change in place, such as +=", lambda: self.middle)

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __imatmul__ = _in_place

    def __abs__(self) -> Any:
        return _unknown("abs", self.middle.abs)

    # Python would answer these without asking anybody.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        raise NoBoundKnownError("==")

    def __bool__(self) -> bool:
        raise NoBoundKnownError("a condition on reports")

    def __getitem__(self, index: Any) -> Slope:
        return self._shaped(lambda part: part[index])

    def __add__(self, other: Slope | Tensor | float) -> Slope:
        return _add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Slope:
        return self._like(-self.middle, -self.high, -self.low)

    def __sub__(self, other: Slope | Tensor | float) -> Slope:
        return _add(self, -other)

    def __rsub__(self, other: Tensor | float) -> Slope:
        return _add(-self, other)

    def __mul__(self, other: Slope | Tensor | float) -> Slope:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Slope | Tensor | float) -> Slope:
        if isinstance(other, Slope):
            return _multiply(self, _reciprocal(other))
        return _multiply(self, 1 / other)

    def __rtruediv__(self, other: Tensor | float) -> Slope:
        return _multiply(_reciprocal(self), other)

    def __pow__(self, power: float) -> Slope:
        if power not in (2, 3, 4):
            raise NoBoundKnownError(f"power {power:g}")
        return self * self if power == 2 else self ** (power - 1) * self

    def __matmul__(self, other: Slope | Tensor) -> Slope:
        return _matmul(self, other)

    def __rmatmul__(self, other: Tensor) -> Slope:
        return _matmul(other, self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("_") or method is None or method not in _RULES:
            return _unknown(name, lambda: getattr(self.middle, name))
        return lambda *args, **named: _applied(method, (self, *args), named)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        if func not in _RULES:
            name = str(getattr(func, "__name__", func))
            return _unknown(name, lambda: func(*_middles(args), **_middles(named or {})))
        return _applied(func, args, named or {})


def _applied(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return _RULES[function](*args, **named)
    except TypeError as error:
        raise NoBoundKnownError(f"{function.__name__} with these arguments: {error}") from error


def _unknown(name: str, on_middles: Callable[[], Any]) -> Any:
    """Refuses an operation, or while a network is only looked at notes it and answers for the middles alone."""
    seen = _SEEN.get()
    if seen is None or name.startswith("_"):
        raise NoBoundKnownError(name)
    seen.add(name)
    return _constants(on_middles())


def _middles(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _middles(one) for name, one in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(_middles(one) for one in given)
    return given.middle if isinstance(given, Slope) else given


def _constants(found: Any) -> Any:
    """What an operation on middles answered, with slopes for its tensors, or a method that answers so."""
    if isinstance(found, Tensor):
        return Slope(found, torch.zeros_like(found), torch.zeros_like(found))
    if isinstance(found, list | tuple):
        return tuple(_constants(one) for one in found)
    if callable(found):
        return lambda *args, **named: _constants(found(*_middles(args), **_middles(named)))
    return found


def _times(low: Tensor, high: Tensor, other_low: Tensor, other_high: Tensor) -> tuple[Tensor, Tensor]:
    """The interval of all products of two intervals."""
    first = low * other_low
    second = low * other_high
    third = high * other_low
    fourth = high * other_high
    least = torch.minimum(torch.minimum(first, second), torch.minimum(third, fourth))
    most = torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))
    return least, most


def _add(a: Any, b: Any, alpha: float = 1.0) -> Slope:
    if alpha != 1.0:
        b = b * alpha
    if not isinstance(a, Slope):
        a, b = b, a
    assert isinstance(a, Slope)
    if isinstance(b, Slope):
        return a._like(a.middle + b.middle, a.low + b.low, a.high + b.high)._rounded()
    middle = a.middle + b
    return a._like(middle, a.low.expand_as(middle), a.high.expand_as(middle))._rounded()


def _subtract(a: Any, b: Any, alpha: float = 1.0) -> Slope:
    return _add(a, -b if alpha == 1.0 else b * -alpha)


def _multiply(a: Any, b: Any) -> Slope:
    if not isinstance(a, Slope):
        a, b = b, a
    assert isinstance(a, Slope)
    if isinstance(b, Slope):
        of_a = _times(a.low, a.high, b.least, b.most)
        of_b = _times(b.low, b.high, a.least, a.most)
        return a._like(a.middle * b.middle, of_a[0] + of_b[0], of_a[1] + of_b[1])._rounded()
    first = a.low * b
    second = a.high * b
    return a._like(a.middle * b, torch.minimum(first, second), torch.maximum(first, second))._rounded()


def _divide(a: Any, b: Any) -> Slope:
    return _multiply(a, _reciprocal(b) if isinstance(b, Slope) else 1 / b)


def _addcmul(total: Any, a: Any, b: Any, value: float = 1.0) -> Slope:
    product = a * b
    return _add(total, product if value == 1.0 else product * value)


def _matmul(a: Any, b: Any) -> Slope:
    if isinstance(a, Slope) and isinstance(b, Slope):
        return _sum(_multiply(a[..., :, :, None], b[..., None, :, :]), -2)
    slope, other = (a, b) if isinstance(a, Slope) else (b, a)
    up = other.clamp_min(0.0)
    down = other.clamp_max(0.0)
    sizes = other.abs() * other.shape[-2 if isinstance(a, Slope) else -1]
    if isinstance(a, Slope):
        return slope._like(
            slope.middle @ other, slope.low @ up + slope.high @ down, slope.high @ up + slope.low @ down
        )._rounded(slope.largest @ sizes)
    return slope._like(
        other @ slope.middle, up @ slope.low + down @ slope.high, up @ slope.high + down @ slope.low
    )._rounded(sizes @ slope.largest)


def _linear(rows: Slope, weight: Tensor, bias: Tensor | None = None) -> Slope:
    found = _matmul(rows, weight.T)
    return found if bias is None else found + bias


def _scaled(x: Slope, middle: Tensor, least: Tensor, most: Tensor) -> Slope:
    """f(x) for a function whose derivative on x's range lies between `least` and `most`."""
    return x._like(middle, *_times(x.low, x.high, least, most))


def _exp(x: Slope) -> Slope:
    return _scaled(x, x.middle.exp(), x.least.exp(), x.most.exp())._rounded()


def _log(x: Slope) -> Slope:
    return _scaled(x, x.middle.log(), 1 / x.most, 1 / x.least.clamp_min(_TINY))._rounded()


def _log1p(x: Slope) -> Slope:
    least, most = (1 / (1 + end).clamp_min(_TINY) for end in (x.most, x.least))
    return _scaled(x, x.middle.log1p(), least, most)._rounded()


def _reciprocal(x: Slope) -> Slope:
    return _scaled(x, 1 / x.middle, -1 / x.least.clamp_min(_TINY).square(), -1 / x.most.square())._rounded()


def _sigmoid(x: Slope) -> Slope:
    value = torch.sigmoid(x.middle)
    at_ends = [torch.sigmoid(end) * torch.sigmoid(-end) for end in (x.least, x.most)]
    crosses = (x.least < 0) & (x.most > 0)
    most = torch.where(crosses, torch.full_like(value, 0.25), torch.maximum(*at_ends))
    return _scaled(x, value, torch.minimum(*at_ends), most)._rounded()


def _curved(x: Slope, middle: Tensor, derivative: Callable[[Tensor], Tensor], turns: Sequence[float] = ()) -> Slope:
    """f(x) for a function whose derivative rises or falls between its turning points."""
    values = [derivative(x.least), derivative(x.most)]
    values += [derivative(torch.minimum(torch.maximum(x.least, x.middle.new_tensor(at)), x.most)) for at in turns]
    steepness = torch.stack(values)
    return _scaled(x, middle, steepness.amin(0), steepness.amax(0))._rounded(x.largest + middle.abs())


def _tanh(x: Slope) -> Slope:
    return _curved(x, x.middle.tanh(), lambda at: 1 - at.tanh().square(), (0.0,))


def _softplus(x: Slope, beta: float = 1.0, threshold: float = 20.0) -> Slope:
    """Torch answers x itself above the threshold, so the function jumps down there, next to nothing by default."""

    def derivative(at: Tensor) -> Tensor:
        return torch.where(beta * at > threshold, torch.ones_like(at), torch.sigmoid(beta * at))

    smooth = _curved(x, torch.nn.functional.softplus(x.middle, beta, threshold), derivative)
    crosses = (beta * x.least <= threshold) & (beta * x.most > threshold)
    jump = torch.where(crosses, math.log1p(math.exp(-threshold)) / beta, 0.0).to(x.dtype)
    return x._like(smooth.middle, smooth.low - jump, smooth.high + jump)


def _gelu(x: Slope, approximate: str = "none") -> Slope:
    if approximate != "none":
        raise NoBoundKnownError(f"gelu with approximate={approximate!r}")
    density = 1 / math.sqrt(2 * math.pi)

    def derivative(at: Tensor) -> Tensor:
        return 0.5 * (1 + torch.erf(at / math.sqrt(2))) + at * density * torch.exp(-0.5 * at.square())

    return _curved(x, torch.nn.functional.gelu(x.middle), derivative, (-math.sqrt(2), math.sqrt(2)))


def _layer_norm(
    x: Slope,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Slope:
    """y = (x − x̄)/σ over n numbers, so y′ = (c − y·mean(y·c))/σ with c = x′ − x̄′, and y² ≤ n whatever x is."""
    if len(normalized_shape) != 1:
        raise NoBoundKnownError("layer_norm over several axes")
    count = x.shape[-1]
    centred = _matmul(x, torch.eye(count, dtype=x.dtype) - 1 / count)
    squares = torch.stack((centred.least, centred.most)).square()
    crosses = (centred.least < 0) & (centred.most > 0)
    least_square = torch.where(crosses, torch.zeros_like(squares[0]), squares.amin(0))
    inverse_least = (squares.amax(0).mean(-1, keepdim=True) + eps).rsqrt()
    inverse_most = (least_square.mean(-1, keepdim=True) + eps).rsqrt()
    ends = _times(centred.least, centred.most, inverse_least, inverse_most)
    y_least, y_most = (end.clamp(-math.sqrt(count), math.sqrt(count)) for end in ends)
    low, high = (part.mean(-1, keepdim=True) for part in _times(y_least, y_most, centred.low, centred.high))
    low, high = _times(low, high, y_least, y_most)
    low, high = _times(centred.low - high, centred.high - low, inverse_least, inverse_most)
    y = torch.nn.functional.layer_norm(x.middle, tuple(normalized_shape), eps=eps)
    found = x._like(y, low, high)._rounded(count * (1 + y.abs()))
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def _dropout(x: Slope, p: float = 0.5, training: bool = True, inplace: bool = False) -> Slope:
    if training and p > 0:
        raise NoBoundKnownError("dropout in a network that is training")
    return x


def _attention(
    query: Slope,
    key: Slope,
    value: Slope,
    width: int,
    heads: int,
    in_weight: Tensor,
    in_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero: bool,
    dropout: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    **named: Any,
) -> tuple[Slope, None]:
    """Self-attention of rows (rows, batch, width), as `torch.nn.MultiheadAttention` asks for it."""
    masks = (bias_k, bias_v, named.get("key_padding_mask"), named.get("attn_mask"))
    dropped = training and dropout > 0
    if any(mask is not None for mask in masks) or named.get("use_separate_proj_weight") or add_zero or dropped:
        raise NoBoundKnownError("attention with masks, biases, dropout or separate projections")
    biases = (None,) * 3 if in_bias is None else in_bias.chunk(3)

    def split(rows: Slope, weight: Tensor, bias: Tensor | None) -> Slope:
        """(batch, heads, rows, width/heads)."""
        parts: Slope = _linear(rows, weight, bias).transpose(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2)
        return parts

    q, k, v = (split(*one) for one in zip((query, key, value), in_weight.chunk(3), biases, strict=True))
    score = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
    seen = _softmax(score, -1) @ v
    return _linear(seen.transpose(1, 2).flatten(-2).transpose(0, 1), out_weight, out_bias), None


def _clamp(x: Slope, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Slope:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        raised = x if min is None else _maximum(x, min)
        return raised if max is None else _minimum(raised, max)
    floor = -torch.inf if min is None else min
    ceiling = torch.inf if max is None else max
    inside = (x.least >= floor) & (x.most <= ceiling)
    outside = (x.most <= floor) | (x.least >= ceiling)
    least = torch.where(inside, 1.0, 0.0).to(x.dtype)
    most = torch.where(outside, 0.0, 1.0).to(x.dtype)
    return _scaled(x, x.middle.clamp(floor, ceiling), least, most)


def _relu(x: Slope, inplace: bool = False) -> Any:
    return _unknown("relu in place", x.middle.relu) if inplace else _clamp(x, min=0.0)


def _sum(x: Slope, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Slope:
    return _added(x, lambda part: part.sum(dim, keepdim=keepdim))


def _mean(x: Slope, dim: int | tuple[int, ...], keepdim: bool = False) -> Slope:
    return _added(x, lambda part: part.mean(dim, keepdim=keepdim))


def _cumsum(x: Slope, dim: int) -> Slope:
    return _added(x, lambda part: part.cumsum(dim))


def _added(x: Slope, add: Callable[[Tensor], Tensor]) -> Slope:
    """Sums of some kind; as many terms as there are in all of one box may have been rounded."""
    terms = x.middle[0].numel()
    return x._shaped(add)._rounded(terms * add(x.largest))


def _softmax(x: Slope, dim: int = -1, dtype: torch.dtype | None = None, **_: object) -> Slope:
    """y_k = exp(x_k)/Σ exp(x_j), so y_k′ = y_k·Σ_j y_j·(x_k′ − x_j′)."""
    assert dim == -1
    shift = x.middle.amax(-1, keepdim=True)
    least = (x.least - shift).exp()
    most = (x.most - shift).exp()
    itself = torch.eye(x.shape[-1], dtype=torch.bool)
    others = (~itself).to(x.dtype)  # a total less the own part would be rounded away where that is large
    y_least = least / (least + most @ others)
    y_most = most / (most + least @ others)
    difference_low = x.low[..., :, None] - x.high[..., None, :]
    difference_high = x.high[..., :, None] - x.low[..., None, :]
    low, high = _times(
        difference_low.masked_fill(itself, 0.0),
        difference_high.masked_fill(itself, 0.0),
        y_least[..., None, :],
        y_most[..., None, :],
    )
    found = x._like(torch.softmax(x.middle, -1), *_times(low.sum(-1), high.sum(-1), y_least, y_most))
    # The largest of the others is taken from each number, and rounded, before the exponential.
    return found._rounded(found.largest * (x.shape[-1] + 2 * x.largest.amax(-1, keepdim=True)))


def _greater(x: Slope) -> Slope:
    """1 where x > 0, else 0; anything between where that may change on the box, and then without a derivative."""
    one = torch.ones_like(x.middle)
    known = (x.least > 0) | (x.most <= 0)
    jump = torch.where(known, torch.zeros_like(one), one)
    return x._like((x.middle > 0).to(x.dtype), -jump, jump)


def _maximum(a: Any, b: Any) -> Slope:
    return -_minimum(-a, -b)


def _minimum(a: Any, b: Any) -> Slope:
    """The smaller of two: its slope is that of the one that is smaller, or between both where that may change."""
    if not isinstance(a, Slope):
        a, b = b, a
    if not isinstance(b, Slope):
        b = _constant(b, a)
    assert isinstance(a, Slope)
    first = a.most <= b.least
    second = b.most <= a.least
    low = torch.where(first, a.low, torch.where(second, b.low, torch.minimum(a.low, b.low)))
    high = torch.where(first, a.high, torch.where(second, b.high, torch.maximum(a.high, b.high)))
    return a._like(torch.minimum(a.middle, b.middle), low, high)


class _Running:
    """What `torch.cummin` answers, as far as networks use it."""

    def __init__(self, values: Slope) -> None:
        self.values = values


def _cummin(x: Slope, dim: int) -> _Running:
    assert dim == -1
    running = [x[..., 0]]
    for place in range(1, x.shape[-1]):
        running.append(_minimum(running[-1], x[..., place]))
    return _Running(_stack(running, -1))


def _stack(parts: Sequence[Any], dim: int = 0) -> Slope:
    return _joined(parts, lambda same: torch.stack(same, dim))


def _cat(parts: Sequence[Any], dim: int = 0) -> Slope:
    return _joined(parts, lambda same: torch.cat(same, dim))


def _joined(parts: Sequence[Any], join: Callable[[list[Tensor]], Tensor]) -> Slope:
    like = next(part for part in parts if isinstance(part, Slope))
    slopes = [part if isinstance(part, Slope) else _constant(part, like) for part in parts]
    return like._like(
        join([part.middle for part in slopes]),
        join([part.low for part in slopes]),
        join([part.high for part in slopes]),
    )


def _constant(value: Tensor, like: Slope) -> Slope:
    nothing = torch.zeros_like(value)
    return like._like(value, nothing, nothing)


def _split(x: Slope, sizes: int | Sequence[int], dim: int = 0) -> list[Slope]:
    parts = zip(*(torch.split(part, sizes, dim) for part in (x.middle, x.low, x.high)), strict=True)  # type: ignore[arg-type]
    return [x._like(*part) for part in parts]


def _unbind(x: Slope, dim: int = 0) -> list[Slope]:
    return [x._shaped(lambda part, at=at: part.select(dim, at)) for at in range(x.shape[dim])]  # type: ignore[misc]


def _arranged(name: str) -> Callable[..., Slope]:
    return lambda x, *args, **named: x._shaped(lambda part: getattr(part, name)(*args, **named))


def _like_middle(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`ones_like` and its kind: a constant of the same shape."""
    return lambda x, *args, **named: function(x.middle, *args, **named)


def _expand_as(x: Any, other: Any) -> Any:
    if isinstance(x, Slope):
        return x._shaped(lambda part: part.expand(other.shape))
    return x.expand(other.shape)


_RULES: dict[Any, Callable[..., Any]] = {
    torch.exp: _exp,
    Tensor.exp: _exp,
    torch.log: _log,
    Tensor.log: _log,
    torch.log1p: _log1p,
    torch.sigmoid: _sigmoid,
    Tensor.sigmoid: _sigmoid,
    torch.relu: _relu,
    Tensor.relu: _relu,
    torch.nn.functional.relu: _relu,
    torch.tanh: _tanh,
    Tensor.tanh: _tanh,
    torch.nn.functional.tanh: _tanh,
    torch.nn.functional.softplus: _softplus,
    torch.nn.functional.gelu: _gelu,
    torch.nn.functional.layer_norm: _layer_norm,
    torch.nn.functional.dropout: _dropout,
    torch.nn.functional.multi_head_attention_forward: _attention,
    torch.nn.functional.linear: _linear,
    torch.clamp: _clamp,
    Tensor.clamp: _clamp,
    Tensor.clamp_min: lambda x, floor: _clamp(x, min=floor),
    Tensor.sum: _sum,
    torch.sum: _sum,
    Tensor.mean: _mean,
    torch.mean: _mean,
    torch.softmax: _softmax,
    Tensor.softmax: _softmax,
    torch.nn.functional.softmax: _softmax,
    torch.cummin: _cummin,
    torch.minimum: _minimum,
    torch.maximum: _maximum,
    Tensor.__gt__: lambda a, b: _greater(_subtract(a, b)),
    Tensor.__lt__: lambda a, b: _greater(_subtract(b, a)),
    torch.stack: _stack,
    torch.cat: _cat,
    torch.addcmul: _addcmul,
    torch.sub: _subtract,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.__rmatmul__: lambda a, b: _matmul(b, a),
    Tensor.add: _add,
    Tensor.__add__: _add,
    Tensor.__radd__: _add,
    Tensor.sub: _subtract,
    Tensor.__sub__: _subtract,
    Tensor.__rsub__: lambda a, b: _subtract(b, a),
    Tensor.mul: _multiply,
    Tensor.__mul__: _multiply,
    Tensor.__rmul__: _multiply,
    Tensor.div: _divide,
    Tensor.__truediv__: _divide,
    Tensor.__rtruediv__: lambda a, b: _divide(b, a),
    torch.ones_like: _like_middle(torch.ones_like),
    torch.zeros_like: _like_middle(torch.zeros_like),
    torch.full_like: _like_middle(torch.full_like),
    Tensor.split: _split,
    torch.split: _split,
    Tensor.unbind: _unbind,
    Tensor.square: lambda x: _multiply(x, x),
    Tensor.cumsum: _cumsum,
    **{
        getattr(Tensor, name): _arranged(name)
        for name in ("squeeze", "unsqueeze", "flatten", "unflatten", "transpose", "reshape", "expand")
    },
    Tensor.expand_as: _expand_as,
}
