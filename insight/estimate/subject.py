"""Finds what an estimate is about: an engine, a model that target cpu could run, or a config of another model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright.builder.options import BuildOptions
from tensorwright.builder.plan_model import open_model, plan_model
from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.engine_config import is_engine
from tensorwright.engine_format.file_names import CPU_PLAN
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS, quantized_bits
from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.weight_formats import QuantizeSpec
from tensorwright.errors import EngineError, InvalidOptionError, UnsupportedModelError
from tensorwright.insight.estimate.costs import Costs, PlannedCosts
from tensorwright.insight.estimate.formula import FormulaCosts, VisionTower, read_shape, read_vision, text_part
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.config_only import ConfigOnly
from tensorwright.runtime.engine.engine_dir import open_engine

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Subject:
    """What is estimated.

    name: as the user gave it. family: the model_type. dtype: of weights and activations. formats: those of the weights,
    in words. parameters: the elements of all weights of the text part. other_parts: the bytes and reasons of what is
    left out, by part. layers, width, kv_heads: of the text part. built: whether target cpu builds it; refusal: why not.
    planned: whether the costs are those of a plan. notes: what else the estimate rests on.
    """

    name: str
    family: str
    dtype: str
    formats: str
    cache_dtype: str
    parameters: int
    layers: int
    width: int
    kv_heads: int
    costs: Costs
    vision: VisionTower | None = None
    refusal: str | None = None
    other_parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def planned(self) -> bool:
        return isinstance(self.costs, PlannedCosts)


def find_subject(model: str | Path, options: dict[str, Any], on_cpu: bool, progress: Progress | None = None) -> Subject:
    """Returns what `model` names: an engine of target cpu, a checkpoint, or a config.

    options: those of a build. on_cpu: whether it is for target cpu, which has no float16. Raises CheckpointError,
    EngineError, InvalidOptionError, MissingDependencyError.
    """
    path = Path(os.path.expanduser(model))
    if is_engine(path):
        return _of_engine(path, options)
    checkpoint = open_model(model)
    asked, spec = _asked(options, checkpoint, on_cpu)
    notes = []
    if isinstance(checkpoint, ConfigOnly) and (method := checkpoint.quantized_by) is not None and spec is None:
        notes.append(
            f"the config names a quantization ({method}), which is not counted without the weights; say --quantize"
        )
    dtype = full_name(options.get("dtype") or "") or _native(checkpoint, on_cpu)
    if dtype == "float16" and not on_cpu:
        notes.append(
            "float16 is counted as bfloat16, which takes as many bytes: the plan is that of target cpu, which lacks it"
        )
    if options.get("kv_cache_dtype") == "fp8":
        notes.append("fp8 is counted as int8, of as many bytes: the plan is that of target cpu, which lacks it")
    vision = read_vision(checkpoint.config, str(checkpoint.config_file))
    try:
        planned = plan_model(checkpoint, asked, progress)
    except UnsupportedModelError as error:
        return _by_formula(model, checkpoint, dtype, options, spec, vision, str(error), tuple(notes))
    facts = planned.report.cached_graph.facts
    names = {name for node in planned.traced.find("weight") for name in node.attrs["expr"].refs()}
    parameters = sum(math.prod(checkpoint.shape(name)) for name in names if name in checkpoint)
    known = facts.set_facts
    return Subject(
        str(model), facts.model_type, dtype, "none" if facts.quantize is None else facts.quantize.summary,
        _cache_dtype(options, dtype), parameters, known.get("layers", len(facts.kv_layers)),
        known.get("hidden_size", 0), max((layer.kv_heads for layer in facts.kv_layers), default=1),
        PlannedCosts(planned.plan.data), vision, None, facts.left_out, tuple(notes),
    )  # fmt: skip


def _asked(options: dict[str, Any], checkpoint: Checkpoint, on_cpu: bool) -> tuple[BuildOptions, QuantizeSpec | None]:
    """Returns the options of the build on target cpu whose plan is counted, and the formats asked for."""
    chosen = {name: value for name, value in options.items() if value is not None}
    dtype = full_name(chosen.pop("dtype", None) or _native(checkpoint, on_cpu))
    if dtype not in TARGETS["tensorrt"].dtypes and dtype not in TARGETS["cpu"].dtypes:
        raise InvalidOptionError(f"dtype must be auto, float32, bfloat16 or float16, not {dtype!r}")
    if dtype == "float16" and on_cpu:
        raise InvalidOptionError("dtype must be auto, float32 or bfloat16 on target cpu, not float16")
    if chosen.get("kv_cache_dtype") == "fp8" and not on_cpu:
        chosen["kv_cache_dtype"] = "int8"
    asked = BuildOptions(accuracy="none", dtype="float32" if dtype == "float32" else "bfloat16", **chosen)
    return asked, asked.quantize_spec


def _native(checkpoint: Checkpoint, on_cpu: bool) -> str:
    native = checkpoint.native_dtype
    if on_cpu:
        return "bfloat16" if native == "bfloat16" else "float32"
    return native if native in ("float32", "bfloat16", "float16") else "bfloat16"


def _cache_dtype(options: dict[str, Any], dtype: str) -> str:
    asked = options.get("kv_cache_dtype") or AS_ACTIVATIONS
    return dtype if asked == AS_ACTIVATIONS else str(asked)


def _by_formula(
    model: str | Path, checkpoint: Checkpoint, dtype: str, options: dict[str, Any], spec: QuantizeSpec | None,
    vision: VisionTower | None, refusal: str, notes: tuple[str, ...],
) -> Subject:  # fmt: skip
    shape = read_shape(checkpoint.config, str(checkpoint.config_file))
    cache_dtype = _cache_dtype(options, dtype)
    costs = FormulaCosts(shape, dtype, spec, quantized_bits(cache_dtype, shape.head_dim))
    family = str(text_part(checkpoint.config).get("model_type", checkpoint.config["model_type"]))
    more = ["counted by the usual shape of a decoder, from the config alone: within some per cent, if it is one"]
    if not shape.says_positions:
        more.append(f"the config does not say how many positions it has: {shape.max_positions} are taken")
    return Subject(
        str(model), family, dtype, "none" if spec is None else spec.summary, cache_dtype, shape.parameters,
        shape.layers, shape.width, 1 if shape.latent else shape.kv_heads, costs, vision, refusal, {}, (*notes, *more),
    )  # fmt: skip


def _of_engine(path: Path, options: dict[str, Any]) -> Subject:
    given = sorted(name for name, value in options.items() if value not in (None, AS_ACTIVATIONS, "none"))
    if given:
        raise InvalidOptionError(
            f"{path}: is an engine, which has its formats: leave out {', '.join(given)}, or give its checkpoint"
        )
    engine = open_engine(path)
    if engine.target != "cpu":
        raise EngineError(
            f"{path}: is an engine of target {engine.target}, whose plan is not ours to count; give its checkpoint"
        )
    config = engine.config
    config.require_one_rank(path, "an estimate of what was built")
    model = config.model
    quantization = config.quantization
    layers = model.layers or 0
    return Subject(
        str(path), model.model_type or "unknown", config.dtype,
        "none" if quantization is None else quantization.spec.summary,
        config.stored_cache_dtype, 0, layers, model.hidden_size or 0, model.kv_heads or 1,
        PlannedCosts((path / CPU_PLAN).read_bytes()),
    )  # fmt: skip
