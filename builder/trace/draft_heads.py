"""Traces heads that propose tokens to a model: what of the model they read, and the heads themselves.

Heads are a small decoder of their own. Their position i has token i + 1 and the feature of position i, which the model
computed, and says which token may come behind token i + 1. Behind the first proposed token the feature is their own.
Medusa heads (medusa_heads.py) read the feature alone, and say several tokens at once: so many times the vocabulary.

    the model:  input_ids, position_ids            -> logits [1, seq, vocab], features [1, seq, width]
    the heads:  input_ids, position_ids, features  -> logits [1, seq, draft vocab], own features [1, seq, width]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.utils import ModelOutput

from tensorwright.builder.trace.load_model import without_storage
from tensorwright.builder.trace.weight_names import TextWeights
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.dtypes import WEIGHTS
from tensorwright.models.eagle3 import Eagle3Features, Eagle3Head, read_options
from tensorwright.models.heads_checkpoint import EAGLE3, HeadsCheckpoint

_STORED_LAYER = ("midlayer.", "layers.0.")
"""How the names of the layer's tensors begin: of the authors, and of speculators."""


@dataclass(frozen=True)
class Point:
    """A value of the model that features are made of: the hidden state that a module takes, or the one that it
    gives."""

    module: nn.Module
    given: bool


@dataclass
class DraftHeads:
    """Heads, ready to be traced beside the model.

    kind: what they are, for the engine's record. width: the columns of a feature. points: where features come from.
    features: the module that makes a feature of the values at the points. head: the heads. feature_weights and
    head_weights: the expressions of their parameters by name. draft_tokens: int32 [draft vocab], the model's token for
    each of the heads'; None if they are the same.
    """

    kind: str
    width: int
    points: list[Point]
    features: nn.Module
    head: nn.Module
    feature_weights: dict[str, WeightExpr]
    head_weights: dict[str, WeightExpr]
    draft_tokens: np.ndarray | None
    wide: list[str] = field(default_factory=list)
    """The stored matrices that stay in float32."""
    at_once: int = 1
    """The tokens that they say at once: logits have so many times the vocabulary."""

    def passes_of_features(self, quantized: bool) -> dict[str, int]:
        """Returns how many more times passes fire on the model because of the features. quantized: whether the
        matrices of layers are."""
        parts = list(self.features.modules())
        products = sum(isinstance(part, nn.Linear) for part in parts)
        return {
            "recognise_rms_norm": sum(isinstance(part, LlamaRMSNorm) for part in parts),
            "quantize_weights": products if quantized else 0,
        }


class Last(nn.Module):
    """The feature is the one value that was seen."""

    def forward(self, seen: list[torch.Tensor]) -> torch.Tensor:
        return seen[0]


class LogitsAndFeatures(nn.Module):
    """The model as a function of token ids and positions, with logits and a feature of every position."""

    def __init__(self, logits: nn.Module, heads: DraftHeads):
        super().__init__()
        self.model = logits.model
        self.features = heads.features
        self._points = heads.points
        self._logits = [logits]  # A list hides the module, whose parameters have names already.

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with _watched(self._points) as seen:
            logits = self._logits[0](input_ids, position_ids)
        return logits, self.features([seen[i] for i in range(len(self._points))])


@contextmanager
def _watched(points: list[Point]) -> Iterator[dict[int, torch.Tensor]]:
    """Collects the values at the points while the model runs."""
    seen: dict[int, torch.Tensor] = {}

    def taken(i: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[i] = args[0] if args else kwargs["hidden_states"]

        return hook

    def given(i: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            seen[i] = result[0] if isinstance(result, (tuple, ModelOutput)) else result

        return hook

    handles = [
        point.module.register_forward_hook(given(i))
        if point.given
        else point.module.register_forward_pre_hook(taken(i), with_kwargs=True)
        for i, point in enumerate(points)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def open_eagle3(checkpoint: HeadsCheckpoint, model: PreTrainedModel, weights: TextWeights) -> DraftHeads:
    """Returns the EAGLE-3 heads of a checkpoint for `model`, whose parameters have the expressions `weights`.

    Raises CheckpointError for heads of another model, or with missing or mis-shaped weights, and UnsupportedModelError.
    """
    target = model.config.get_text_config()
    config, options = read_options(checkpoint.config)
    layers, embedding = _layers(model), model.get_input_embeddings()
    require_same(checkpoint, "target_hidden_size", options.target_hidden, target.hidden_size)
    require_same(checkpoint, "vocab_size", config.vocab_size, target.vocab_size)
    try:
        with without_storage():
            features, head = Eagle3Features(config, options), Eagle3Head(config, options)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:  # such as an unknown activation
        raise CheckpointError(f"{checkpoint.path}: no heads can be made of config.json: {error!r}") from error
    names = {
        name: _stored_name(checkpoint, name) for name, _ in (*head.named_parameters(), *features.named_parameters())
    }
    shared: dict[str, WeightExpr] = {}
    if names["embed_tokens.weight"] not in checkpoint:
        require_same(checkpoint, "hidden_size", config.hidden_size, target.hidden_size)
        shared["embed_tokens.weight"] = weights.expressions[_name_of(model, embedding)]
    parameters = dict((*head.named_parameters(), *features.named_parameters()))
    checkpoint.require(
        {names[name]: tuple(each.shape) for name, each in parameters.items() if name not in shared}, WEIGHTS
    )
    expressions = {name: shared.get(name, Ref(checkpoint.name_in_build(names[name]))) for name in names}
    depth = len(layers)
    chosen = options.layers_of(depth)
    return DraftHeads(
        kind=EAGLE3,
        width=config.hidden_size,
        points=[Point(layers[at], False) if at < depth else Point(layers[-1], True) for at in chosen],
        features=features.eval(),
        head=head.eval(),
        feature_weights={f"features.{name}": expressions[name] for name, _ in features.named_parameters()},
        head_weights={name: expressions[name] for name, _ in head.named_parameters()},
        draft_tokens=_draft_tokens(checkpoint, options.draft_vocab, target.vocab_size),
    )


def require_same(checkpoint: HeadsCheckpoint, field: str, says: int, has: int) -> None:
    """Raises CheckpointError unless what heads say of their model is what the model has."""
    if says != has:
        raise CheckpointError(f"{checkpoint.path}: the heads are of another model: their {field} is {says}, not {has}")


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the model's decoder layers."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.get_decoder().children():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} layers that heads could read from")


def _name_of(model: nn.Module, embedding: nn.Module) -> str:
    return next(f"{path}.weight" for path, module in model.named_modules() if module is embedding)


def _stored_name(checkpoint: HeadsCheckpoint, name: str) -> str:
    """Returns the name of a parameter in the file."""
    ours, theirs = _STORED_LAYER
    other = name.replace(ours, theirs, 1) if name.startswith(ours) else name
    return name if name in checkpoint else other


def _draft_tokens(checkpoint: HeadsCheckpoint, draft_vocab: int, vocab: int) -> np.ndarray | None:
    """Returns the model's token for each of the heads': token i stands for i + d2t[i]."""
    if "d2t" not in checkpoint:
        if draft_vocab != vocab:
            raise CheckpointError(
                f"{checkpoint.path}: the heads have {draft_vocab} tokens of {vocab}, and no d2t says which"
            )
        return None
    checkpoint.require({"d2t": (draft_vocab,)}, ("int64", "int32"))
    tokens = np.arange(draft_vocab, dtype=np.int64) + checkpoint.read("d2t").data
    if tokens.min() < 0 or tokens.max() >= vocab or len(np.unique(tokens)) != draft_vocab:
        raise CheckpointError(f"{checkpoint.path}: d2t must name {draft_vocab} different tokens below {vocab}")
    return tokens.astype(np.int32)
