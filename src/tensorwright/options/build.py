"""Declares the options of a build. Together with the checkpoint they determine the engine.

It has more than 500 lines because each option is one declaration, with its words at each door.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.engine_format.calibrations import CALIBRATIONS
from tensorwright.engine_format.dtypes import full_name
from tensorwright.engine_format.engine_config import MAX_RANKS, EngineConfig
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS, KV_CACHE_DTYPES
from tensorwright.engine_format.pooling import POOLINGS, TASKS
from tensorwright.engine_format.quantize_config import with_config
from tensorwright.engine_format.targets import DTYPE_CHOICES, GPU_TARGETS, TARGET_NAMES, TARGETS, TENSORRT_TARGETS
from tensorwright.engine_format.weight_formats import (
    DEFAULT_GROUP,
    GROUPS,
    MAX_RULES_SHOWN,
    SPARSITY,
    parse_spec,
    with_sparsity,
)
from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import (
    At,
    Door,
    Rule,
    check_values,
    declare,
    options_in,
    same_as,
    whole_number,
)
from tensorwright.options.text_file import read_text_file

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
SINK_TOKENS = 4
"""The sink tokens beside an attention window, unless a build says another number: those of StreamingLLM's paper."""
MAX_SINK_TOKENS = 512
"""Equal to TW_MAX_SINK_TOKENS of runtime/core/base/first_seen.h."""
RECENT_SHARE = 4
"""One of so many tokens of a kv_budget is recent, unless a build says another number."""
SPARSE_BLOCK = 32
"""Sparse prefill chooses blocks of so many positions: those of the KV cache of target cpu."""
MIN_SPARSE_PREFILL = 4 * SPARSE_BLOCK
"""The first block, the two last ones and one that is chosen. plugins/paged_attention/instruction_choice.h has the same
number of blocks."""
MAX_POSITIONS = 1 << 24
"""The longest sequence in tokens. runtime/core/plan/plan.cc has the same number."""
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
_FIRST_USE_DOORS = (Door.RUN, Door.SERVE, Door.EVAL, Door.BENCH)
"""The commands that build an engine from a model on its first use."""
_TOKENS = whole_number(f"a whole number from 2 to {MAX_POSITIONS}", low=2, high=MAX_POSITIONS)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


_WINDOW = whole_number(f"a whole number from 0 to {MAX_POSITIONS}", low=0, high=MAX_POSITIONS)
_SINKS = whole_number(f"a whole number from 0 to {MAX_SINK_TOKENS}", low=0, high=MAX_SINK_TOKENS)
_SPARSE = Rule(
    f"0, or a multiple of {SPARSE_BLOCK} from {MIN_SPARSE_PREFILL} to {MAX_POSITIONS}",
    lambda value: (
        type(value) is int
        and (value == 0 or MIN_SPARSE_PREFILL <= value <= MAX_POSITIONS)
        and value % SPARSE_BLOCK == 0
    ),
)


def _of_long_contexts(named: str, help: str, rule: Rule) -> Any:
    """Returns a field for an option that bounds what attention sees or the KV cache keeps: a number of positions, with
    0 for none. named: the option in words."""
    of_first_use = At(f"{named} of the engine that is built from a model directory, as in build-engine.", minimum=0)
    return declare(
        None,
        int,
        rule=rule,
        targets=("cpu",),
        at={
            Door.BUILD: At(help, minimum=0),
            Door.REBUILD: At("As in build-engine. [default: the engine's]", minimum=0),
            Door.LLM: At(),
            **dict.fromkeys(_FIRST_USE_DOORS, of_first_use),
        },
    )


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
            **dict.fromkeys(_FIRST_USE_DOORS, _OF_FIRST_USE),
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
            **dict.fromkeys(_FIRST_USE_DOORS, _LENGTH_OF_FIRST_USE),
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
            **dict.fromkeys(_FIRST_USE_DOORS, _FORMATS_OF_FIRST_USE),
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
            **dict.fromkeys(_FIRST_USE_DOORS, _CONFIG_OF_FIRST_USE),
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
            **dict.fromkeys(_FIRST_USE_DOORS, _SPARSITY_OF_FIRST_USE),
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
            (target, "int4"): "the kernels of GPUs read a cache of the activations' type or of int8; say int8, or "
            "build with target cpu"
            for target in TENSORRT_TARGETS
        },
        at={
            Door.BUILD: At(
                "Type of the KV cache; auto is the activations', int8 has a scale for each token and head, int4 one "
                "for each token and 64 dimensions of a head."
            ),
            Door.REBUILD: ENGINES_OWN,
            Door.LLM: At(),
            **dict.fromkeys(_FIRST_USE_DOORS, _CACHE_OF_FIRST_USE),
            **dict.fromkeys(_ESTIMATES, _ESTIMATED["kv_cache_dtype"]),
        },
        section="KV cache and attention",
    )
    attention_window: int | None = _of_long_contexts(
        "Attention window",
        "Bound the memory of a sequence: layers that attend to all positions see the last so many, and "
        "--sink-tokens first ones. Answers change. See docs/long-contexts.md. [default: 0, all positions]",
        _WINDOW,
    )
    sink_tokens: int | None = _of_long_contexts(
        "Sink tokens",
        "With --attention-window or --kv-budget: how many first positions of a text are always seen. "
        f"[default: {SINK_TOKENS}]",
        _SINKS,
    )
    kv_budget: int | None = _of_long_contexts(
        "KV budget",
        "Bound the memory of a sequence: at every 128th token the KV cache keeps so many tokens, those that "
        "attention looked at most, and forgets the others. Answers change. See docs/long-contexts.md. "
        "[default: 0, all]",
        _WINDOW,
    )
    recent_tokens: int | None = _of_long_contexts(
        "Recent tokens",
        "With --kv-budget: how many tokens of it are the last ones, which always stay. [default: a quarter]",
        _WINDOW,
    )
    sparse_prefill: int | None = _of_long_contexts(
        "Sparse prefill",
        f"Compute long prompts faster: each {SPARSE_BLOCK} positions of a prompt see at most so many, in "
        "blocks that they choose by their scores. The answer sees all. Answers change. "
        f"A multiple of {SPARSE_BLOCK}, such as 2048. See docs/long-contexts.md. [default: 0, all positions]",
        _SPARSE,
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
            **dict.fromkeys(_FIRST_USE_DOORS, _CALIBRATION_OF_FIRST_USE),
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
            **dict.fromkeys(_FIRST_USE_DOORS, _TEXT_OF_FIRST_USE),
        },
    )
    heads: str | None = declare(
        None,
        str,
        rule=Rule("the directory or the hub name of heads", _is_path),
        targets=("cpu",),
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
                (Door.BUILD, *_FIRST_USE_DOORS),
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


@dataclass(frozen=True)
class BuildChoices:
    """The options that a user may choose for an engine that is built from a model directory on first use.

    BuildFields declares them. The key of a BuildChoices is a part of the engine's key in the cache of engines.
    """

    dtype: str = same_as(BuildFields, "dtype")
    max_seq_len: int | None = same_as(BuildFields, "max_seq_len")
    quantize: str | None = same_as(BuildFields, "quantize")
    quantize_config: str | None = same_as(BuildFields, "quantize_config")
    sparsity: str = same_as(BuildFields, "sparsity")
    kv_cache_dtype: str = same_as(BuildFields, "kv_cache_dtype")
    attention_window: int | None = same_as(BuildFields, "attention_window")
    sink_tokens: int | None = same_as(BuildFields, "sink_tokens")
    kv_budget: int | None = same_as(BuildFields, "kv_budget")
    recent_tokens: int | None = same_as(BuildFields, "recent_tokens")
    sparse_prefill: int | None = same_as(BuildFields, "sparse_prefill")
    calibrate: str = same_as(BuildFields, "calibrate")
    calibration_text: str | None = same_as(BuildFields, "calibration_text")

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", full_name(self.dtype))

    def __str__(self) -> str:
        """Returns the choices in words, for people: of many rules of formats the number only."""
        many = self.quantize is not None and self.quantize.count("=") > MAX_RULES_SHOWN
        formats = parse_spec(self.quantize).summary if many and self.quantize is not None else self.quantize
        kv_cache = "" if self.kv_cache_dtype == AS_ACTIVATIONS else f"{self.kv_cache_dtype} KV cache"
        window = "" if not self.attention_window else f"attention window {self.attention_window}"
        sinks = "" if self.sink_tokens is None else f"{self.sink_tokens} sink tokens"
        budget = "" if not self.kv_budget else f"KV budget {self.kv_budget}"
        recent = "" if self.recent_tokens is None else f"{self.recent_tokens} recent tokens"
        prefill = "" if not self.sparse_prefill else f"sparse prefill {self.sparse_prefill}"
        length = "" if self.max_seq_len is None else f"at most {self.max_seq_len} tokens"
        sparsity = "" if self.sparsity == "none" else f"{self.sparsity} sparse"
        calibrated = "" if self.calibrate == "none" else f"calibrated with {self.calibrate}"
        seen = (window, budget, recent, sinks, prefill)
        choices = (self.dtype, formats, self.quantize_config, sparsity, calibrated, kv_cache, *seen, length)
        return ", ".join(choice for choice in choices if choice)

    @property
    def key(self) -> str:
        """The text that tells these choices from all others: a text counts by what it holds."""
        own = self.spelled_out()
        if own.calibration_text is not None:
            own = replace(own, calibration_text=read_text_file("calibration_text", own.calibration_text).xxh3_128)
        return str(tuple(getattr(own, option.name) for option in options_in(BuildChoices)))

    def without_files(self) -> BuildChoices:
        """Returns the same choices with what the file quantize_config says now. The calibration's text stays a file,
        which the build reads. Raises InvalidOptionError."""
        return replace(self, quantize=asked_formats(self), quantize_config=None, sparsity="none")

    def spelled_out(self) -> BuildChoices:
        """Returns the choices of a first use, without files, in the spelling that the cache's keys use. Raises
        InvalidOptionError for formats that target FIRST_USE lacks."""
        own = self.without_files()
        return replace(own, quantize=None if own.quantize is None else str(FIRST_USE.parse_quantize(own.quantize)))

    def check(self, first_use: bool) -> None:
        """Raises InvalidOptionError for a value that the engine cannot have.

        first_use: whether an engine of target FIRST_USE is to be built. Otherwise the engine exists and is of any
        target.
        """
        check_values(self, BuildChoices)
        asked = asked_formats(self)
        if asked is not None:
            parse = FIRST_USE.parse_quantize if first_use else parse_spec
            parse(asked)

    def check_built(self, config: EngineConfig, path: Path) -> None:
        """Raises InvalidOptionError unless the engine at `path` was built as the choices say. A choice that is left out
        fits any engine."""
        if self.dtype not in ("auto", config.dtype):
            raise _other("dtype", self.dtype, f"{path} is an engine built as {config.dtype}")
        asked = asked_formats(self)
        if asked is not None and parse_spec(asked) not in config.quantize_specs.values():
            specs = config.quantize_specs.items()
            names = [repr(spec.summary if len(spec.rules) > MAX_RULES_SHOWN else name) for name, spec in specs]
            built = " or ".join(dict.fromkeys(names))
            built = f"built as {built}" if built else "without quantized weights"
            option = "quantize" if self.quantize_config is None else "quantize_config"
            raise _other(option, getattr(self, option), f"{path} is an engine {built}")
        if self.kv_cache_dtype not in (AS_ACTIVATIONS, config.kv_cache_dtype):
            found = f"{path} is an engine with a KV cache of {config.kv_cache_dtype!r}"
            raise _other("kv_cache_dtype", self.kv_cache_dtype, found)
        self._check_window(config, path)
        self._check_calibrated(config, path)
        if self.max_seq_len not in (None, config.limits.max_seq_len):
            found = f"{path} is an engine of at most {config.limits.max_seq_len} tokens"
            raise _other("max_seq_len", self.max_seq_len, found)

    def _check_window(self, config: EngineConfig, path: Path) -> None:
        """Raises InvalidOptionError unless attention in the engine sees what the choices say."""
        window = config.build_options.get("attention_window")
        if self.attention_window not in (None, window or 0):
            found = "without an attention window" if window is None else f"with an attention window of {window}"
            raise _other("attention_window", self.attention_window, f"{path} is an engine {found}")
        budget = config.build_options.get("kv_budget")
        if self.kv_budget not in (None, budget or 0):
            found = "without a KV budget" if budget is None else f"with a KV budget of {budget}"
            raise _other("kv_budget", self.kv_budget, f"{path} is an engine {found}")
        recent = config.build_options.get("recent_tokens", (budget or 0) // RECENT_SHARE)
        if self.recent_tokens not in (None, recent):
            raise _other("recent_tokens", self.recent_tokens, f"{path} is an engine with {recent} recent tokens")
        bounded = window is not None or budget is not None
        sinks = config.build_options.get("sink_tokens", SINK_TOKENS if bounded else 0)
        if self.sink_tokens not in (None, sinks):
            raise _other("sink_tokens", self.sink_tokens, f"{path} is an engine with {sinks} sink tokens")
        sparse = config.build_options.get("sparse_prefill")
        if self.sparse_prefill not in (None, sparse or 0):
            found = "without sparse prefill" if sparse is None else f"with sparse prefill {sparse}"
            raise _other("sparse_prefill", self.sparse_prefill, f"{path} is an engine {found}")

    def _check_calibrated(self, config: EngineConfig, path: Path) -> None:
        record = None if config.quantization is None else config.quantization.calibration
        method = "none" if record is None else record.method
        if self.calibrate not in ("none", method):
            raise _other("calibrate", self.calibrate, f"{path} is an engine with calibrate={method!r}")
        if self.calibration_text is None:
            return
        chosen = None if config.quantization is None else config.quantization.choice
        texts = {part.text for part in (record, chosen) if part is not None}
        if read_text_file("calibration_text", self.calibration_text).as_recorded not in texts:
            raise _other("calibration_text", self.calibration_text, f"{path} is an engine that saw no such text")


def asked_formats(options: BuildFields | BuildChoices) -> str | None:
    """Returns the text of the formats that three options ask for: quantize, the rules of a file, and sparsity of the
    layers; None without any.

    Raises InvalidOptionError for a file that cannot be read, and for formats that are not sparse.
    """
    quantize, config = options.quantize, options.quantize_config
    asked = quantize if config is None else with_config(quantize, config)
    return asked if options.sparsity == "none" else with_sparsity(asked)


def _other(option: str, value: Any, found: str) -> InvalidOptionError:
    return InvalidOptionError(f"{option}={value!r}: {found}; build another one")
