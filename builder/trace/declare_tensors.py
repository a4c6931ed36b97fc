"""Says which tensors the checkpoint of a config.json would hold: those of the model that transformers makes of it."""

from __future__ import annotations

from tensorwright.builder.trace.load_model import load_model
from tensorwright.models.config_only import ConfigOnly


def declare_tensors(checkpoint: ConfigOnly) -> None:
    """Declares the tensors of `checkpoint`, under transformers' own names. A tied tensor is declared once.

    Raises what `load_model` raises.
    """
    model = load_model(checkpoint, "float32")
    tied = model.all_tied_weights_keys
    checkpoint.declare({name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied})
