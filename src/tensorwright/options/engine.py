"""Declares the options of a running engine: the keywords of LLM, except those of a build, which are in build.py."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.options.declare import MAX_INT32, At, Door, Rule, Size, declare, whole_number

LOADS = ("map", "copy")
VOCABULARY_TIMES = ("lazy", "eager")
"""The times at which the vocabulary can be read for guided decoding."""
GENERATION_CONFIGS = ("model", "neutral")
"""The sources of sampling defaults: the model's generation_config.json, or SamplingParams alone."""
MAX_THREADS = 1024
"""The greatest number of worker threads. runtime/core has the same number."""
LIMITED = ", or what a TensorRT engine was built for."
"""The end of the help text of an option that limits a step."""
ONE_PER_CORE = At("Default: one per physical core.")
USEFUL_MEMORY = At('Such as "512MiB". Default: half of the free memory, or what is useful.')

_COUNT = whole_number(f"a positive integer of at most {MAX_INT32}")
_THREADS = whole_number(f"a positive integer of at most {MAX_THREADS}", high=MAX_THREADS)
_READ_FOR_GUIDED = "When it is read for guided decoding: at the first guided request, or beside the start"


@dataclass(frozen=True)
class EngineFields:
    """The keywords of LLM with LLM's defaults. LLM's docstring says what each keyword does."""

    kv_cache_memory: str | int | None = declare(
        None,
        Size,
        at={
            Door.LLM: At(),
            Door.RUN: USEFUL_MEMORY,
            Door.SERVE: At('Such as "512MiB". Default: half of the free memory.'),
            Door.BENCH: USEFUL_MEMORY,
            Door.TRITON_REPO: USEFUL_MEMORY,
            Door.TRITON: At(),
        },
    )
    max_batch_size: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at={
            Door.LLM: At(),
            Door.SERVE: At("Completions that run at once. Default: 64" + LIMITED),
            Door.TRITON_REPO: At("Most completions that run at once. Default: 64" + LIMITED),
            Door.TRITON: At(),
        },
    )
    max_num_tokens: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at={
            Door.LLM: At(),
            Door.SERVE: At("Most tokens of one step. Default: 512" + LIMITED),
            Door.BENCH: At("Most tokens of one step. Default: 512" + LIMITED),
            Door.TRITON_REPO: At("Most tokens of one step."),
            Door.TRITON: At(),
        },
    )
    max_prefill_chunk: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at={
            Door.LLM: At(),
            Door.SERVE: At("Most tokens of one prompt in one step."),
            Door.TRITON_REPO: At("Most tokens of one prompt in one step."),
            Door.TRITON: At(),
        },
    )
    max_prompt_logprob_rows: int = declare(64, rule=_COUNT, at={Door.LLM: At(), Door.TRITON: At()})
    max_queue_size: int = declare(
        1024,
        rule=_COUNT,
        at={
            Door.LLM: At(),
            Door.SERVE: At("Requests that may wait; one more is answered 429.", default=256),
            Door.TRITON_REPO: At("Requests that may wait.", default=None),
            Door.TRITON: At(),
        },
    )
    threads: int | None = declare(
        None,
        int,
        rule=_THREADS,
        at={
            Door.LLM: At(),
            Door.RUN: ONE_PER_CORE,
            Door.SERVE: ONE_PER_CORE,
            Door.BENCH: ONE_PER_CORE,
            Door.TRITON_REPO: ONE_PER_CORE,
            Door.TRITON: At(),
        },
    )
    load: str = declare(
        "map",
        choices=LOADS,
        at={
            Door.LLM: At(),
            Door.SERVE: At("How weights are read."),
            Door.TRITON_REPO: At("Map the weights, or copy them.", default=None),
            Door.TRITON: At(),
        },
    )
    enable_prefix_caching: bool | None = declare(
        None,
        bool,
        rule=Rule("True or False", lambda value: isinstance(value, bool)),
        at={
            Door.LLM: At(),
            Door.SERVE: At(
                "Default: on, but for engines of target onnx, which cannot.",
                flag="--prefix-caching/--no-prefix-caching",
            ),
            Door.TRITON: At(),
        },
    )
    guided_vocabulary: str = declare(
        "lazy",
        choices=VOCABULARY_TIMES,
        at={
            Door.LLM: At(),
            Door.SERVE: At(f"{_READ_FOR_GUIDED}.", default="eager"),
            Door.TRITON_REPO: At(f"{_READ_FOR_GUIDED}, the default here.", default=None),
            Door.TRITON: At(),
        },
    )
    chat_template: str | None = declare(
        None,
        str,
        at={
            Door.LLM: At(),
            Door.RUN: At(
                "With --chat: Jinja instead of the model's own template, or the name of one of the model's.",
                metavar="FILE|NAME",
            ),
            Door.SERVE: At(
                "Jinja instead of the model's own chat template, or the name of one of the model's.",
                metavar="FILE|NAME",
            ),
        },
    )
    generation_config: str = declare(
        "model",
        choices=GENERATION_CONFIGS,
        at={
            Door.LLM: At(),
            Door.RUN: At("Defaults of sampling: what the model's generation_config.json names, or none of it."),
            Door.SERVE: At("Defaults of sampling: what the model's generation_config.json names, or none of it."),
            Door.TRITON_REPO: At(
                "model: what a request leaves out is as the model's generation_config.json says. Default: "
                "TensorRT-LLM's way.",
                default=None,
            ),
            Door.TRITON: At(default="neutral"),
        },
    )
