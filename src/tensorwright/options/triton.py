"""Declares the options of models for Triton Inference Server: the parameters of config.pbtxt beside the engine's, and
the options of `tensorwright triton-repo`, which writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.options.declare import At, Door, declare, same_as
from tensorwright.options.server import ServerFields

INTERFACES = ("both", "text", "tokens", "llmapi")
BACKENDS = ("python", "tensorwright")
TRTLLM_NAMES = {"ensemble": "text", "tensorrt_llm_bls": "text", "tensorrt_llm": "tokens"}
"""The models of TensorRT-LLM's repository that clients call, each with its interface."""


@dataclass(frozen=True)
class ModelFields:
    """The parameters of a model in Triton."""

    engine: str = declare(
        "",
        at={Door.TRITON: At("The engine's path, absolute or relative to the model's folder. Required.")},
        section="Model in Triton",
    )
    interface: str = declare(
        "both",
        choices=INTERFACES,
        help="Whose tensors the model has: text and token ids, one of them, or those of TensorRT-LLM's LLM-API model.",
        at={Door.TRITON: At(), Door.TRITON_REPO: At()},
    )
    exclude_input_in_output: bool = declare(
        False,
        help="Answers leave out the prompt, unless a request says otherwise.",
        at={Door.TRITON: At(), Door.TRITON_REPO: At(flag="--exclude-input")},
    )
    lora_adapters: str = declare(
        "",
        at={
            Door.TRITON: At(
                'LoRA adapters by the lora_task_id of requests, such as "1=adapters/sql,2=adapters/law". Paths are '
                "absolute or relative to the model's folder."
            )
        },
    )
    cancellation_check_period_ms: int = declare(
        20, at={Door.TRITON: At("Milliseconds between two questions to Triton which requests were cancelled.")}
    )
    chat_template: str | None = declare(
        None,
        str,
        help="Jinja template into which text_input is put as a user's message: a file, or the name of one of the "
        'model\'s templates, such as "default". [default: none, text_input is the prompt]',
        at={Door.TRITON: At(), Door.TRITON_REPO: At(metavar="FILE|NAME")},
    )
    max_priority: int = same_as(ServerFields, "max_priority")


@dataclass(frozen=True)
class RepositoryFields:
    """The options of a repository's models that are not parameters of config.pbtxt.

    trtllm_names: names of TRTLLM_NAMES. batch_dimension: tensors with a batch dimension may hold several prompts of one
    request; those of the LLM-API interface never have one. decoupled: False means that clients call `infer`.
    """

    name: str = declare(
        "tensorwright",
        at={Door.TRITON_REPO: At("The model's name. Run the command once per engine.")},
        section="Model repository",
    )
    backend: str = declare(
        "python",
        choices=BACKENDS,
        at={Door.TRITON_REPO: At("Backend that runs the model: Triton's for Python, or our own, for --backend-dir.")},
    )
    trtllm_names: tuple[str, ...] = declare(
        (),
        str,
        choices=tuple(TRTLLM_NAMES),
        repeated=True,
        at={
            Door.TRITON_REPO: At(
                "Also write a model that clients of TensorRT-LLM call by this name, with its tensors. May be repeated.",
                flag="--trtllm-name",
            )
        },
    )
    batch_dimension: bool = declare(
        True,
        at={
            Door.TRITON_REPO: At(
                "Whether the first dimension of tensors is that of a batch.", flag="--batch-dim/--no-batch-dim"
            )
        },
    )
    decoupled: bool = declare(
        True,
        at={
            Door.TRITON_REPO: At(
                "Whether a request may have several answers, as streams do, or has exactly one.",
                flag="--decoupled/--no-decoupled",
            )
        },
    )
    relative: bool = declare(
        False, at={Door.TRITON_REPO: At("Name the engine by its path relative to the model's folder.")}
    )
