"""Declares the options of a build. Together with the checkpoint they determine the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.calibrations import CALIBRATIONS
from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.engine_config import MAX_RANKS
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS, KV_CACHE_DTYPES
from tensorwright.engine_format.pooling import POOLINGS, TASKS
from tensorwright.engine_format.targets import DTYPE_CHOICES, GPU_TARGETS, TARGET_NAMES, TARGETS, TENSORRT_TARGETS
from tensorwright.engine_format.weight_formats import (
    DEFAULT_GROUP,
    GROUPS,
    SPARSITY,
)
from tensorwright.options.declare import (
    FIRST_USE_DOORS,
    At,
    Door,
    Rule,
    declare,
    options_in,
    same_as,
    whole_number,
)
from tensorwright.options.long_contexts import MAX_POSITIONS, LongContextFields

FIRST_USE = TARGETS["cpu"]
"""The target of an engine that `run`, `serve` or `LLM` builds from a model directory on its first use."""
ACCURACY = ("none", "quick", "full")
ACTIVATIONS = ("auto", "int8")
SPARSITIES = ("none", SPARSITY)
OWN_HEADS = "mtp"
"""The value of the option `heads` for the layer of the checkpoint itself that predicts further tokens."""
INT4_KERNELS = ("tensorrt", "plugin")
MAX_STEP_TOKENS = 1 << 20
"""The most tokens, and the most sequences, that a step of an engine with fixed limits can have."""
DTYPE_METAVAR = f"[{'|'.join(DTYPE_CHOICES)}]"
AS_BUILT = "As in build-engine. [default: the engine's]"
ENGINES_OWN = At(AS_BUILT, default=None)
"""How `rebuild` shows an option whose value it takes from the engine."""

_SPEC = (
    "Quantize the weights: int2, int3, int4, int8, with zero points uint2, uint3, uint4, uint8 (in groups of "
    f"{DEFAULT_GROUP} along K; int4:g64, int8:g128 name others: {', '.join(map(str, GROUPS))}), mxfp4, w4a8 "
    "(4 bits, whole-number scales of groups under one per output row) or w8a8 (one scale per output row, one per "
    "token). Embedding and lm_head follow, or have a FORMAT or none of their own: "
    "int4:g64,lm_head=int8,embedding=none. So may weights, by patterns of their names: int4,model.layers.0.*=int8. On "
    "cpu, mixed:4.5 chooses formats for so many bits per weight, and kept those of a quantized checkpoint's codes. See "
    "docs/quantization.md. [default: kept for quantized checkpoints on cpu, else none, all in --dtype]"
)
_LIMIT = whole_number(f"a whole number from 1 to {MAX_STEP_TOKENS}", high=MAX_STEP_TOKENS)
_RANKS = whole_number(f"a whole number from 1 to {MAX_RANKS}", high=MAX_RANKS)
_NAMES_FORMATS = Rule(
    'the names of formats, as in "int4" or "w8a8,embedding=none"',
    lambda value: isinstance(value, str) and bool(value.strip()),
)
_OF_FIRST_USE = At(
    "Type of weights and activations of the engine that is built from a model directory.",
    choices=("auto", *FIRST_USE.dtypes),
)
_FORMATS_OF_FIRST_USE = At(
    "Formats of the weights of the engine that is built from a model, as in build-engine. [default: as there]",
    metavar="SPEC",
)
_CONFIG = (
    "A file of JSON that gives weights their formats by patterns of their names, as in "
    '{"layers": "int4", "model.layers.*.mlp.down_proj.weight": "int8"}. The last pattern that matches a name holds.'
)
_CONFIG_OF_FIRST_USE = At(
    "A file with the formats of the engine that is built from a model directory, as in build-engine.", metavar="FILE"
)
_SPARSITY_OF_FIRST_USE = At("Sparsity of the engine that is built from a model directory, as in build-engine.")
_CALIBRATION_OF_FIRST_USE = At("Calibration of the engine that is built from a model directory, as in build-engine.")
_TEXT_OF_FIRST_USE = At(
    "Calibration text of the engine that is built from a model directory, as in build-engine.", metavar="FILE"
)
_CACHE_OF_FIRST_USE = At("Type of the KV cache of the engine that is built from a model directory, as in build-engine.")
_LENGTH_OF_FIRST_USE = At(
    "The most tokens of prompt and answer together, of the engine that is built from a model. [default: the model's]",
    minimum=2,
)
_INT4_CACHE = (
    "the kernels of GPUs read a cache of the activations' type, of int8 or of fp8; say one of these, or build with "
    "target cpu"
)
_ESTIMATES = (Door.ESTIMATE, Door.SIMULATE)
_ESTIMATED = {
    "dtype": At(
        "Type of weights and activations, also as bf16, fp16 or half, fp32 or float. [default: the checkpoint's; on "
        "target cpu float32 for float16]",
        choices=(),
        default=None,
        metavar=DTYPE_METAVAR,
    ),
    "quantize": At("Formats of the weights, as in build-engine. [default: as there]", metavar="SPEC"),
    "quantize_config": At("A file with the formats of the weights, as in build-engine.", metavar="FILE"),
    "sparsity": At("Sparsity of the layers' matrices, as in build-engine."),
    "kv_cache_dtype": At("Type of the KV cache, as in build-engine."),
}
"""The options of a build that an estimate has too, and a simulation that rests on one."""
_TOKENS = whole_number(f"a whole number from 2 to {MAX_POSITIONS}", low=2, high=MAX_POSITIONS)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


_IS_PATH = Rule("the path of a file of text", _is_path)
_LENGTH = Rule("a whole number of at least 2", lambda value: type(value) is int and value >= 2)


def _are_distinct(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int for value in values) and len(set(values)) == len(values)


def _default_sms() -> str:
    """Returns the SMs of a build for target cuda that names none, in words."""
    return " and ".join(map(str, TARGETS["cuda"].default_sms))


def _default_step(what: str) -> str:
    """Returns the default of a limit of a step on each target that has one, in words."""
    cuda, other = (getattr(TARGETS[name].default_step, what) for name in ("cuda", TENSORRT_TARGETS[0]))
    return f"{cuda} on cuda, else {other}"


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
        section="Engine",
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
            **dict.fromkeys(FIRST_USE_DOORS, _OF_FIRST_USE),
            **dict.fromkeys(_ESTIMATES, _ESTIMATED["dtype"]),
        },
    )
    task: str = declare(
        "auto",
        choices=("auto", *TASKS),
        at={
            Door.BUILD: At(
                "What the engine answers with: tokens (generate), the pooled hidden states of a text (embed), or how "
                "well a document fits a query, by the logits of yes and no (rerank). auto takes what the checkpoint "
                "says, which it never says of rerank. embed and rerank are for target cpu. See docs/embeddings.md."
            )
        },
    )
    pooling: str = declare(
        "auto",
        choices=("auto", *POOLINGS),
        targets=("cpu",),
        at={
            Door.BUILD: At(
                "With task embed: the hidden state of the last token counts (last), or the mean of those of all tokens "
                "(mean). auto takes what the checkpoint says, or last."
            )
        },
    )
    max_seq_len: int | None = declare(
        None,
        int,
        rule=_LENGTH,
        at={
            Door.BUILD: At("The most tokens of prompt and answer together. [default: the model's]", minimum=2),
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _LENGTH_OF_FIRST_USE),
        },
    )
    accuracy: str = declare(
        "quick",
        choices=ACCURACY,
        at=_everywhere(
            At("Measure the engine against the traced graph (quick) or the model in transformers (full)."),
            At("As in build-engine; full needs --model. [default: the engine's]", default=None),
        ),
        section="Accuracy",
    )
    accuracy_tokens: int | None = declare(
        None,
        int,
        rule=_TOKENS,
        at=_everywhere(
            At(
                "The most tokens that accuracy is measured over. [default: quick 128 to 512, by the model's size; "
                "full 8192]",
                minimum=2,
            ),
            At("As in build-engine. [default: the engine's]", minimum=2),
        ),
    )
    accuracy_text: str | None = declare(
        None,
        str,
        rule=_IS_PATH,
        at=_everywhere(
            At("A file of UTF-8 text that accuracy is measured on. [default: a text of this package]", metavar="FILE"),
            At("As in build-engine. [default: a text of this package]", metavar="FILE"),
        ),
    )
    quantize: str | None = declare(
        None,
        str,
        rule=_NAMES_FORMATS,
        at={
            Door.BUILD: At(_SPEC, metavar="SPEC"),
            Door.REBUILD: At("As in build-engine, or none. [default: the engine's]", metavar="SPEC"),
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _FORMATS_OF_FIRST_USE),
            **dict.fromkeys(_ESTIMATES, _ESTIMATED["quantize"]),
        },
        section="Quantization",
    )
    quantize_config: str | None = declare(
        None,
        str,
        rule=Rule("the path of a file of JSON", _is_path),
        at={
            Door.BUILD: At(_CONFIG, metavar="FILE"),
            Door.REBUILD: At(
                "As in build-engine, in place of the engine's formats. [default: the engine's formats]", metavar="FILE"
            ),
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _CONFIG_OF_FIRST_USE),
            **dict.fromkeys(_ESTIMATES, _ESTIMATED["quantize_config"]),
        },
    )
    sparsity: str = declare(
        "none",
        choices=SPARSITIES,
        targets=("cpu",),
        at={
            Door.BUILD: At(
                "Which weights of the layers' matrices are kept: all, or of each 4 neighbours along K the two with the "
                "largest magnitudes (2:4), which needs --quantize int4 or int8. See docs/quantization.md."
            ),
            Door.REBUILD: At("As in build-engine, besides the engine's formats.", default=None),
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _SPARSITY_OF_FIRST_USE),
            **dict.fromkeys(_ESTIMATES, _ESTIMATED["sparsity"]),
        },
    )
    kv_cache_dtype: str = declare(
        AS_ACTIVATIONS,
        choices=KV_CACHE_DTYPES,
        lacks={
            "onnx": "ONNX Runtime's cache has no scales for each token and head; leave --kv-cache-dtype out, or build "
            "with target cpu"
        },
        lacks_value={
            **{(target, "int4"): _INT4_CACHE for target in GPU_TARGETS},
            ("cpu", "fp8"): "its kernels multiply integers, and int8 takes as many bytes and is rounded less; say int8",
        },
        at={
            Door.BUILD: At(
                "Type of the KV cache; auto is the activations', int8 has a scale for each token and head, and so has "
                "fp8 (E4M3, on GPUs), int4 one for each token and 64 dimensions of a head (on target cpu)."
            ),
            Door.REBUILD: ENGINES_OWN,
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _CACHE_OF_FIRST_USE),
            **dict.fromkeys(_ESTIMATES, _ESTIMATED["kv_cache_dtype"]),
        },
        section="KV cache and attention",
    )
    attention_window: int | None = same_as(LongContextFields, "attention_window")
    sink_tokens: int | None = same_as(LongContextFields, "sink_tokens")
    kv_budget: int | None = same_as(LongContextFields, "kv_budget")
    recent_tokens: int | None = same_as(LongContextFields, "recent_tokens")
    sparse_prefill: int | None = same_as(LongContextFields, "sparse_prefill")
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
        section="Quantization",
    )
    calibrate: str = declare(
        "none",
        choices=tuple(CALIBRATIONS),
        targets=("cpu",),
        at={
            Door.BUILD: At(
                "What a text chooses of quantized matrices: nothing (none); their codes, by what products need (gptq); "
                "scales of their input channels (awq for int4 and the like, smoothquant for w8a8); the largest columns "
                "of their inputs, which are not rounded (outliers); or one of these and codes. With sparsity 2:4: "
                "which weights are kept (wanda), and the codes of these (wanda+gptq)."
            ),
            Door.REBUILD: ENGINES_OWN,
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _CALIBRATION_OF_FIRST_USE),
        },
    )
    calibration_text: str | None = declare(
        None,
        str,
        rule=_IS_PATH,
        targets=("cpu",),
        at={
            **_everywhere(
                At(
                    "With --calibrate, or mixed formats: a file of UTF-8 text to run through the model. [default: a "
                    "text of this package]",
                    metavar="FILE",
                )
            ),
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, _TEXT_OF_FIRST_USE),
        },
    )
    heads: str | None = declare(
        None,
        str,
        rule=Rule("the directory or the hub name of heads", _is_path),
        targets=("cpu", "cuda"),
        at=_everywhere(
            At(
                "EAGLE-3 or Medusa heads trained for MODEL, a directory or a hub name, or mtp, the layer of MODEL "
                "itself that predicts further tokens: the engine holds them, to propose tokens with --speculative "
                "heads. See "
                "docs/speculation.md.",
                metavar="DIR|mtp",
            ),
            At("As in build-engine, with --model. [default: none]", metavar="DIR|mtp"),
        ),
        section="Speculation",
    )
    tensor_parallel: int = declare(
        1, int, rule=_RANKS, targets=("cpu", *TENSORRT_TARGETS),
        at=_everywhere(
            At("How many ranks share every layer: each has some heads and columns. See docs/ranks.md.", minimum=1),
            At("As in build-engine. [default: 1]", default=None, minimum=1),
        ), section="Ranks",
    )  # fmt: skip
    pipeline_parallel: int = declare(
        1, int, rule=_RANKS, targets=("cpu", *TENSORRT_TARGETS),
        at=_everywhere(
            At("How many stages share the layers, each with some of them. See docs/ranks.md.", minimum=1),
            At("As in build-engine. [default: 1]", default=None, minimum=1),
        ),
    )  # fmt: skip
    expert_parallel: bool = declare(
        False,
        targets=("cpu",),
        at=_everywhere(
            At(
                "With --tensor-parallel: each rank of a stage has some experts whole, where it would have a part of "
                "every expert. See docs/ranks.md."
            ),
            At(
                "As in build-engine. [default: as ENGINE has them]",
                flag="--expert-parallel/--no-expert-parallel",
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
        section="Other targets",
    )
    sm: tuple[int, ...] = declare(
        (),
        int,
        repeated=True,
        rule=Rule("distinct whole numbers, such as 80 and 89", _are_distinct),
        targets=GPU_TARGETS,
        at=_everywhere(
            At(
                "GPUs: compute capability that the engine is for, such as 90. May be repeated for cuda and "
                "tensorrt-rtx; tensorrt needs one. "
                f"[default: {_default_sms()} on cuda, else those that the library chooses]"
            )
        ),
    )
    max_batch_size: int | None = declare(
        None, int, rule=_LIMIT, targets=GPU_TARGETS,
        at=_everywhere(At(f"GPUs: the most sequences in a step. [default: {_default_step('seqs')}]", minimum=1)),
    )  # fmt: skip
    max_num_tokens: int | None = declare(
        None, int, rule=_LIMIT, targets=GPU_TARGETS,
        at=_everywhere(At(f"GPUs: the most tokens in a step. [default: {_default_step('tokens')}]", minimum=1)),
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


@dataclass(frozen=True)
class SourceFields:
    """The options that say which checkpoint a model's name means."""

    revision: str | None = declare(
        None,
        str,
        at={
            Door.LLM: At(),
            **dict.fromkeys(
                (Door.BUILD, *FIRST_USE_DOORS),
                At("With a hub name: the branch, tag or commit that is taken. [default: main]", metavar="REVISION"),
            ),
        },
        section="Source of the model",
    )


OF_EVERY_TARGET = tuple(
    option.name
    for option in options_in(BuildFields)
    if not option.targets and option.name not in ("keep_weights", "accuracy_text", "quantize_config")
)
"""The options that `rebuild` takes from an engine of another target. The user must give the others again."""
