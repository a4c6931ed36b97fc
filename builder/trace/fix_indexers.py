"""Takes the indexers out of a model whose sequences are so short that an indexer picks every position.

An indexer scores the positions before a token and picks the best of them, and its layer attends to those alone. All
that comes of it is a mask of scores. While it picks every position, the layer attends as others do, and an engine needs
none of the indexer's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tensorwright.errors import UnsupportedModelError

INDEXED = "indexed_attention"
"""What layer_types calls layers that attend to the positions that an indexer picks."""


class _Picked:
    """Stands for what an indexer returns. A model may make a mask of scores of it, and nothing else."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _used_otherwise(name)


class ConstantMask(_Picked):
    """A mask of any shape that is `value` everywhere."""

    def __init__(self, value: bool):
        self.value = value

    def __invert__(self) -> ConstantMask:
        return ConstantMask(not self.value)

    def unsqueeze(self, dim: int) -> ConstantMask:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns the scores or the mask that a model masks, where this mask changes nothing in them."""
        name = getattr(func, "__name__", str(func)).strip("_")
        mask = args[1] if len(args) > 1 else None
        neutral = {"masked_fill": False, "and": True}.get(name)
        if isinstance(mask, ConstantMask) and mask.value is neutral:
            return args[0]
        raise _used_otherwise(name)


class EveryPosition(_Picked):
    """The indices of every position, for each token."""

    def long(self) -> EveryPosition:
        return self

    def new_ones(self, shape: Any, dtype: torch.dtype) -> _NoneTaken:
        if dtype is not torch.bool:
            raise _used_otherwise(f"new_ones of {dtype}")
        return _NoneTaken()


class _NoneTaken(_Picked):
    """A mask of every position, out of which a model takes those that are picked."""

    def scatter(self, dim: int, index: EveryPosition, value: bool) -> ConstantMask:
        if dim != -1 or value is not False or not isinstance(index, EveryPosition):
            raise _used_otherwise("scatter")
        return ConstantMask(False)


class EveryBlock(_Picked):
    """The indices of every block of positions, for each token, of which the indexer itself makes a mask of scores."""


def _same_mask(blocks: Any, mask: torch.Tensor | None, *rest: Any) -> torch.Tensor | None:
    """Stands for build_block_mask, which masks the positions that are not in `blocks`."""
    if not isinstance(blocks, EveryBlock):
        raise _used_otherwise("build_block_mask")
    return mask


def _used_otherwise(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"what an indexer picks is used by {name}, and not to mask scores alone")


@dataclass(frozen=True)
class Kind:
    """A kind of indexers.

    fields: those of FIELDS that a module of this kind has. reach: returns how many positions a module picks all of.
    picked: makes what the module returns for sequences up to there. methods: further methods, by their names.
    """

    fields: frozenset[str]
    reach: Callable[[Any], int]
    picked: Callable[[], Any]
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


KINDS = (
    Kind(frozenset({"index_topk"}), lambda indexer: int(indexer.index_topk), EveryPosition),
    Kind(
        frozenset({"topk_blocks"}),
        lambda indexer: int(indexer.topk_blocks) * int(indexer.block_size),
        EveryBlock,
        {"build_block_mask": _same_mask},
    ),
)
"""Every kind that is known: the best index_topk positions of all, and the best blocks of block_size positions."""

PICKS = frozenset({"index_topk", "block_topk", "topk_blocks"})
"""The fields of modules that say how much a module picks: each makes it an indexer."""

FIELDS = PICKS | {"index_kpool", "compress_rate", "compress_ratio"}
"""The fields that say what an indexer picks, and of what."""


def is_indexer(module: nn.Module) -> bool:
    """Returns whether a module picks the positions that its layer attends to."""
    return bool(PICKS & vars(module).keys())


def find_indexers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Returns the modules that pick positions, by their names."""
    return {name: module for name, module in model.named_modules() if is_indexer(module)}


def fix_indexers(model: PreTrainedModel, max_seq_len: int) -> list[str]:
    """Takes the indexers of `model` out, in place, and returns their names.

    Raises UnsupportedModelError for indexers that would not pick every position of `max_seq_len`, for those of no known
    kind, and for layers that are said to have one where the model has none.
    """
    indexers = find_indexers(model)
    if not indexers and INDEXED in (getattr(model.config.get_text_config(), "layer_types", None) or ()):
        raise UnsupportedModelError(f"{model.config.model_type} has no indexer for its layers of type {INDEXED}")
    for name, indexer in indexers.items():
        fields = FIELDS & vars(indexer).keys()
        kind = next((kind for kind in KINDS if kind.fields == fields), None)
        if kind is None:
            raise UnsupportedModelError(
                f"{name} ({type(indexer).__name__}) picks what its layer attends to in a way that is not supported "
                f"({', '.join(sorted(fields))})"
            )
        reach = kind.reach(indexer)
        if max_seq_len > reach:
            raise UnsupportedModelError(
                f"{name} picks {reach} positions of those before a token, and attention to some of the positions is "
                f"not supported; max_seq_len must be at most {reach}, not {max_seq_len} (--max-seq-len {reach})"
            )
        for method, stand_in in {"forward": _returns(kind.picked), **kind.methods}.items():
            if not callable(getattr(indexer, method, None)):
                raise UnsupportedModelError(f"{name} ({type(indexer).__name__}) has no {method}, as its kind has")
            setattr(indexer, method, stand_in)
    return list(indexers)


def _returns(picked: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: picked()
