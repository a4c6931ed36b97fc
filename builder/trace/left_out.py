"""Says which stored tensors a text model leaves out: parts beside the text, layers that predict further tokens, and
indexers (fix_indexers.py)."""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedModel

from tensorwright.builder.trace.text_part import TextPart
from tensorwright.errors import CheckpointError
from tensorwright.models.checkpoint import Checkpoint

PREDICTING_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
"""The fields of configs that give the number of layers which predict tokens after the next one (MTP)."""

NOT_TEXT = "no part of the text model"
NOT_PASSED = "text alone does not pass through it"
PREDICTS = "predicts further tokens"
PICKS_ALL = "picks every position of sequences as short as max_seq_len"

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYER = re.compile(r"^(.*?\.)?(\d+)\.")
_PREDICTING = re.compile(r"^(?:.*?\.)?mtp[a-z_]*(?=\.)")


def left_out_parts(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    part: TextPart,
    targets: dict[str, str],
    used: set[str],
    indexers: list[str],
) -> dict[str, Any]:
    """Returns the record of what an engine leaves out, by the name of the part: {"reason", "tensors", "bytes"}.

    targets: the model's name of each stored tensor that the model takes, by the stored name. used: the stored names of
    the tensors that the graph reads. indexers: the modules that fix_indexers took out; those of all layers are one
    part.
    """
    named = {tensor: (_beside(part, target), NOT_TEXT) for tensor, target in targets.items() if not part.holds(target)}
    named |= _not_passed(part, targets, used)
    named |= {
        tensor: (_LAYER_NUMBER.sub("*", name), PICKS_ALL)
        for tensor, target in targets.items()
        for name in indexers
        if target.startswith(f"{name}.") and part.holds(target)
    }
    predicting = predicting_tensors(model, checkpoint, part, targets)
    named |= {tensor: (layer, PREDICTS) for tensor, layer in predicting.items()}
    record: dict[str, Any] = {}
    for tensor, (name, reason) in sorted(named.items(), key=lambda item: item[1]):
        entry = record.setdefault(name, {"reason": reason, "tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += checkpoint.stored_bytes(tensor)
    return record


def predicting_tensors(
    model: PreTrainedModel, checkpoint: Checkpoint, part: TextPart, targets: dict[str, str]
) -> dict[str, str]:
    """Returns the stored tensors that predict further tokens, each with the name of its layer or part.

    targets: the model's name of each stored tensor that the model takes. Predicting tensors are called mtp, or stand in
    layers after the last one of config.json, where config.json says how many of them there are. Raises CheckpointError
    for more layers than that: config.json is wrong then.
    """
    rest = [name for name in checkpoint.names if name not in targets]
    found = {name: match[0] for name in rest if (match := _PREDICTING.match(name))}
    last: dict[str | None, int] = {}
    for name, target in targets.items():
        if part.holds(target) and (match := _LAYER.match(name)):
            last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    for name in rest:
        if (match := _LAYER.match(name)) and int(match[2]) > last.get(match[1], int(match[2])):
            found[name] = match[0].removesuffix(".")
    _refuse_undeclared(model, checkpoint, {name: layer for name, layer in found.items() if not _PREDICTING.match(name)})
    return found


def is_further_layer(name: str, layers: int | None) -> bool:
    """Returns whether a stored tensor stands in a layer after the last one of a model of so many layers, None if it is
    not known how many."""
    match = _LAYER.match(name)
    return layers is not None and match is not None and int(match[2]) >= layers


def _refuse_undeclared(model: PreTrainedModel, checkpoint: Checkpoint, further: dict[str, str]) -> None:
    """Raises CheckpointError if there are more layers after the last one than config.json and the class know of.

    further: the stored names of their tensors, each with the name of its layer.
    """
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    names = [name for name in further if not any(pattern.search(name) for pattern in ignored)]
    field, declared = _declared(model)
    if len({further[name] for name in names}) > declared:
        said = f"{field} says {declared}" if declared else f"no {field} says that they predict further tokens"
        raise CheckpointError(
            f"{checkpoint.path}: config.json leaves out {len(names)} weights of further layers that are stored, and "
            f"{said}; correct its number of layers:\n" + "\n".join(f"  {name}" for name in names)
        )


def _declared(model: PreTrainedModel) -> tuple[str, int]:
    """Returns the field of config.json that gives the number of predicting layers, and the number; 0 without one."""
    config = model.config.get_text_config()
    for field in PREDICTING_LAYERS:
        value = getattr(config, field, None)
        if isinstance(value, int) and value > 0:
            return field, int(value)
    return PREDICTING_LAYERS[0], 0


def _not_passed(part: TextPart, targets: dict[str, str], used: set[str]) -> dict[str, tuple[str, str]]:
    """Returns the tensors of the text part's layers of which the graph reads none, each with a name and the reason.

    Of layers that stand between others that text passes, it is the layer's name. Where text passes none of a list of
    layers, the list reads something else (the sound, say, of a model whose config has no text part of its own).
    """
    layers = {
        tensor: match for tensor, target in targets.items() if part.holds(target) and (match := _LAYER.match(target))
    }
    passed = {layers[tensor][0] for tensor in used if tensor in layers}
    lists = {layers[tensor][1] for tensor in used if tensor in layers}
    return {
        tensor: (match[0].removesuffix("."), NOT_PASSED)
        if match[1] in lists
        else (match[1].removesuffix("."), NOT_TEXT)
        for tensor, match in layers.items()
        if match[0] not in passed
    }


def _beside(part: TextPart, target: str) -> str:
    """Returns the module of `target` that stands beside the text part: "model.vision_tower" beside "model.text"."""
    names = target.split(".")
    for count in range(1, len(names) + 1):
        path = ".".join(names[:count])
        if not any(f"{text}.".startswith(f"{path}.") for text in part.paths or ()):
            return path
    return target
