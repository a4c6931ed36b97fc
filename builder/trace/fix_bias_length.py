"""Lets models that make masks or biases of scores themselves have them for more positions than any sequence of a trace.

A model makes them for its own number of positions, and keeps those of a sequence, as many as the sequence has. A trace
of every length up to that number would have a case of its own for the whole of them, which keeps all.

* MPT keeps the biases of the last positions, which count from the end: what is kept does not depend on the number.
* GPT and GPT-Neo keep the first rows and columns of a square. Rows and columns of zeros behind it are never kept.
"""

from __future__ import annotations

from torch import nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from tensorwright.errors import UnsupportedModelError


def fix_bias_length(model: PreTrainedModel, max_seq_len: int, longest: int) -> None:
    """Makes the biases and masks of a model that has such ones larger than `longest`, in place.

    longest: the longest sequence that the trace is of, at least `max_seq_len`. Raises UnsupportedModelError if a mask
    is of fewer positions than `max_seq_len`.
    """
    config = model.config.get_text_config()
    if hasattr(getattr(config, "attn_config", None), "alibi_bias_max") and config.max_seq_len <= longest:
        config.max_seq_len = longest + 1
    positions = getattr(config, "max_position_embeddings", None)
    for path, module in model.named_modules():
        for name in module._non_persistent_buffers_set:
            if list(module._buffers[name].shape) == [1, 1, positions, positions]:  # type: ignore[union-attr]
                _enlarge(module, path, name, max_seq_len, longest)


def _enlarge(module: nn.Module, path: str, name: str, max_seq_len: int, longest: int) -> None:
    square = module.get_buffer(name)
    positions = square.shape[-1]
    if max_seq_len > positions:
        raise UnsupportedModelError(
            f"{path} has a mask of {positions} positions ({name}); max_seq_len must be at most that, not {max_seq_len}"
        )
    if longest >= positions:
        more = longest + 1 - positions
        module.register_buffer(name, pad(square, (0, more, 0, more)), persistent=False)
