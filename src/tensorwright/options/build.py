"""Declares the options of a build. Together with the checkpoint they determine the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.kv_cache import KV_CACHE_DTYPES
from tensorwright.engine_format.targets import DTYPE_CHOICES, TARGET_NAMES, TARGETS, TENSORRT_TARGETS
from tensorwright.engine_format.weight_formats import QuantizeSpec, parse_spec
from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import At, Door, Rule, declare, find, options_in, same_as, whole_number

CPU_DTYPES = ("auto", *TARGETS["cpu"].dtypes)
"""The dtypes of an engine that is built from a model directory: its target is cpu, which has no float16."""
ACCURACY = ("none", "quick", "full")
ACTIVATIONS = ("auto", "int8")
INT4_KERNELS = ("tensorrt", "plugin")
MAX_TOKENS = 1 << 20
"""The most tokens and sequences in a step of an engine with fixed limits."""
MAX_POSITIONS = 1 << 24
"""The longest sequence in tokens. runtime/core/plan/plan.cc has the same number."""
DTYPE_METAVAR = f"[{'|'.join(DTYPE_CHOICES)}]"
AS_BUILT = "As in build-engine. [default: the engine's]"
ENGINES_OWN = At(AS_BUILT, default=None)
"""How `rebuild` shows an option whose value it takes from the engine."""

_SPEC = (
    "Quantize the weights: int4, int8 (in groups of 32 along K; int4:g64, int8:g128 name others: 32, 64, 128) or "
    "w8a8 (one scale per output row, one per token). Embedding and lm_head follow, or have a FORMAT or none of their "
    "own: int4:g64,lm_head=int8,embedding=none. See docs/quantization.md. [default: none, all in --dtype]"
)
_LIMIT = whole_number(f"a whole number from 1 to {MAX_TOKENS}", high=MAX_TOKENS)
_LENGTH = Rule("a whole number of at least 2", lambda value: type(value) is int and value >= 2)


def _are_distinct(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int for value in values) and len(set(values)) == len(values)


def _everywhere(build: At, rebuild: At | None = None) -> dict[Door, At]:
    """Returns the `at` of an option that both build commands have. rebuild: None means that it is as `build`."""
    return {Door.BUILD: build, Door.REBUILD: rebuild or build}


@dataclass(frozen=True)
class BuildFields:
    """The options of `build`, in the order of config.json. `builder/options.py` checks them together."""

    target: str = declare(
        "cpu",
        choices=TARGET_NAMES,
        at=_everywhere(
            At("What the engine runs on."), At("What the new engine runs on. [default: the engine's]", default=None)
        ),
    )
    dtype: str = declare(
        "auto",
        choices=DTYPE_CHOICES,
        parse=full_name,
        at={
            Door.BUILD: At(
                "Type of weights and activations, also as bf16, fp16 or half, fp32 or float; auto takes the "
                "checkpoint's, on cpu float32 for float16.",
                choices=(),
                metavar=DTYPE_METAVAR,
            ),
            Door.REBUILD: At(AS_BUILT, default=None, choices=(), metavar=DTYPE_METAVAR),
            Door.LLM: At(),
            Door.RUN: At("Of a model directory: type of weights and activations.", choices=CPU_DTYPES),
            Door.SERVE: At("Of a model directory.", choices=CPU_DTYPES),
        },
    )
    max_seq_len: int | None = declare(
        None, int, rule=_LENGTH, at={Door.BUILD: At("Prompt and answer together. [default: the model's]", minimum=2)}
    )
    accuracy: str = declare(
        "quick",
        choices=ACCURACY,
        at=_everywhere(
            At("Measure the engine against the traced graph (quick) or the model in transformers (full)."),
            At("As in build-engine; full needs --model. [default: the engine's]", default=None),
        ),
    )
    quantize: str | None = declare(
        None,
        str,
        at={
            Door.BUILD: At(_SPEC, metavar="SPEC"),
            Door.REBUILD: At("As in build-engine, or none. [default: the engine's]", metavar="SPEC"),
            Door.LLM: At(),
            Door.RUN: At("Of a model directory: formats of the weights, as in build-engine.", metavar="SPEC"),
            Door.SERVE: At("Of a model directory: formats of the weights.", metavar="SPEC"),
        },
    )
    kv_cache_dtype: str = declare(
        "auto",
        choices=KV_CACHE_DTYPES,
        lacks={
            "onnx": "ONNX Runtime's cache has no scales for each token and head; leave --kv-cache-dtype out, or build "
            "with target cpu"
        },
        at={
            Door.BUILD: At("Type of the KV cache; auto is the activations', int8 has a scale for each token and head."),
            Door.REBUILD: ENGINES_OWN,
            Door.LLM: At(),
            Door.RUN: At("Of a model directory: the type of the KV cache, as in build-engine."),
            Door.SERVE: At("Of a model directory: its KV cache."),
        },
    )
    keep_weights: bool = declare(
        False,
        at=_everywhere(
            At("Put the checkpoint's tensors into the engine too: tensorwright rebuild then needs nothing else."),
            At(
                "Whether the new engine keeps them. [default: as ENGINE does, and dropped for another target]",
                flag="--keep-weights/--drop-weights",
                default=None,
            ),
        ),
    )
    activations: str = declare(
        "auto",
        choices=ACTIVATIONS,
        targets=("onnx",),
        at=_everywhere(
            At(
                "With --target onnx and --quantize: int8 rounds activations too, as target cpu does, which is much "
                "faster on processors. [default: auto, which leaves them as they are]",
                default=None,
            )
        ),
    )
    sm: tuple[int, ...] = declare(
        (),
        int,
        repeated=True,
        rule=Rule("distinct whole numbers, such as 80 and 89", _are_distinct),
        targets=TENSORRT_TARGETS,
        at=_everywhere(
            At(
                "TensorRT: a compute capability that the engine is for, such as 89; may be repeated for tensorrt-rtx. "
                "[default: those that the library chooses]"
            )
        ),
    )
    max_batch_size: int | None = declare(
        None, int, rule=_LIMIT, targets=TENSORRT_TARGETS,
        at=_everywhere(At("TensorRT: sequences in a step. [default: 64]", minimum=1)),
    )  # fmt: skip
    max_num_tokens: int | None = declare(
        None, int, rule=_LIMIT, targets=TENSORRT_TARGETS,
        at=_everywhere(At("TensorRT: tokens in a step. [default: 2048]", minimum=1)),
    )  # fmt: skip
    int4_kernel: str | None = declare(
        None,
        str,
        choices=INT4_KERNELS,
        rule=Rule(" or ".join(INT4_KERNELS), lambda value: value in INT4_KERNELS),
        targets=TENSORRT_TARGETS,
        at=_everywhere(
            At("TensorRT: who multiplies int4 weights, the library or our plugin. [default: tensorrt]")
        ),
    )  # fmt: skip


OF_EVERY_TARGET = tuple(
    option.name for option in options_in(BuildFields) if not option.targets and option.name != "keep_weights"
)
"""The options that `rebuild` takes from an engine of another target. The user must give the others again."""


@dataclass(frozen=True)
class BuildChoices:
    """The options that a user may choose for an engine that is built from a model directory on first use.

    BuildFields declares them. The text of a BuildChoices is a part of the engine's key in the cache of engines.
    """

    dtype: str = same_as(BuildFields, "dtype")
    quantize: str | None = same_as(BuildFields, "quantize")
    kv_cache_dtype: str = same_as(BuildFields, "kv_cache_dtype")

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", full_name(self.dtype))

    def __str__(self) -> str:
        kv_cache = "" if self.kv_cache_dtype == "auto" else f"{self.kv_cache_dtype} KV cache"
        return ", ".join(choice for choice in (self.dtype, self.quantize, kv_cache) if choice)

    @property
    def quantize_spec(self) -> QuantizeSpec | None:
        """The formats that `quantize` names, or None. Raises InvalidOptionError for a text that names no format."""
        return parse_spec(self.quantize) if self.quantize else None

    def spelled_out(self) -> BuildChoices:
        """Returns the same choices in the spelling that the cache's keys use. Raises what `quantize_spec` raises."""
        return replace(self, quantize=None if self.quantize_spec is None else str(self.quantize_spec))

    def check(self) -> None:
        """Raises InvalidOptionError for a value that no engine can have. The builder checks formats and activations."""
        quantize = self.quantize
        if quantize is not None and not (isinstance(quantize, str) and quantize.strip()):
            raise InvalidOptionError(
                f'quantize must name formats, as in "int4" or "w8a8,embedding=none", got {quantize!r}'
            )
        find(BuildFields, "kv_cache_dtype").check(self.kv_cache_dtype)
