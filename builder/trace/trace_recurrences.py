"""Makes each recurrence one operation of the trace, whatever its family.

transformers computes convolutions over the sequence, scans and delta rules by functions of a modelling file's module,
which have the same names and parameters in all files. While a model is exported, functions stand in their place that
call operations of torch without arithmetic, so that the exporter does not look inside; lower_aten.py makes our ops of
these.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from tensorwright.errors import UnsupportedModelError
from tensorwright.plugins.state_space_scan.op import MAX_STEP

CAUSAL_CONV = "tensorwright.causal_conv"
STATE_SPACE_SCAN = "tensorwright.state_space_scan"
DELTA_RULE = "tensorwright.delta_rule"
"""The names of the operations in an exported graph."""

_ONE_AT_A_TIME = threading.Lock()
"""The functions of a module are replaced for the whole process. Exports in other threads wait for this lock."""


@contextmanager
def opaque_recurrences(model: PreTrainedModel) -> Iterator[None]:
    """Makes the recurrences of `model` call the opaque operations while the context is open."""
    files = [sys.modules[name] for name in {type(module).__module__ for module in model.modules()}]
    with _ONE_AT_A_TIME:
        replaced: list[tuple[Any, str, Any]] = []
        for file in files:
            for name, function in list(vars(file).items()):
                if name in _REPLACEMENTS and getattr(function, "__module__", None) == file.__name__:
                    replaced.append((file, name, function))
                    setattr(file, name, _REPLACEMENTS[name])
        try:
            yield
        finally:
            for file, name, function in replaced:
                setattr(file, name, function)


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
    """Stands for chunk_gated_delta_rule.

    query and key: [batch, tokens, key heads, K], value: [batch, tokens, heads, P], g and beta: [batch, tokens, heads].
    """
    if initial_state is not None or output_final_state or not use_qk_l2norm_in_kernel:
        raise _refuse("an initial state, or without norms of queries and keys")
    q, k, v = (x.reshape(*x.shape[:2], x.shape[2] * x.shape[3]) for x in (query, key, value))
    key_heads, heads = key.shape[2], value.shape[2]
    out: torch.Tensor = torch.ops.tensorwright.delta_rule(v, q, k, g, beta, key_heads, heads)
    return out.reshape(value.shape), None


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _causal_conv,
    "mamba2_chunk_scan": _state_space_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
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
_define(DELTA_RULE, "(Tensor v, Tensor q, Tensor k, Tensor g, Tensor beta, int key_heads, int heads) -> Tensor")
