"""Declares the options of a running engine: the keywords of LLM, except those of a build, which are in build.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.number_checks import MAX_INT32, real
from tensorwright.options.declare import At, Door, Duration, Rule, Size, declare, path_rule, whole_number
from tensorwright.options.prefix_cache import PrefixCacheFields

LOADS = ("map", "copy")
NUMA = ("auto", "off", "split", "interleave")
"""What an engine does on several NUMA nodes; runtime/core/executor/numa.h has the same names."""
VOCABULARY_TIMES = ("lazy", "eager")
"""The times at which the vocabulary can be read for guided decoding."""
GENERATION_CONFIGS = ("model", "neutral")
"""The sources of sampling defaults: the model's generation_config.json, or SamplingParams alone."""
TOOL_PARSERS = (
    "auto", "none", "harmony", "deepseek_v3", "deepseek_v31", "mistral_named", "mistral", "kimi_k2", "cohere",
    "minimax", "seed", "step3", "function_gemma", "gemma4", "gemma3", "lfm2", "glm", "qwen3_coder", "granite",
    "phi4_functools", "phi4", "hunyuan", "tool_calls", "ernie", "hermes", "pythonic", "llama3_json",
)  # fmt: skip
"""The formats of tool calls by name; runtime/chat_formats/registry.py has the same names. auto: the one that the chat
template shows. none: calls are text."""
REASONING_PARSERS = (
    "auto", "none", "harmony", "think_brackets", "seed_think", "cohere_thinking", "gemma_channel", "think",
)  # fmt: skip
"""The forms of thinking by name, likewise."""
MAX_THREADS = 1024
"""The greatest number of worker threads. runtime/core has the same number."""
WATCHDOGS = ("off", "report", "restart", "exit")
"""What becomes of an engine whose step takes longer than step_limit, or that dies; runtime/requests/watchdog.py."""
DEFAULT_LIMITS = {"max_batch_size": 64, "max_num_tokens": 512}
"""The limits of a step, unless an engine was built for limits of its own."""
GPU_MEMORY = 0.9
"""The share of a GPU's free memory that the KV cache may take, unless the user says another."""

_COUNT = whole_number(f"a positive integer of at most {MAX_INT32}")
_THREADS = whole_number(f"a positive integer of at most {MAX_THREADS}", high=MAX_THREADS)
MAX_SNAPSHOTS = 1 << 20
"""The greatest number of snapshots. runtime/core has the same number."""
_SNAPSHOTS = whole_number(f"a whole number of at most {MAX_SNAPSHOTS}", low=0, high=MAX_SNAPSHOTS)
MAX_LORAS = 1024
"""The greatest number of adapters that can be loaded at once."""
MAX_RANK = 128
"""The greatest rank of an adapter. models/peft_adapter.py has the same number."""
_BUILT_FOR = "or what an engine of a GPU was built for"
_QUEUE = "The most requests that may wait"
_LOAD = "How the weights are read: mapped from the file, or copied into memory."
_NUMA = (
    "On a machine with several NUMA nodes, with load=copy: split keeps threads to processors and each thread's part "
    "of the weights on its node, interleave spreads the weights over the nodes, off leaves both to the system, auto "
    "splits where every core has a thread. Ranks of this machine have processors of their own with split."
)
_VOCABULARY = "When the vocabulary is read for guided decoding: at the first guided request, or beside the start."
_TOOL_PARSER = "The format in which the model writes calls of tools; auto: the one that the chat template shows."
_REASONING_PARSER = "The form in which the model thinks; auto: the one that the chat template shows."
_STEP_LIMIT = "The longest time that a step may take before the watchdog acts, in seconds or such as 2min"
_WATCHDOG = (
    "Of a step over the step limit: off looks away, report writes what runs into a file, restart also puts another "
    "engine in place of one that dies or comes back late, exit also ends the process."
)
_TEMPLATE = "Jinja in place of the model's own chat template, or the name of one of the model's."


def _are_devices(value: Any) -> bool:
    numbers = value.split(",") if isinstance(value, str) else []
    return (
        bool(numbers)
        and all(n.isascii() and n.isdigit() and len(n) < 5 for n in numbers)
        and (len({int(n) for n in numbers}) == len(numbers))
    )


_RANK = whole_number(f"a whole number from 1 to {MAX_RANK}", high=MAX_RANK)
_LORAS = whole_number(f"a whole number of at most {MAX_LORAS}", low=0, high=MAX_LORAS)


def parse_adapters(texts: tuple[str, ...]) -> dict[str, str]:
    """Parses adapters: ("sql=adapters/sql",) becomes {"sql": "adapters/sql"}. Raises ValueError for a wrong text."""
    adapters: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not name.strip() or not path.strip():
            raise ValueError(f"must be NAME=PATH, got {text!r}")
        if name in adapters:
            raise ValueError(f"the adapter {name!r} must have one path, got several")
        adapters[name] = path
    return adapters


def _are_adapters(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair)


@dataclass(frozen=True)
class EngineFields(PrefixCacheFields):
    """The keywords of LLM with LLM's defaults. LLM's docstring says what each keyword does."""

    kv_cache_memory: str | int | None = declare(
        None,
        Size,
        help='Memory of the KV cache, such as "512MiB". [default: half of the free memory, or what a full batch can '
        "use]",
        at={
            Door.LLM: At(),
            Door.SIMULATE: At(),
            Door.RUN: At(),
            Door.SERVE: At(),
            Door.BENCH: At(),
            Door.TRITON_REPO: At(),
            Door.TRITON: At(),
        },
        section="Memory and batches",
    )
    max_batch_size: int | None = declare(
        None,
        int,
        rule=_COUNT,
        help=f"The most completions that run at once. [default: {DEFAULT_LIMITS['max_batch_size']}, {_BUILT_FOR}]",
        at={Door.LLM: At(), Door.SIMULATE: At(), Door.SERVE: At(), Door.TRITON_REPO: At(), Door.TRITON: At()},
    )
    max_num_tokens: int | None = declare(
        None,
        int,
        rule=_COUNT,
        help=f"The most tokens of one step. [default: {DEFAULT_LIMITS['max_num_tokens']}, {_BUILT_FOR}]",
        at={
            Door.LLM: At(),
            Door.SIMULATE: At(),
            Door.SERVE: At(),
            Door.BENCH: At(),
            Door.TRITON_REPO: At(),
            Door.TRITON: At(),
        },
    )
    max_prefill_chunk: int | None = declare(
        None,
        int,
        rule=_COUNT,
        help="The most tokens of one prompt in one step. [default: no limit of its own]",
        at={Door.LLM: At(), Door.SIMULATE: At(), Door.SERVE: At(), Door.TRITON_REPO: At(), Door.TRITON: At()},
    )
    itl_goal: str | float | None = declare(
        None,
        Duration,
        help="The longest time between two tokens of a completion, such as 50ms, that 99 of 100 keep: steps compute as "
        "much of prompts beside running completions as that leaves room for. [default: no goal]",
        at={
            Door.LLM: At(),
            Door.SIMULATE: At(metavar="TIME"),
            Door.SERVE: At(metavar="TIME"),
            Door.TRITON_REPO: At(metavar="TIME"),
            Door.TRITON: At(),
        },
        section="Scheduling",
    )
    priority_ageing: str | float | None = declare(
        None,
        Duration,
        help="A request that waits rises by one priority for each such time, up to the highest that waits. [default: "
        "never]",
        at={
            Door.LLM: At(),
            Door.SIMULATE: At(metavar="TIME"),
            Door.SERVE: At(metavar="TIME"),
            Door.TRITON_REPO: At(metavar="TIME"),
            Door.TRITON: At(),
        },
    )
    watchdog: str = declare(
        "off",
        choices=WATCHDOGS,
        help=_WATCHDOG,
        at={
            Door.LLM: At(),
            Door.SERVE: At(default="restart"),
            Door.TRITON_REPO: At(f"{_WATCHDOG} [default: restart]", default=None),
            Door.TRITON: At(default="restart"),
        },
        section="Watchdog",
    )
    step_limit: str | float = declare(
        300.0,
        Duration,
        help=f"{_STEP_LIMIT}.",
        at={
            Door.LLM: At(),
            Door.SERVE: At(metavar="TIME"),
            Door.TRITON_REPO: At(f"{_STEP_LIMIT}. [default: 300.0]", default=None, metavar="TIME"),
            Door.TRITON: At(),
        },
    )
    watchdog_dir: str | None = declare(
        None,
        str,
        help="Folder for the watchdog's reports. [default: the system's folder for temporary files]",
        at={
            Door.LLM: At(),
            Door.SERVE: At(metavar="DIR"),
            Door.TRITON_REPO: At(metavar="DIR"),
            Door.TRITON: At(),
        },
    )
    max_prompt_logprob_rows: int = declare(
        64,
        rule=_COUNT,
        help="The most prompt tokens that one step scores for prompt_logprobs.",
        at={Door.LLM: At(), Door.TRITON: At()},
        section="Memory and batches",
    )
    max_queue_size: int = declare(
        1024,
        rule=_COUNT,
        help=f"{_QUEUE}.",
        at={
            Door.LLM: At(),
            Door.SIMULATE: At(f"{_QUEUE}. [default: 1024]", default=None),
            Door.SERVE: At(f"{_QUEUE}; one more is answered 429.", default=256),
            Door.TRITON_REPO: At(f"{_QUEUE}. [default: 1024]", default=None),
            Door.TRITON: At(),
        },
    )
    threads: int | None = declare(
        None,
        int,
        rule=_THREADS,
        help="Worker threads that compute. [default: one per physical core]",
        at={
            Door.LLM: At(),
            Door.RUN: At(),
            Door.SERVE: At(),
            Door.BENCH: At(),
            Door.EVAL: At(),
            Door.TRITON_REPO: At(),
            Door.TRITON: At(),
        },
        section="Processors and GPUs",
    )
    load: str = declare(
        "map",
        choices=LOADS,
        help=_LOAD,
        at={
            Door.LLM: At(),
            Door.SERVE: At(),
            Door.BENCH: At(),
            Door.TRITON_REPO: At(f"{_LOAD} [default: map]", default=None),
            Door.TRITON: At(),
        },
    )
    numa: str = declare(
        "auto",
        choices=NUMA,
        help=_NUMA,
        at={
            Door.LLM: At(),
            Door.SERVE: At(),
            Door.BENCH: At(),
            Door.TRITON_REPO: At(f"{_NUMA} [default: auto]", default=None),
            Door.TRITON: At(),
        },
    )
    rank_timeout: float = declare(
        300.0,
        rule=Rule("a number of seconds above 0", lambda value: type(value) in (int, float) and 0 < value < 1e7),
        help="Of an engine with ranks: the seconds that one waits for another in a step before all start again.",
        at={Door.LLM: At(), Door.RUN: At(), Door.SERVE: At(), Door.BENCH: At()},
    )
    devices: str | None = declare(
        None,
        str,
        rule=Rule("numbers of GPUs, none twice, such as 0 or 0,1", _are_devices),
        help="Of an engine of a GPU's target: the numbers of the GPUs that it runs on, one for each rank of this "
        "machine, such as 0,1. [default: 0, 1 and so on]",
        at={Door.LLM: At(), Door.RUN: At(), Door.SERVE: At(), Door.BENCH: At()},
    )
    gpu_memory: float | None = declare(
        None,
        float,
        rule=Rule("above 0, up to 1", lambda value: 0 < real(value) <= 1),
        help="Of an engine of a GPU's target: the share of the GPU's memory, beside weights and activations, that the "
        f"KV cache may take where --kv-cache-memory says no size. [default: {GPU_MEMORY}]",
        at={Door.LLM: At(), Door.RUN: At(), Door.SERVE: At(), Door.BENCH: At()},
    )
    enable_prefix_caching: bool | None = declare(
        None,
        bool,
        rule=Rule("True or False", lambda value: isinstance(value, bool)),
        help="Whether prompts with the same beginning share its part of the KV cache. [default: on, except for engines "
        "of target onnx, which cannot]",
        at={
            Door.LLM: At(),
            Door.SIMULATE: At(flag="--prefix-caching/--no-prefix-caching"),
            Door.SERVE: At(flag="--prefix-caching/--no-prefix-caching"),
            Door.TRITON: At(),
        },
        section="Prefix cache",
    )
    state_snapshots: int | None = declare(
        None,
        int,
        rule=_SNAPSHOTS,
        help="The most states of recurrent layers that prefix caching keeps; 0 shares no prompt of a model with such "
        "layers. [default: 4 for each running completion, in at most a quarter of kv_cache_memory]",
        at={Door.LLM: At(), Door.SERVE: At(), Door.TRITON_REPO: At(), Door.TRITON: At()},
    )
    speculative: str | Mapping[str, Any] | None = declare(
        None,
        str,
        help="Who proposes tokens, which one step then verifies together: ngram proposes what followed the same tokens "
        "before in the text, suffix also what did in earlier outputs, draft,model=ENGINE what a smaller model says, "
        "heads what the heads say that the engine was built with. Also tokens=auto or 1 to 16, rows=N, min_match=N, "
        "remembered=N, kv_cache_memory=SIZE. [default: none]",
        at={
            Door.LLM: At(),
            Door.RUN: At(metavar="METHOD[,NAME=VALUE]"),
            Door.SERVE: At(metavar="METHOD[,NAME=VALUE]"),
            Door.BENCH: At(metavar="METHOD[,NAME=VALUE]"),
            Door.TRITON_REPO: At(metavar="METHOD[,NAME=VALUE]"),
            Door.TRITON: At(),
        },
        section="Speculation",
    )
    adapters: Mapping[str, str] = declare(
        (),
        str,
        repeated=True,
        parse=parse_adapters,
        rule=Rule("a dict of names and paths", lambda value: value == () or _are_adapters(value)),
        help="LoRA adapter in PEFT's form that requests can name. May be repeated.",
        at={
            Door.LLM: At(default=None),
            Door.RUN: At(
                "LoRA adapter in PEFT's form, with which the prompts are answered.", "--adapter", metavar="NAME=PATH"
            ),
            Door.SERVE: At(flag="--adapter", metavar="NAME=PATH"),
        },
        section="Adapters",
    )
    max_loras: int | None = declare(
        None,
        int,
        rule=_LORAS,
        help="The most LoRA adapters that may be loaded at once. [default: as many as are given at the start]",
        at={Door.LLM: At(), Door.SERVE: At(), Door.TRITON: At()},
    )
    max_lora_rank: int = declare(
        16,
        rule=_RANK,
        help="The greatest rank of LoRA adapters.",
        at={Door.LLM: At(), Door.RUN: At(), Door.SERVE: At(), Door.TRITON: At()},
    )
    trace: str | None = declare(
        None,
        str,
        rule=path_rule("the path of a file"),
        help="Write what the engine did when (steps, instructions, threads, requests) into this file when it stops, in "
        "Chrome's trace format, which ui.perfetto.dev opens.",
        at={
            Door.LLM: At(),
            Door.RUN: At(metavar="FILE"),
            Door.SERVE: At(metavar="FILE"),
            Door.BENCH: At(metavar="FILE"),
        },
        section="Tracing",
    )
    guided_vocabulary: str = declare(
        "lazy",
        choices=VOCABULARY_TIMES,
        help=_VOCABULARY,
        at={
            Door.LLM: At(),
            Door.SERVE: At(default="eager"),
            Door.TRITON_REPO: At(f"{_VOCABULARY} [default: eager]", default=None),
            Door.TRITON: At(default="eager"),
        },
        section="Text, tools and guided decoding",
    )
    jump_forward: bool | None = declare(
        None,
        bool,
        rule=Rule("True or False", lambda value: isinstance(value, bool)),
        help="Whether tokens that guided decoding forces are computed with the token before them. [default: on, for "
        "engines of target cpu without recurrent layers]",
        at={
            Door.LLM: At(),
            Door.SERVE: At(flag="--jump-forward/--no-jump-forward"),
            Door.TRITON: At(),
        },
    )
    chat_template: str | None = declare(
        None,
        str,
        help=_TEMPLATE,
        at={
            Door.LLM: At(),
            Door.RUN: At(f"With --chat: {_TEMPLATE}", metavar="FILE|NAME"),
            Door.SERVE: At(metavar="FILE|NAME"),
        },
    )
    tool_parser: str = declare(
        "auto",
        choices=TOOL_PARSERS,
        help="The format in which the model writes calls of tools.",
        at={
            Door.LLM: At(),
            Door.SERVE: At(
                f"{_TOOL_PARSER} One name for all engines, or ENGINE=NAME for one. Names: {', '.join(TOOL_PARSERS)}.",
                choices=(),
                metavar="NAME[,ENGINE=NAME]",
            ),
        },
    )
    reasoning_parser: str = declare(
        "auto",
        choices=REASONING_PARSERS,
        help="The form in which the model thinks before it answers.",
        at={
            Door.LLM: At(),
            Door.SERVE: At(
                f"{_REASONING_PARSER} As --tool-parser. Names: {', '.join(REASONING_PARSERS)}.",
                choices=(),
                metavar="NAME[,ENGINE=NAME]",
            ),
        },
    )
    generation_config: str = declare(
        "model",
        choices=GENERATION_CONFIGS,
        help="Where the defaults of sampling come from: the model's generation_config.json, or SamplingParams alone.",
        at={
            Door.LLM: At(),
            Door.RUN: At(),
            Door.SERVE: At(),
            Door.TRITON_REPO: At(
                "model: what a request leaves out is as the model's generation_config.json says. [default: neutral, "
                "TensorRT-LLM's defaults]",
                default=None,
            ),
            Door.TRITON: At(
                "Where the defaults of sampling come from: the model's generation_config.json, or TensorRT-LLM's "
                "defaults.",
                default="neutral",
            ),
        },
    )
