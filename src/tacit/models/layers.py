"""Layers and functions of torch that a model may have, as they have to be for many clients at once.

*Dropout* of every kind takes its masks from the key of the example (`core/dropout.py`), not from a global generator.
*Attention* and *recurrent networks* are written out in plain operations: torch's own have no rule for `vmap`, or a slow
one. The numbers are torch's up to rounding, and so are the semantics, but for what is refused here.

*Low precision*: matrix products and convolutions in bfloat16; parameters, sums over examples, norms and all else as
they were. Masters stay in float32: a parameter is rounded where it is used, and its gradient comes back in float32.
So what is clipped, covered with noise and summed is float32, whatever the network computed in, and a bound holds.

*Batch normalisation* keeps its statistics outside the module, as values that go in and come out.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tacit.core.dropout import draws
from tacit.errors import TacitError
from tacit.models.networks import conv_max_pool2d_relu, conv_relu

States = tuple[Tensor, ...]
Cell = Callable[[Tensor, States, Tensor, Tensor | None, Tensor | None], States]
"""(projected input, states, recurrent weight, its bias, weight of a projection) -> the next states, outputs first."""
_ASKED: Final = Tensor.__bool__
_MASKS: Final = "transformers.masking_utils"
"""Hugging Face's masks. It asks of a mask whether all of it is true, to leave it out then, and of many clients at once
there is no answer. "No" is right for every mask: it is applied."""
_ALPHA: Final = -1.7580993408473766  # what SELU tends to: the value of a number dropped by alpha dropout


class Layers(TorchFunctionMode):
    """While active, torch's functions of this module's table are done by it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ASKED and _asking() == _MASKS:
            return False
        return (_OURS.get(func) or func)(*args, **(kwargs or {}))


def _asking() -> str | None:
    """The module that called a function of torch; other modes may stand between it and ours."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame.f_globals.get("__name__")


def _keep(x: Tensor, p: float, training: bool, dims: int | None = None) -> Tensor | None:
    """What of `x` is kept, by the first `dims` dimensions; None where everything is."""
    if not 0 <= p <= 1:
        raise TacitError(f"the probability of dropout is {p}: use one between 0 and 1")
    if not training or p == 0 or (now := draws()) is None:
        return None
    whole = x.shape if dims is None else x.shape[:dims]
    if p == 1:
        return torch.zeros(whole, dtype=torch.bool, device=x.device)
    if x.shape[0] % now.rows:
        raise TacitError(
            f"dropout of shape {tuple(x.shape)} in a batch of {now.rows} rows, in a model with BatchNorm: "
            "put the batch first, or use GroupNorm"
        )
    keep = now.keep((x.shape[0] // now.rows, *whole[1:]), p)
    return keep.reshape(*whole, *[1] * (x.dim() - len(whole)))


def _drop(x: Tensor, p: float, keep: Tensor | None) -> Tensor:
    return x if keep is None else x * (keep.to(x.dtype) * (1 / max(1 - p, 2**-32)))


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch's; never in place."""
    return _drop(input, p, _keep(input, p, training))


def _channel_dropout(batched: int) -> Callable[..., Tensor]:
    """Whole channels; an input of fewer than `batched` dimensions has no dimension for the batch."""

    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return _drop(input, p, _keep(input, p, training, 1 if input.dim() < batched else 2))

    return drop


def _alpha(x: Tensor, p: float, keep: Tensor | None) -> Tensor:
    """Keeps mean 0 and variance 1 (Klambauer et al. 2017)."""
    if keep is None:
        return x
    if p == 1:
        return x * 0
    scale = ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    return scale * (torch.where(keep, x, _ALPHA) - p * _ALPHA)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha(input, p, _keep(input, p, training))


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha(input, p, _keep(input, p, training, 2))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's `scaled_dot_product_attention`, as its page defines it."""
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None or attn_mask.dtype != torch.bool:
        scores = scores if attn_mask is None else scores + attn_mask
        return dropout(scores.softmax(-1), dropout_p) @ value
    blind = ~attn_mask.any(-1, keepdim=True)  # who may look at nothing sees zeros, and has no gradient
    weights = scores.masked_fill(~(attn_mask | blind), float("-inf")).softmax(-1)
    return dropout(weights.masked_fill(blind, 0.0), dropout_p) @ value


_inside_attention = FunctionType(
    functional.multi_head_attention_forward.__code__,
    vars(functional) | {"has_torch_function": lambda _: False},  # else it asks a mode to do all of it
    argdefs=functional.multi_head_attention_forward.__defaults__,
)


def multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """torch's own code, with the functions of this module inside."""
    with Layers():
        return _inside_attention(*args, **kwargs)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """torch's, of bags that are the rows of a matrix; an empty bag is zero."""
    if offsets is not None or input.dim() != 2 or max_norm is not None or scale_grad_by_freq:
        raise TacitError(
            "embedding_bag runs for bags of one length, without max_norm or scale_grad_by_freq: give indices as "
            "[rows, length], and pad with padding_idx"
        )
    real = torch.ones_like(input) if padding_idx is None else input != padding_idx
    each, real = functional.embedding(input, weight), real.unsqueeze(-1).to(weight.dtype)
    if mode == "max":
        largest = each.masked_fill(real == 0, float("-inf")).amax(1)
        return torch.where(real.any(1), largest, 0.0)
    each = each * real if per_sample_weights is None else each * real * per_sample_weights.unsqueeze(-1)
    return each.sum(1) if mode == "sum" else each.sum(1) / real.sum(1).clamp(min=1)


def _lstm_step(x: Tensor, states: States, weight: Tensor, bias: Tensor | None, project: Tensor | None) -> States:
    h, c = states
    i, f, g, o = (x + linear(h, weight, bias)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if project is None else linear(h, project)), c


def _gru_step(x: Tensor, states: States, weight: Tensor, bias: Tensor | None, project: Tensor | None) -> States:
    (h,) = states
    r, z, n = x.chunk(3, -1)
    more_r, more_z, more_n = linear(h, weight, bias).chunk(3, -1)
    n = (n + (r + more_r).sigmoid() * more_n).tanh()
    return (n + (z + more_z).sigmoid() * (h - n),)


def _rnn_step(activate: Callable[[Tensor], Tensor]) -> Cell:
    def step(x: Tensor, states: States, weight: Tensor, bias: Tensor | None, project: Tensor | None) -> States:
        return (activate(x + linear(states[0], weight, bias)),)

    return step


def _run(cell: Cell, x: Tensor, states: States, weights: Sequence[Tensor], biases: bool) -> tuple[Tensor, States]:
    """One layer in one direction over [time, batch, features]: outputs, and the last states."""
    read, recur, *rest = weights
    read_bias, recur_bias = rest[:2] if biases else (None, None)
    project = next(iter(rest[2 if biases else 0 :]), None)
    outputs = []
    for now in linear(x, read, read_bias).unbind(0):
        states = cell(now, states, recur, recur_bias, project)
        outputs.append(states[0])
    return torch.stack(outputs), states


def _recurrent(cell: Cell, several_states: bool) -> Callable[..., States]:
    """torch's function for all layers of a recurrent network."""

    def forward(
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any,
        num_layers: int,
        dropout_p: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> States:
        if isinstance(has_biases, list | tuple):  # the weights: then (data, batch sizes, states, weights, ...) came
            raise TacitError(
                "packed sequences have a length that depends on data, which many clients at once cannot have: "
                "pad sequences to one length, and take the output at the last real place with gather"
            )
        starts, ways = tuple(hx) if several_states else (hx,), 2 if bidirectional else 1
        each = len(params) // (num_layers * ways)
        x, ends = input.transpose(0, 1) if batch_first else input, []
        for layer in range(num_layers):
            if layer:  # masks go by the batch
                x = dropout(x.transpose(0, 1), dropout_p, train).transpose(0, 1)
            outputs = []
            for way in range(ways):
                at = layer * ways + way
                weights, states = params[at * each : (at + 1) * each], tuple(start[at] for start in starts)
                out, end = _run(cell, x.flip(0) if way else x, states, weights, has_biases)
                outputs.append(out.flip(0) if way else out)
                ends.append(end)
            x = torch.cat(outputs, -1)
        return x.transpose(0, 1) if batch_first else x, *(torch.stack(parts) for parts in zip(*ends, strict=True))

    return forward


def _one_step(cell: Cell, several_states: bool) -> Callable[..., Any]:
    """torch's function for one step."""

    def forward(
        input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Any:
        states = cell(linear(input, w_ih, b_ih), tuple(hx) if several_states else (hx,), w_hh, b_hh, None)
        return states if several_states else states[0]

    return forward


_OURS: Final[dict[Any, Callable[..., Any]]] = {
    functional.dropout: dropout,
    torch.dropout: lambda input, p, train: dropout(input, p, train),
    functional.dropout1d: _channel_dropout(3),
    functional.dropout2d: _channel_dropout(3),  # of three dimensions the first is the batch, as in torch
    functional.dropout3d: _channel_dropout(5),
    functional.alpha_dropout: alpha_dropout,
    functional.feature_alpha_dropout: feature_alpha_dropout,
    functional.scaled_dot_product_attention: attend,
    functional.multi_head_attention_forward: multi_head_attention,
    functional.embedding_bag: embedding_bag,
    torch.lstm: _recurrent(_lstm_step, True),
    torch.gru: _recurrent(_gru_step, False),
    torch.rnn_tanh: _recurrent(_rnn_step(torch.tanh), False),
    torch.rnn_relu: _recurrent(_rnn_step(torch.relu), False),
    torch.lstm_cell: _one_step(_lstm_step, True),
    torch.gru_cell: _one_step(_gru_step, False),
    torch.rnn_tanh_cell: _one_step(_rnn_step(torch.tanh), False),
    torch.rnn_relu_cell: _one_step(_rnn_step(torch.relu), False),
}


_PRODUCTS: Final = frozenset(
    {
        functional.linear,
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        torch.einsum,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.mm,
        Tensor.bmm,
        conv_relu,
        conv_max_pool2d_relu,
    }
)


class LowPrecision(TorchFunctionMode):
    """While active, products round what goes in to `dtype`; what comes out has the type that it would have had."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        numbers = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_float(leaf)]
        args, kwargs = pytree.tree_map(self._round, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return out.to(numbers[0].dtype) if numbers else out

    def _round(self, leaf: Any) -> Any:
        return leaf.to(self._dtype) if _is_float(leaf) else leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


Moments = tuple[Tensor, Tensor]
"""Mean and variance of each channel, [channels]."""
Rule = Callable[[str, Tensor], Moments]
"""(name of the layer, its input) -> the moments to normalise with."""


def moments(x: Tensor, mask: Tensor) -> Moments:
    """Of each channel over the real rows, with population variance; (0, 1) when no row is real."""
    channels = x.transpose(0, 1).flatten(2) if x.dim() > 2 else x.T.unsqueeze(-1)  # [channels, rows, places]
    weight = mask.to(x.dtype)[:, None]
    count = weight.sum() * channels.shape[2]
    share = 1 / count.clamp(min=1)
    mean = (channels * weight).sum((1, 2)) * share
    spread = ((channels - mean[:, None, None]).square() * weight).sum((1, 2)) * share
    return mean, torch.where(count > 0, spread, torch.ones_like(spread))


def _of_batch(_: str, x: Tensor) -> Moments:
    places = [0, *range(2, x.dim())]
    mean = x.mean(places)
    return mean, (x - _across(mean, x)).square().mean(places)


def _across(values: Tensor, x: Tensor) -> Tensor:
    """Shaped so that channel `c` of `x` meets `values[c]`."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


class LocalNorm(nn.Module):
    """Stands in for a batch normalisation layer with the same parameters, and without buffers.

    It normalises by the statistics of the batch unless `using` hands it others. A batch of one row is allowed.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: _BatchNorm, name: str) -> None:
        super().__init__()
        self.register_parameter("weight", layer.weight)
        self.register_parameter("bias", layer.bias)
        self.eps, self.name = layer.eps, name
        self.rule: Rule = _of_batch

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.rule(self.name, x)
        scale = (variance + self.eps).rsqrt()
        if self.weight is None or self.bias is None:
            return (x - _across(mean, x)) * _across(scale, x)
        return (x - _across(mean, x)) * _across(scale * self.weight, x) + _across(self.bias, x)


def has_batch_statistics(module: nn.Module) -> list[str]:
    """Names of the layers whose output for one row depends on the other rows of the batch (BatchNorm)."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm | LocalNorm)]


def localised(module: nn.Module) -> nn.Module:
    """Puts a `LocalNorm` in place of every batch normalisation layer; changes the module that is given."""
    for name in has_batch_statistics(module):
        layer = module.get_submodule(name)
        if isinstance(layer, LocalNorm):
            continue
        if not name:
            return LocalNorm(layer, name)  # pyright: ignore[reportArgumentType]
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, LocalNorm(layer, name))  # pyright: ignore[reportArgumentType]
    return module


@contextmanager
def using(module: nn.Module, rule: Rule) -> Iterator[None]:
    """Within, every `LocalNorm` of the module takes its moments from `rule`; not for one module in two threads."""
    layers = [layer for layer in module.modules() if isinstance(layer, LocalNorm)]
    try:
        for layer in layers:
            layer.rule = rule
        yield
    finally:
        for layer in layers:
            layer.rule = _of_batch
