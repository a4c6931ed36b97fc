"""Finds the checkpoint's tensors of each parameter of the model, through transformers' renames and tied weights.

Where transformers makes a parameter of several tensors while loading, such as one matrix per expert, the parameter is
an expression over them (convert_weights.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, rename_source_key

from tensorwright.builder.trace.convert_weights import Conversions
from tensorwright.builder.trace.left_out import is_further_layer, predicting_tensors
from tensorwright.builder.trace.text_part import TextPart, find_text_part
from tensorwright.errors import CheckpointError
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.dtypes import WEIGHTS

_COMPARED_ROWS = 4096


@dataclass(frozen=True)
class TextWeights:
    """The weights of the text part of a model.

    expressions: by the name of each parameter or persistent buffer, the place of its values in the checkpoint. part:
    the modules of the text part. targets: the model's name of each stored tensor that it takes, by the stored name.
    """

    expressions: dict[str, WeightExpr]
    part: TextPart
    targets: dict[str, str]


def find_weights(model: PreTrainedModel, checkpoint: Checkpoint) -> TextWeights:
    """Finds the tensors of the text part.

    Tied parameters get the same expression. Raises CheckpointError that names every missing or mis-shaped parameter at
    once, and UnsupportedModelError if loading would convert values in a way that no expression has.
    """
    part = find_text_part(model)
    targets, conversions = _target_names(model, checkpoint, part)
    converted = conversions.expressions(model, checkpoint)
    stored = {target: name for name, target in targets.items() if part.holds(target)}
    parameters = [name for name, _ in model.named_parameters() if part.holds(name) and name not in converted]
    homes = {name: stored.get(name, name) for name in parameters}
    homes |= {name: stored[name] for name, _ in model.named_buffers() if name in stored}
    if part.paths is not None and not stored:
        raise CheckpointError(
            f"{checkpoint.path}: holds no weight of a {type(model).__name__}'s text part; give the whole checkpoint"
        )
    for target, source in model.all_tied_weights_keys.items():
        _tie(homes, target, source, checkpoint)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in homes:
            _require_one_shape(shapes, homes[name], tuple(tensor.shape), checkpoint)
    checkpoint.require(shapes)
    parts = {name for expr in converted.values() for name in expr.refs()}
    _require_floats(sorted({homes[name] for name in parameters} | parts), checkpoint)
    targets |= conversions.targets
    _refuse_more_weights(model, checkpoint, part, targets)
    return TextWeights({**{name: Ref(home) for name, home in homes.items()}, **converted}, part, targets)


def _require_floats(names: list[str], checkpoint: Checkpoint) -> None:
    wrong = [f"  {name}: stored as {dtype}" for name in names if (dtype := checkpoint.dtype(name)) not in WEIGHTS]
    if wrong:
        raise CheckpointError(
            f"{checkpoint.path}: weights must be {', '.join(WEIGHTS)}, and config.json names no quantization that "
            "explains these; take the config.json that came with the weights:\n" + "\n".join(wrong)
        )


def _refuse_more_weights(
    model: PreTrainedModel, checkpoint: Checkpoint, part: TextPart, targets: dict[str, str]
) -> None:
    """Raises CheckpointError if stored tensors show that config.json leaves out weights. Other tensors are ignored.

    Such tensors are those of further layers, unless the layers predict further tokens, and those that stand beside a
    weight of the model, as a bias does.
    """
    predicting = predicting_tensors(model, checkpoint, part, targets)
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    known = {*targets, *predicting}
    rest = [name for name in checkpoint.names if name not in known and not any(p.search(name) for p in ignored)]
    modules = {name.rpartition(".")[0] for name, target in targets.items() if part.holds(target)}
    beside = [name for name in rest if name.rpartition(".")[0] in modules]
    if beside:
        raise CheckpointError(
            f"{checkpoint.path}: config.json leaves out {len(beside)} weights that are stored beside those of the same "
            "modules; correct it, mostly an option such as attention_bias:\n" + "\n".join(f"  {n}" for n in beside)
        )


def _target_names(model: PreTrainedModel, checkpoint: Checkpoint, part: TextPart) -> tuple[dict[str, str], Conversions]:
    """Maps checkpoint names to model state names, for every checkpoint tensor that the model takes as it is.

    The second result has the tensors that become parts of a parameter of the text. Tensors of other parts may be
    converted in any way, for they are not read.
    """
    state: dict[str, torch.Tensor] = model.state_dict()
    transforms = get_model_conversion_mapping(model)
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    renamings: list[Any] = [t for t in transforms if not isinstance(t, WeightConverter)]
    targets: dict[str, str] = {}
    sources: dict[str, str] = {}
    conversions = Conversions(converters)
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for name in checkpoint.names:
        if is_further_layer(name, layers) and name not in state:
            continue  # The layers that predict further tokens have experts as others have.
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if target not in state and name in state:
            target, pattern = name, None
        if pattern is not None and (part.holds(target) or target not in state):
            conversions.add(target, pattern, name)
        elif target in state:
            if part.holds(target) and sources.setdefault(target, name) != name:
                raise CheckpointError(f"{checkpoint.path}: {sources[target]!r} and {name!r} both become {target!r}")
            targets[name] = target
    return targets, conversions


def _tie(homes: dict[str, str], target: str, source: str, checkpoint: Checkpoint) -> None:
    """Ties as transformers does: a stored tensor wins; two stored tensors with different values stay apart."""
    if target not in homes or source not in homes:
        return
    has_target, has_source = homes[target] in checkpoint, homes[source] in checkpoint
    if has_target and has_source and not _equal(homes[target], homes[source], checkpoint):
        return
    if has_target and not has_source:
        homes[source] = homes[target]
    else:
        homes[target] = homes[source]


def _equal(a: str, b: str, checkpoint: Checkpoint) -> bool:
    """Returns whether two stored tensors hold the same bits; reads a few rows at a time, as tensors may be huge."""
    if checkpoint.shape(a) != checkpoint.shape(b) or checkpoint.dtype(a) != checkpoint.dtype(b):
        return False
    if not checkpoint.shape(a):
        return checkpoint.read(a).data.tobytes() == checkpoint.read(b).data.tobytes()
    rows, *others = checkpoint.shape(a)

    def part(name: str, start: int) -> np.ndarray:
        ranges = ((start, min(rows, start + _COMPARED_ROWS)), *((0, size) for size in others))
        return checkpoint.read_part(name, ranges).data

    return all(np.array_equal(part(a, start), part(b, start)) for start in range(0, rows, _COMPARED_ROWS))


def _require_one_shape(
    shapes: dict[str, tuple[int, ...]], home: str, shape: tuple[int, ...], checkpoint: Checkpoint
) -> None:
    if shapes.setdefault(home, shape) != shape:
        raise CheckpointError(f"{checkpoint.path}: {home} is tied to parameters of shapes {shapes[home]} and {shape}")
