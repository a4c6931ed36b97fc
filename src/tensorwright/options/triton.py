"""Options of a model in Triton Inference Server: parameters of its config.pbtxt, beside those of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.options.declare import At, Door, declare, same_as
from tensorwright.options.server import ServerFields

INTERFACES = ("both", "text", "tokens", "llmapi")


@dataclass(frozen=True)
class ModelFields:
    """engine: as written, relative to the model's folder or absolute. exclude_input_in_output: what holds for requests
    that do not say. cancellation_check_period_ms: how often Triton is asked which requests were cancelled.
    chat_template: text_input is what a user says, put into this template: a file, relative as engine is, or the name of
    one of the model's, such as "default"; None: text_input is the prompt. max_priority: the highest value of the input
    `priority`."""

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
