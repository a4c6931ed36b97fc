"""Makes each recurrence one operation of the trace, whatever its family.

transformers computes convolutions over the sequence, scans and delta rules by functions of a modelling file's module,
which have the same names and parameters in all files. While a model is exported, functions stand in their place that
call operations of torch without arithmetic, so that the exporter does not look inside; lower_aten.py makes our ops of
these. Methods that step from token to token in a loop are replaced in their classes likewise. Which functions and
methods those are decides whether a family's recurrences are understood: there is no list of families.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

from tensorwright.errors import UnsupportedModelError
from tensorwright.plugins.state_space_scan.op import MAX_STEP

CAUSAL_CONV = "tensorwright.causal_conv"
SELECTIVE_SCAN = "tensorwright.selective_scan"
STATE_SPACE_SCAN = "tensorwright.state_space_scan"
DELTA_RULE = "tensorwright.delta_rule"
RG_LRU = "tensorwright.rg_lru"
LINEAR_ATTENTION = "tensorwright.linear_attention"
"""The names of the operations in an exported graph."""

_ONE_AT_A_TIME = threading.Lock()
"""The functions of a module are replaced for the whole process. Exports in other threads wait for this lock."""


@contextmanager
def opaque_recurrences(model: PreTrainedModel) -> Iterator[None]:
    """Makes the recurrences of `model` call the opaque operations while the context is open.

    A recurrence that has no operation raises UnsupportedModelError when it is called.
    """
    classes: set[Any] = {kind for module in model.modules() for kind in type(module).__mro__}
    files = [sys.modules[name] for name in {type(module).__module__ for module in model.modules()}]
    with _ONE_AT_A_TIME:
        replaced: list[tuple[Any, str, Any]] = []
        for file in files:
            for name, function in _recurrences_of(file).items():
                replaced.append((file, name, function))
                setattr(file, name, _REPLACEMENTS.get(name) or _refusal_of(name))
        for kind in classes:
            for name in _METHODS.keys() & vars(kind).keys():
                replaced.append((kind, name, vars(kind)[name]))
                setattr(kind, name, _METHODS[name])
            for name in _FORWARDS.keys() & vars(kind).keys():
                replaced.append((kind, "forward", vars(kind)["forward"]))
                kind.forward = _FORWARDS[name]
        try:
            yield
        finally:
            for owner, name, function in replaced:
                setattr(owner, name, function)


def is_recurrent(module: nn.Module) -> bool:
    """Returns whether the class of `module` calls a recurrence that has an operation."""
    called: set[str] = set()
    known: set[str] = set()
    for base in type(module).__mro__:
        known |= _recurrences_of(sys.modules[base.__module__]).keys() & _REPLACEMENTS.keys()
        known |= vars(base).keys() & (_METHODS.keys() | _FORWARDS.keys())
        for method in vars(base).values():
            called.update(*(function.__code__.co_names for function in _wrapped(method)))
    return bool(called & known)


def _recurrences_of(file: ModuleType) -> dict[str, FunctionType]:
    """Returns the functions of a modelling file that have an operation here, or that transformers declares to be
    recurrences: it has kernels for those and no others by this decorator."""
    return {
        name: function
        for name, function in vars(file).items()
        if getattr(function, "__module__", None) == file.__name__
        and (name in _REPLACEMENTS or any(part.__code__.co_filename == _DECORATORS for part in _wrapped(function)))
    }


_DECORATORS = use_kernel_func_from_hub_with_fallback.__code__.co_filename


def _wrapped(function: Any) -> Iterator[FunctionType]:
    """Yields a function and those that its decorators wrap; nothing for another object."""
    while isinstance(function, FunctionType):
        yield function
        function = getattr(function, "__wrapped__", None)


def _refusal_of(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModelError(f"the recurrence {name} is not supported")

    return refuse


def _refuse(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"a recurrence with {what} is not supported")


def _causal_conv(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Stands for causal_conv1d_fn. hidden_states: [batch, channels, tokens]."""
    silu = activation in ("silu", "swish")
    rows = hidden_states.transpose(1, 2)
    out = torch.ops.tensorwright.causal_conv(rows, weight, bias, "silu" if silu else "none").transpose(1, 2)
    return out if silu or activation is None else ACT2FN[activation](out)


def _state_space_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **kwargs: Any,
) -> torch.Tensor:
    """Stands for mamba_chunk_scan_combined.

    hidden_states: [batch, tokens, heads, width], dt: [batch, tokens, heads], B and C: [batch, tokens, groups, states].
    """
    if initial_states is not None or return_final_states or not dt_softplus or D is None or dt_bias is None:
        raise _refuse("an initial state, or without softplus, D or dt_bias")
    if D.dim() != 1 or kwargs.get("z") is not None:
        raise _refuse("a gate inside, or with D for each channel")
    heads, groups = hidden_states.shape[2], B.shape[2]
    rows = [x.reshape(*x.shape[:2], x.shape[2] * x.shape[3]) for x in (hidden_states, B, C)]
    x, b, c = rows
    low, high = (min(float(limit), MAX_STEP) for limit in dt_limit)
    out: torch.Tensor = torch.ops.tensorwright.state_space_scan(x, dt, b, c, A, D, dt_bias, heads, groups, low, high)
    return out.reshape(hidden_states.shape)


def _selective_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs: Any,
) -> torch.Tensor:
    """Stands for mamba_selective_scan.

    hidden_states, dt and z: [batch, channels, tokens], B and C: [batch, states, tokens].
    """
    if return_last_state or not delta_softplus or D is None or delta_bias is None:
        raise _refuse("an initial state, or without softplus, D or delta_bias")
    x, step, b, c = (v.transpose(1, 2) for v in (hidden_states, dt, B, C))
    out: torch.Tensor = torch.ops.tensorwright.selective_scan(x, step, b, c, A, D, delta_bias)
    return (out if z is None else out * torch.nn.functional.silu(z.transpose(1, 2))).transpose(1, 2)


def _delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Stands for chunk_gated_delta_rule, and for chunk_kimi_delta_attention, where g has K numbers for each head.

    query and key: [batch, tokens, key heads, K], value: [batch, tokens, heads, P], beta: [batch, tokens, heads], g: as
    beta, or [batch, tokens, heads, K].
    """
    if initial_state is not None or output_final_state or not use_qk_l2norm_in_kernel:
        raise _refuse("an initial state, or without norms of queries and keys")
    q, k, v = (x.reshape(*x.shape[:2], x.shape[2] * x.shape[3]) for x in (query, key, value))
    key_heads, heads = key.shape[2], value.shape[2]
    decay = g.reshape(*g.shape[:2], g.shape[2] * g.shape[3]) if g.dim() == 4 else g
    out: torch.Tensor = torch.ops.tensorwright.delta_rule(v, q, k, decay, beta, key_heads, heads)
    return out.reshape(value.shape), None


def _rnn_scan(
    module: nn.Module,
    hidden_states: torch.Tensor,
    recurrent_gate: torch.Tensor,
    reset: torch.Tensor,
    recurrent_states: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Stands for RecurrentGemmaRglru._rnn_scan. hidden_states and recurrent_gate: [batch, tokens, channels], reset:
    [batch, tokens, 1]."""
    if recurrent_states is not None:
        raise _refuse("an initial state")
    return torch.ops.tensorwright.rg_lru(hidden_states, recurrent_gate, reset), None


def _lightning_attention(
    module: Any, hidden_states: torch.Tensor, *args: Any, past_key_values: Any = None, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Stands for MiniMaxLightningAttention.forward, which steps from block to block in a loop.

    The rows of its linear are q, k and v of one head after those of another. hidden_states: [batch, tokens, hidden].
    """
    if past_key_values is not None:
        raise _refuse("an initial state")
    shape, heads = hidden_states.shape[:2], module.num_attention_heads
    by_head = module.qkv_proj(hidden_states).view(*shape, heads, 3 * module.head_dim)
    q, k, v = (x.reshape(*shape, heads * module.head_dim) for x in torch.split(by_head, module.head_dim, dim=3))
    v, k, q = torch.split(module.act_fn(torch.cat([v, k, q], dim=-1)), heads * module.head_dim, dim=-1)
    rows = torch.ops.tensorwright.linear_attention(v, k, q, module.slope_rate.reshape(heads), heads)
    return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * module.norm(rows)), None


_FORWARDS: dict[str, Callable[..., Any]] = {"decay_factors": _lightning_attention}
"""What stands in the place of `forward` of the classes that have a method of this name."""

_METHODS: dict[str, Callable[..., Any]] = {"_rnn_scan": _rnn_scan}
"""What stands in the place of each method, by its name in the classes of modelling files."""

_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _causal_conv,
    "mamba2_chunk_scan": _state_space_scan,
    "mamba_selective_scan": _selective_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
}
"""What stands in the place of each function, by the function's name in the modelling files."""


def _define(name: str, schema: str) -> None:
    """Defines an operation whose result has the type of its first operand."""
    torch.library.define(name.replace(".", "::"), schema)

    @torch.library.register_fake(name.replace(".", "::"))
    def _shape_of_result(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)


_define(CAUSAL_CONV, "(Tensor x, Tensor w, Tensor? bias, str activation) -> Tensor")
_define(
    STATE_SPACE_SCAN,
    "(Tensor x, Tensor dt, Tensor b, Tensor c, Tensor a, Tensor d, Tensor dt_bias, int heads, int groups, "
    "float dt_min, float dt_max) -> Tensor",
)
_define(SELECTIVE_SCAN, "(Tensor x, Tensor dt, Tensor b, Tensor c, Tensor a, Tensor d, Tensor dt_bias) -> Tensor")
_define(DELTA_RULE, "(Tensor v, Tensor q, Tensor k, Tensor g, Tensor beta, int key_heads, int heads) -> Tensor")
_define(RG_LRU, "(Tensor x, Tensor a, Tensor first) -> Tensor")
_define(LINEAR_ATTENTION, "(Tensor v, Tensor k, Tensor q, Tensor slopes, int heads) -> Tensor")
