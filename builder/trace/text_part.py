"""Finds the text part of a model: the modules that turn token ids into logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from tensorwright.errors import UnsupportedModelError


@dataclass(frozen=True)
class TextPart:
    """The paths of the modules of the text part. None means the whole model, which a plain decoder is."""

    paths: tuple[str, ...] | None

    def holds(self, name: str) -> bool:
        """Returns whether a parameter, a buffer or a module of this name belongs to the text part."""
        return self.paths is None or any(name == path or name.startswith(f"{path}.") for path in self.paths)


def find_text_part(model: PreTrainedModel) -> TextPart:
    """Returns the text part. Raises UnsupportedModelError if a model of several parts has no decoder of its own."""
    if model.config.get_text_config() is model.config:
        return TextPart(None)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if decoder is model or head is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no decoder of its own beside its other parts, which is not supported; "
            "docs/families.md lists what is"
        )
    return TextPart((_path(model, decoder), _path(model, head)))


def _path(model: nn.Module, wanted: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)
