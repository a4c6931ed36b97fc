"""Declares the options of a model in Triton Inference Server: the parameters of config.pbtxt beside the engine's."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.options.declare import At, Door, declare, same_as
from tensorwright.options.server import ServerFields

INTERFACES = ("both", "text", "tokens", "llmapi")


@dataclass(frozen=True)
class ModelFields:
    """The parameters of a model in Triton.

    engine: the engine's path, absolute or relative to the model's folder.
    exclude_input_in_output: whether answers leave out the prompt, for requests that do not say.
    cancellation_check_period_ms: the milliseconds between two questions to Triton which requests were cancelled.
    chat_template: the template into which text_input is put as a user's message: a file, relative to the model's folder
    or absolute, or the name of one of the model's templates, such as "default". None means that text_input is the
    prompt.
    max_priority: the highest value of the input `priority`.
    """

    engine: str = declare("", at={Door.TRITON: At()})
    interface: str = declare(
        "both",
        choices=INTERFACES,
        at={
            Door.TRITON: At(),
            Door.TRITON_REPO: At(
                "Whose tensors: text and token ids, one of them, or those of TensorRT-LLM's LLM-API model."
            ),
        },
    )
    exclude_input_in_output: bool = declare(
        False,
        at={
            Door.TRITON: At(),
            Door.TRITON_REPO: At(
                "Answers leave out the prompt, unless a request says otherwise.", flag="--exclude-input"
            ),
        },
    )
    cancellation_check_period_ms: int = declare(20, at={Door.TRITON: At()})
    chat_template: str | None = declare(
        None,
        str,
        at={
            Door.TRITON: At(),
            Door.TRITON_REPO: At(
                "Take text_input for what a user says and put it into this Jinja template; "
                '"default": the model\'s own.',
                metavar="FILE|NAME",
            ),
        },
    )
    max_priority: int = same_as(ServerFields, "max_priority")
