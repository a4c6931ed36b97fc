"""Builds the model's own class from config.json: parameters without storage (meta), buffers real on the CPU.

A model that reads images or sound beside text is built whole, and computes logits from text alone, as its class does
where it gets nothing else.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from tensorwright.builder.trace.fix_indexers import INDEXED, find_indexers, is_indexer
from tensorwright.builder.trace.hidden_states import is_body
from tensorwright.builder.trace.trace_recurrences import is_recurrent
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.checkpoint import TEXT_PART, Checkpoint
from tensorwright.models.quantized.registry import CONFIG_KEYS

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
"""Rotary embeddings whose frequencies do not depend on the request, or can be fixed at build (fix_longrope.py and
fix_dynamic_rope.py)."""

LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", INDEXED, "attention", "mlp", "moe"}
"""Layers that attend as all decoders do, once their indexers are taken out (fix_indexers.py), or that treat every token
on its own. Other layers must have a recurrence that has an operation (trace_recurrences.py), or an indexer."""

WIDE = ("sinks", "e_score_correction_bias")
"""Vectors that are read in float32, whatever the activation type: attention's sinks, and what corrects the choice of
experts."""

_NO_MODEL = (ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)
"""What a class of transformers raises for a config that it cannot be made of, such as one with 0 heads."""
_ONE_AT_A_TIME = threading.Lock()
"""While a class is built, torch's default type and nn.Module are changed for the whole process: transformers sets the
type of buffers, and `_parameters_on_meta` changes nn.Module. Builds in other threads wait for this lock."""


def load_model(checkpoint: Checkpoint, dtype: str, *, further_layers: int = 0, bare: bool = False) -> PreTrainedModel:
    """Returns the causal language model of `checkpoint` in `dtype`, eval mode, eager attention, weights not read.

    further_layers: how many layers like the last one it has beyond those of config.json. bare: whether the checkpoint
    may be of the model without its lm_head, such as Qwen3Model.

    Buffers and constants are of `dtype`, whatever type config.json names. Raises UnsupportedModelError for features
    that are refused by name, CheckpointError for a config.json that is wrong.
    """
    config = load_config(checkpoint)
    _refuse(checkpoint, config)
    _add_layers(config.get_text_config(), further_layers)
    model_class = find_model_class(checkpoint, config, bare)
    if model_class.config_class is type(config.get_text_config()):
        config = config.get_text_config()  # a class of the text part alone, which takes no other config
    try:
        _mark(config, getattr(torch, dtype))
        with without_storage():
            model = model_class._from_config(config, dtype=getattr(torch, dtype), attn_implementation="eager")
    except _NO_MODEL as error:
        raise CheckpointError(
            f"{checkpoint.config_file}: no {model_class.__name__} can be made of it: {error!r}; correct the config"
        ) from error
    except ImportError as error:  # parts beside the text may be classes of packages that are not needed here
        raise UnsupportedModelError(
            f"{checkpoint.path}: {model_class.__name__} needs a package that is not installed: "
            f"{' '.join(str(error).split()):.200}"
        ) from error
    _refuse_layers(checkpoint, model)
    for name in wide_weights(model, dtype):
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        wide = getattr(module, attribute).float()
        stays = isinstance(getattr(module, attribute), nn.Parameter)
        setattr(module, attribute, nn.Parameter(wide, requires_grad=False) if stays else wide)
    return model.eval()


def _add_layers(config: PreTrainedConfig, count: int) -> None:
    """Adds layers to a config. Lists that have an entry for each layer go on as they end."""
    layers = config.num_hidden_layers
    for key, value in list(vars(config).items()):
        if count and isinstance(value, list) and len(value) == layers:
            setattr(config, key, [*value, *value[-1:] * count])
    config.num_hidden_layers = layers + count


def wide_weights(model: PreTrainedModel, dtype: str) -> list[str]:
    """Returns the names of the weights that the family keeps in float32 beside a narrower `dtype`: matrices, and the
    vectors of WIDE.

    Raises UnsupportedModelError for other weights that stay float32: no op of ours reads them so. Those of indexers are
    not read at all.
    """
    kept = _kept_in_float32(model, dtype)
    read = {name for names in kept.values() for name in names if name.rpartition(".")[2] in WIDE}
    read |= set(wide_matrices(model, dtype))
    unread = sorted(key for key, names in kept.items() if not read.issuperset(names))
    if unread:
        raise UnsupportedModelError(
            f"{model.config.model_type} keeps {', '.join(unread)} in float32 when run in {dtype}, which is not "
            'supported yet; build with dtype="float32"'
        )
    return [name for names in kept.values() for name in names]


def wide_matrices(model: PreTrainedModel, dtype: str) -> list[str]:
    """Returns the names of the matrices that the family keeps in float32 beside `dtype`.

    For float32 they are those beside bfloat16: an engine may be rebuilt in that type.
    """
    kept = _kept_in_float32(model, "bfloat16" if dtype == "float32" else dtype)
    state = model.state_dict()
    names = {name for names in kept.values() for name in names if name.rpartition(".")[2] not in WIDE}
    return sorted(name for name in names if state[name].dim() == 2)


def _kept_in_float32(model: PreTrainedModel, dtype: str) -> dict[str, list[str]]:
    """Returns the names of the weights that each key of transformers' plan for `dtype` finds, but those of indexers."""
    patterns = {key: re.compile(key.replace("*", ".*")) for key in model._get_dtype_plan(getattr(torch, dtype))}
    unread_parts = tuple(f"{name}." for name in find_indexers(model))
    names = [name for name in model.state_dict() if not name.startswith(unread_parts)]
    return {key: [name for name in names if found.search(name)] for key, found in patterns.items()}


def text_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the config of the text part: config.json itself, for a plain decoder.

    The config of a part of a larger model has the defaults of its class, for a file leaves them out. Raises what
    `load_model` raises for config.json.
    """
    config = load_config(checkpoint)
    text = config.get_text_config()
    whole = text is config and checkpoint.gguf is None  # A GGUF file leaves defaults out as well.
    return checkpoint.config if whole else text.to_dict()


def load_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Returns config.json as transformers reads it. Raises UnsupportedModelError for a model_type that it lacks, and
    CheckpointError for a config that is none of its type."""
    name = checkpoint.config.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(f"{checkpoint.config_file}: model_type must name the model's family, not {name!r}")
    if "auto_map" in checkpoint.config and name not in _known_model_types():
        raise UnsupportedModelError(
            f"{checkpoint.config_file}: model_type {name!r} needs the checkpoint's own Python code, which is "
            "never run; give a checkpoint of a family that transformers has"
        )
    if name not in _known_model_types():
        raise UnsupportedModelError(
            f"{checkpoint.config_file}: model_type {name!r} is unknown to transformers "
            f"{transformers.__version__}; correct the name, or install a transformers that has the family"
        )
    try:
        config = _read_config(checkpoint)
        text = config.get_text_config()
    except Exception as error:  # config classes validate with exceptions of many types
        raise CheckpointError(f"{checkpoint.config_file}: is no valid {name} config: {error}") from error
    for part in (config, text):  # The model is built as it was before its quantization; weights are decoded.
        for key in CONFIG_KEYS:
            vars(part).pop(key, None)
    # The class would make a text part of its default sizes. Some files have the values of the text part at the top.
    if text is not config and not {TEXT_PART, "thinker_config", "hidden_size"} & checkpoint.config.keys():
        raise CheckpointError(
            f"{checkpoint.config_file}: {name} must have a text part ({TEXT_PART}), and there is none; take the "
            "config.json that came with the weights"
        )
    return config


def _read_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    if checkpoint.gguf is not None:
        return AutoConfig.for_model(**checkpoint.config)
    return AutoConfig.from_pretrained(checkpoint.config_file, local_files_only=True, trust_remote_code=False)


def _known_model_types() -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING


def _mark(config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Writes `dtype` into `config` and the configs inside it. Modules read it for numbers that they make themselves."""
    config.dtype = dtype
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            _mark(part, dtype)


def _refuse(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    if getattr(config, "reorder_and_upcast_attn", False):
        raise UnsupportedModelError(
            f"{checkpoint.path}: reorder_and_upcast_attn is refused; set it to false in config.json: scores are always "
            "computed in float32 here, which is what it asks for"
        )
    if config.is_encoder_decoder:  # The trace would only say where it fails.
        raise _refusal(checkpoint, config, "an encoder beside its decoder (is_encoder_decoder)")
    for rope_type in sorted(_rope_types(config)):
        if rope_type not in ROPE_TYPES:
            raise UnsupportedModelError(
                f"{checkpoint.path}: rope type {rope_type!r} is refused: its frequencies are not known to be fixed; "
                f"supported: {', '.join(ROPE_TYPES)}"
            )


def _refusal(checkpoint: Checkpoint, config: PreTrainedConfig, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{checkpoint.config_file}: {config.model_type} has {what}, which is not supported; "
        "docs/families.md lists what is"
    )


def _refuse_layers(checkpoint: Checkpoint, model: PreTrainedModel) -> None:
    """Refuses layers that neither attend as all decoders do, nor have an indexer or a recurrence with an operation."""
    kinds: list[str] = getattr(model.config.get_text_config(), "layer_types", None) or []
    if not set(kinds) - LAYER_TYPES:
        return
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == len(kinds)]
    unknown = set()
    for kind, layers in zip(kinds, zip(*lists, strict=True), strict=True) if lists else ():
        parts = (part for layer in layers for part in layer.modules())
        if kind not in LAYER_TYPES and not any(is_recurrent(part) or is_indexer(part) for part in parts):
            unknown.add(kind)
    if unknown or not lists:
        names = ", ".join(sorted(unknown or set(kinds) - LAYER_TYPES))
        raise _refusal(checkpoint, model.config, f"layers of another kind than attention (layer_types: {names})")


def _rope_types(config: PreTrainedConfig) -> set[str]:
    """Returns every rotary variant in use: one, or one per layer type."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    tables = [parameters, *(v for v in parameters.values() if isinstance(v, dict))]
    return {table["rope_type"] for table in tables if isinstance(table.get("rope_type"), str)}


def find_model_class(checkpoint: Checkpoint, config: PreTrainedConfig, bare: bool = False) -> type[PreTrainedModel]:
    """Returns the class of transformers that computes logits from text, of those that the checkpoint may be of.

    bare: whether a checkpoint of the same model without its lm_head is of that class too.
    """
    autos: list[Any] = [AutoModelForCausalLM]
    if config.get_text_config() is not config or type(config) not in AutoModelForCausalLM._model_mapping:
        autos.append(AutoModelForMultimodalLM)
    found: list[Any] = [auto._model_mapping[type(config)] for auto in autos if type(config) in auto._model_mapping]
    if not found:
        raise UnsupportedModelError(
            f"{checkpoint.config_file}: {config.model_type} is no causal language model in transformers; "
            "give the checkpoint of a decoder"
        )
    named = checkpoint.config.get("architectures") or [found[-1].__name__]
    fitting = [model_class for model_class in found if model_class.__name__ in named]
    if not fitting and bare and any(is_body(config, name) for name in named):
        fitting = found[:1]
    if not fitting and any(_is_decoder_of(config.model_type, name) for name in named):
        fitting = found[:1]
    if not fitting:
        known = " or ".join(dict.fromkeys(model_class.__name__ for model_class in found))
        hint = "; for its hidden states, build with task embed" if any(is_body(config, name) for name in named) else ""
        raise UnsupportedModelError(f"{checkpoint.path}: holds a {', '.join(map(str, named))}; must be a {known}{hint}")
    return fitting[0]


def _is_decoder_of(model_type: str, name: Any) -> bool:
    """Returns whether the class `name` is called after the model type itself, but for underscores and capitals.

    So is the decoder in the code that a checkpoint was published with, where transformers took the family over later
    under another name: Ernie4_5_ForCausalLM lost a character, and InternLM3ForCausalLM is LlamaForCausalLM.
    """
    return str(name).replace("_", "").lower() == f"{model_type}ForCausalLM".replace("_", "").lower()


@contextmanager
def without_storage() -> Iterator[None]:
    """Lets modules be made whose parameters have no storage and no values."""
    with _ONE_AT_A_TIME, no_init_weights(), _parameters_on_meta():
        yield


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Makes every parameter lose its storage when its module registers it; buffers keep theirs."""
    original = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        original(module, name, parameter)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]
