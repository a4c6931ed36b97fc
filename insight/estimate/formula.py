"""Counts what a model costs by the usual shape of a decoder or of a vision transformer, from its config alone.

It is for models that this project does not build, and parts of models that it leaves out. It counts matrices, caches
and attention, and no vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.weight_formats import LANES, QuantizeSpec, WeightFormat
from tensorwright.errors import CheckpointError
from tensorwright.insight.estimate.costs import CacheGroup, StepMemory, Work

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""The words for the config of the text part inside that of a larger model."""
UNGATED = ("relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu")
"""Activations of MLPs with two matrices. Those of other activations have three."""
_WORDS = {
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
}
_BLOCK = 32
_MOST_LAYERS = 10_000
_UNSAID_POSITIONS = 1 << 20


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder. mlp: the width of a dense MLP. experts, taken, expert_width, shared: of a mixture, 0
    without one; shared is the width of what every token takes. latent: the elements of a position of the cache, where
    it holds latents and not K and V of each head; 0 otherwise. says_positions:
    whether the config gives max_positions."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    mlp: int
    gated: bool
    tied: bool
    max_positions: int
    experts: int = 0
    taken: int = 0
    expert_width: int = 0
    shared: int = 0
    latent: int = 0
    says_positions: bool = True

    @property
    def attention_weights(self) -> int:
        """The elements of the matrices of a layer's attention."""
        return self.width * self.head_dim * 2 * (self.heads + self.kv_heads)

    @property
    def matrices_of_mlp(self) -> int:
        return 3 if self.gated else 2

    @property
    def parameters(self) -> int:
        """All elements of all matrices."""
        mlp = self.matrices_of_mlp * self.width * (self.shared + self.experts * self.expert_width or self.mlp)
        router = self.width * self.experts
        tables = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * (self.attention_weights + mlp + router) + tables


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config of the text part, or the config itself if there is none."""
    return next((config[key] for key in TEXT_PARTS if isinstance(config.get(key), dict)), config)


def read_shape(config: Mapping[str, Any], file: str) -> DecoderShape:
    """Returns the shape that a config describes. Raises CheckpointError that names what it lacks."""
    text = text_part(config)
    width, layers, heads, vocabulary = (_number(text, words, file) for words in _WORDS.values())
    head_dim = _optional(text, ("head_dim",), file) or max(1, width // heads)
    kv_heads = _optional(text, ("num_key_value_heads", "num_kv_heads"), file) or (
        1 if text.get("multi_query") else heads
    )
    if (said := text.get("num_key_value_heads")) == 0 or heads % kv_heads:
        shared = 0 if said == 0 else kv_heads
        raise CheckpointError(f"{file}: {heads} heads cannot share {shared} heads of K and V; correct the config")
    if layers > _MOST_LAYERS:
        raise CheckpointError(f"{file}: {layers} layers are more than the {_MOST_LAYERS} that are counted")
    mlp = _optional(text, ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), file) or 4 * width
    experts = _optional(text, ("num_local_experts", "num_experts", "n_routed_experts"), file) or 0
    expert_width = (_optional(text, ("moe_intermediate_size",), file) or mlp) if experts else 0
    latent = 0
    if rank := _optional(text, ("kv_lora_rank",), file):
        latent = rank + (_optional(text, ("qk_rope_head_dim",), file) or 0)
    activation = next(
        (text[key] for key in ("hidden_act", "activation_function", "hidden_activation") if key in text), ""
    )
    positions = _optional(text, ("max_position_embeddings", "n_positions", "max_seq_len"), file)
    taken = _optional(text, ("num_experts_per_tok", "top_k_experts"), file) or (1 if experts else 0)
    if experts and taken > experts:
        raise CheckpointError(f"{file}: a token cannot take {taken} of {experts} experts; correct the config")
    return DecoderShape(
        width, layers, heads, kv_heads, head_dim, vocabulary, mlp,
        gated=activation not in UNGATED,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        max_positions=positions or _UNSAID_POSITIONS,
        experts=experts,
        taken=taken if experts else 0,
        expert_width=expert_width,
        shared=(_optional(text, ("n_shared_experts",), file) or 0) * expert_width,
        latent=latent,
        says_positions=bool(positions),
    )  # fmt: skip


class FormulaCosts:
    """The costs of a decoder of this shape, with weights in `spec`'s formats and else in `dtype`."""

    block_size = _BLOCK
    state_bytes = 0

    def __init__(self, shape: DecoderShape, dtype: str, spec: QuantizeSpec | None, cache_bits: float | None = None):
        self.shape, self.dtype = shape, dtype
        formats = (None, None, None) if spec is None else (spec.linears, spec.embedding, spec.lm_head)
        self._layers, self._embedding, self._head = (f if isinstance(f, WeightFormat) else None for f in formats)
        self.max_seq_len = shape.max_positions
        elements = shape.latent or 2 * shape.kv_heads * shape.head_dim
        self._position_bytes = elements * (cache_bits or ITEM_BYTES[dtype] * 8) / 8
        self.groups: tuple[CacheGroup, ...] = (CacheGroup(round(_BLOCK * shape.layers * self._position_bytes)),)
        in_layers = shape.layers * self._bytes(self._layer_elements(every_expert=True), self._layers)
        table = shape.vocabulary * shape.width
        head = self._bytes(table, self._head)
        one_table = shape.tied and self._embedding == self._head
        self.weights_bytes = round(in_layers + head + (0 if one_table else self._bytes(table, self._embedding)))

    def step(self, sequences: Sequence[tuple[int, int]], rows: int) -> list[Work]:
        shape, tokens = self.shape, sum(count for count, _ in sequences)
        arithmetic = "int8" if self._layers is not None else self.dtype
        taken = self._experts_read(tokens)
        element_bytes = ITEM_BYTES[self.dtype]
        weights = self._bytes(self._layer_elements(every_expert=False, experts=taken), self._layers)
        active = self._layer_elements(every_expert=False, experts=shape.taken)
        passes = 4 * tokens * shape.width * element_bytes  # what goes in and out of a layer's products, about
        product = Work("matmul", "layers", arithmetic, weights + passes, 2.0 * tokens * active, weights)
        seen = sum(count * max(context - count / 2, 1) for count, context in sequences)
        cached = sum(context for _, context in sequences) * self._position_bytes
        attention = Work("paged_attention", "layers", self.dtype, cached, 4.0 * seen * shape.heads * shape.head_dim)
        table = self._bytes(shape.vocabulary * shape.width, self._head) if rows else 0.0
        head = Work(
            "matmul", "lm_head", "int8" if self._head is not None else self.dtype, table + 4 * rows * shape.vocabulary,
            2.0 * rows * shape.vocabulary * shape.width, table,
        )  # fmt: skip
        return [product, attention] * shape.layers + [head]

    def memory(self, tokens: int, rows: int, sequences: int, threads: int) -> StepMemory:
        """Counts three rows of the width and two of the MLP for each token, and the logits."""
        widest = max(self.shape.mlp, self.shape.taken * self.shape.expert_width + self.shape.shared)
        return StepMemory(4 * tokens * (3 * self.shape.width + 2 * widest) + 4 * rows * self.shape.vocabulary, 0)

    def _experts_read(self, tokens: int) -> float:
        experts, taken = self.shape.experts, self.shape.taken
        return experts * (1 - (1 - taken / experts) ** tokens) if experts else 0.0

    def _layer_elements(self, *, every_expert: bool, experts: float = 0.0) -> float:
        shape = self.shape
        if not shape.experts:
            return shape.attention_weights + shape.matrices_of_mlp * shape.width * shape.mlp
        read = shape.experts if every_expert else experts
        mixture = shape.matrices_of_mlp * shape.width * (shape.shared + read * shape.expert_width)
        return shape.attention_weights + mixture + shape.width * shape.experts

    def _bytes(self, elements: float, fmt: WeightFormat | None) -> float:
        """Returns the bytes of so many elements of a matrix; the rows of a format are as long as the model's width."""
        if fmt is None:
            return elements * ITEM_BYTES[self.dtype]
        columns = self.shape.width
        return elements * fmt.panel_bytes(columns) / (LANES * columns)


@dataclass(frozen=True)
class VisionTower:
    """A vision transformer that reads images of one size. tokens: the patches that it computes for an image, and their
    summary. passed_on: the tokens of text that become of an image."""

    kind: str
    width: int
    layers: int
    heads: int
    mlp: int
    image_size: int
    patch_size: int
    channels: int
    projector: int
    passed_on: int
    gated: bool = False

    @property
    def tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2 + 1

    @property
    def parameters(self) -> int:
        """The elements of all matrices, and of the table of positions."""
        layer = 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.mlp
        patches = self.channels * self.patch_size**2 * self.width + self.tokens * self.width
        return self.layers * layer + patches + self.projector

    def work(self, images: int, dtype: str) -> list[Work]:
        """Returns what the tower does for so many images, in one step."""
        rows, element = images * self.tokens, ITEM_BYTES[dtype]
        matrices = 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.mlp
        product = Work(
            "matmul", "vision", dtype, (matrices + 10 * rows * self.width) * element, 2.0 * rows * matrices,
            matrices * element,
        )  # fmt: skip
        attention = Work(
            "vision_attention", "vision", dtype, 4 * rows * self.width * element, 4.0 * rows * self.tokens * self.width
        )
        patch = self.channels * self.patch_size**2 * self.width
        ends = Work(
            "matmul", "vision", dtype, (patch + self.projector) * element,
            2.0 * rows * patch + 2.0 * images * self.passed_on * self.projector, (patch + self.projector) * element,
        )  # fmt: skip
        return [product, attention] * self.layers + [ends]


def read_vision(config: Mapping[str, Any], file: str) -> VisionTower | None:
    """Returns the vision tower that a config describes, None if it has none, or one for images
    of any size. Raises CheckpointError for sizes that are not said in the usual words."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return None
    where = f"{file}: vision_config"
    width = _number(vision, ("hidden_size", "embed_dim", "width"), where)
    layers = _number(vision, ("num_hidden_layers", "depth", "layers"), where)
    heads = _number(vision, ("num_attention_heads", "num_heads"), where)
    if vision.get("image_size") is None or vision.get("patch_size") is None:
        return None  # a tower for images of any size
    mlp = _optional(vision, ("intermediate_size",), where) or round(width * _ratio(vision, "mlp_ratio", 4.0, where))
    image, patch = (_side(vision, key, where) for key in ("image_size", "patch_size"))
    shrink = _ratio(config, "downsample_ratio", 1.0, file)
    text = _number(text_part(config), _WORDS["width"], file)
    gathered = round(width / shrink**2)
    # An image's patches are gathered and go through two products to the width of the text.
    return VisionTower(
        str(vision.get("model_type", "vision")), width, layers, heads, mlp, image, patch,
        _optional(vision, ("num_channels", "in_chans"), where) or 3, gathered * text + text * text,
        round((image // patch) ** 2 * shrink**2),
    )  # fmt: skip


def _ratio(config: Mapping[str, Any], key: str, default: float, file: str) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1000:
        raise CheckpointError(
            f"{file}: {key} must be a number above 0 and below 1000, not {value!r}; correct the config"
        )
    return float(value)


def _side(config: Mapping[str, Any], key: str, file: str) -> int:
    value = config.get(key)
    return _number({key: value[0] if isinstance(value, list) and value else value}, (key,), file)


def _optional(config: Mapping[str, Any], words: Sequence[str], file: str) -> int | None:
    """Returns the number under the first of `words` that the config has; None without one."""
    key = next((word for word in words if config.get(word) is not None), None)
    if key is None:
        return None
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise CheckpointError(f"{file}: {key} must be a whole number below 2^31, not {value!r}; correct the config")
    return value


def _number(config: Mapping[str, Any], words: Sequence[str], file: str) -> int:
    value = _optional(config, words, file)
    if not value:
        raise CheckpointError(f"{file}: has no {words[0]} above 0 that says its shape; give the config of a decoder")
    return value
