"""Makes heads of the layer with which a checkpoint predicts further tokens (MTP), where it is stored as DeepSeek-V3's.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2: one more decoder layer of the model's own kind reads
W [norm(embedding of token i + 1); norm(h i)], where h is the model's last hidden state behind its final norm, or, for
the tokens behind the first proposed one, the layer's own. It has a norm before the output, and shares the model's
embedding and output matrix, or stores copies. A checkpoint may have several such layers, for the tokens after each
other; here the first one proposes them all.
"""

from __future__ import annotations

import re
from copy import deepcopy

import torch
from torch import nn
from transformers import PreTrainedModel

from tensorwright.builder.trace.draft_heads import DraftHeads, Last, Point
from tensorwright.builder.trace.fix_bias_length import fix_bias_length
from tensorwright.builder.trace.fix_dynamic_rope import fix_dynamic_rope
from tensorwright.builder.trace.fix_indexers import fix_indexers
from tensorwright.builder.trace.fix_longrope import fix_longrope
from tensorwright.builder.trace.load_model import load_model, wide_matrices, without_storage
from tensorwright.builder.trace.trace_experts import make_experts_opaque
from tensorwright.builder.trace.trace_other_experts import make_other_experts_opaque
from tensorwright.builder.trace.weight_names import find_weights
from tensorwright.errors import UnsupportedModelError
from tensorwright.ir.weights import Ref, WeightExpr, parse_expr
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.dtypes import Ranges, Tensor
from tensorwright.options.build import OWN_HEADS

_OWN = ("enorm.weight", "hnorm.weight", "eh_proj.weight")
_QUOTED = re.compile(r'"([^"]+)"')


class LayerView(Checkpoint):
    """A checkpoint as if the layer that predicts further tokens were its only one: the same files under other names."""

    def __init__(self, checkpoint: Checkpoint, layer: int):
        self.__dict__.update(checkpoint.__dict__)
        self.layer = f"model.layers.{layer}."
        stored = {name for name in checkpoint.names if name.startswith(self.layer)}
        if not all(self.layer + name in stored for name in _OWN):
            raise UnsupportedModelError(
                f"{checkpoint.path}: has no layer {self.layer[:-1]} with {', '.join(_OWN)}, as DeepSeek-V3 and GLM-4.5 "
                "store the layer that predicts further tokens; other forms of MTP are not supported: leave out heads"
            )
        self.homes = {self._renamed(name): name for name in stored if name.removeprefix(self.layer) not in _OWN}
        for shared in ("model.embed_tokens.weight", "lm_head.weight"):
            if shared not in self.homes and shared in checkpoint:
                self.homes[shared] = shared
        self.names = tuple(sorted(self.homes))

    def _renamed(self, name: str) -> str:
        inner = name.removeprefix(self.layer)
        special = {
            "shared_head.norm.weight": "model.norm.weight",
            "shared_head.head.weight": "lm_head.weight",
            "embed_tokens.weight": "model.embed_tokens.weight",
        }
        return special.get(inner, f"model.layers.0.{inner}")

    def shape(self, name: str) -> tuple[int, ...]:
        return super().shape(self.homes.get(name, name))

    def dtype(self, name: str) -> str:
        return super().dtype(self.homes.get(name, name))

    def read_part(self, name: str, ranges: Ranges) -> Tensor:
        return super().read_part(self.homes.get(name, name), ranges)

    def own_names(self, expression: WeightExpr) -> WeightExpr:
        """Returns an expression over these names as one over the names in the files."""
        return parse_expr(_QUOTED.sub(lambda match: f'"{self.homes.get(match[1], match[1])}"', str(expression)))


class NextTokenHead(nn.Module):
    """Token ids [1, S] of the next positions, positions [1, S] and features [1, S, H] -> logits [1, S, vocab] and the
    layer's own features [1, S, H], behind its norm."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        hidden = model.config.get_text_config().hidden_size
        self.base = model
        self.enorm, self.hnorm = (deepcopy(model.get_decoder().norm) for _ in range(2))
        with without_storage():
            self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, given_features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.enorm(self.base.get_input_embeddings()(input_ids))
        hidden = self.eh_proj(torch.cat([embedded, self.hnorm(given_features)], dim=-1))
        decoder = self.base.get_decoder()
        normed = decoder(inputs_embeds=hidden, position_ids=position_ids, use_cache=False).last_hidden_state
        return self.base.get_output_embeddings()(normed), normed


def open_own_layer(
    checkpoint: Checkpoint, model: PreTrainedModel, arithmetic: str, dtype: str, max_seq_len: int
) -> DraftHeads:
    """Returns the heads that the checkpoint of `model` has itself.

    Raises UnsupportedModelError for one without such a layer, or with one in another form, and CheckpointError for
    missing or mis-shaped weights.
    """
    count = model.config.get_text_config().num_hidden_layers
    view = LayerView(checkpoint, count)
    base = load_model(checkpoint, arithmetic, further_layers=1)
    decoder = base.get_decoder()
    decoder.layers = nn.ModuleList([decoder.layers[count]])
    base.config.get_text_config().num_hidden_layers = 1
    fix_longrope(base, max_seq_len)
    fix_dynamic_rope(base, max_seq_len)
    fix_bias_length(base, max_seq_len, max_seq_len)
    make_experts_opaque(base)
    make_other_experts_opaque(base)
    fix_indexers(base, max_seq_len)
    found = find_weights(base, view).expressions
    wide = [found[name] for name in wide_matrices(base, dtype) if name in found]
    head = NextTokenHead(base)
    weights: dict[str, WeightExpr] = {f"base.{name}": view.own_names(each) for name, each in found.items()}
    weights |= {name: Ref(view.layer + name) for name in _OWN}
    checkpoint.require({view.layer + name: tuple(head.get_parameter(name).shape) for name in _OWN})
    return DraftHeads(
        kind=OWN_HEADS,
        width=model.config.get_text_config().hidden_size,
        points=[Point(model.get_decoder().norm, True)],
        features=Last(),
        head=head.eval(),
        feature_weights={},
        head_weights=weights,
        draft_tokens=None,
        wide=sorted({name for each in wide for name in view.own_names(each).refs()}),
    )
