"""Makes heads of a Medusa checkpoint, in the forms of the authors and of vLLM.

    authors   0.0.linear.weight, 0.0.linear.bias: head 0, block 0;  0.1.weight: its output matrix behind one block
    vLLM      blocks.0.layers.0.weight;  lm_heads.0.weight

Names may begin with medusa_head. or medusa_heads. Heads without output matrices use the model's.
"""

from __future__ import annotations

import re

from transformers import PreTrainedModel

from tensorwright.builder.trace.draft_heads import DraftHeads, Last, Point, require_same
from tensorwright.builder.trace.load_model import without_storage
from tensorwright.builder.trace.weight_names import TextWeights
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.dtypes import WEIGHTS
from tensorwright.models.heads_checkpoint import MEDUSA, HeadsCheckpoint
from tensorwright.models.medusa import MedusaHeads, read_options

_PREFIX = re.compile(r"medusa_heads?\.")
_FORMS = (
    (r"([0-9]{1,4})\.([0-9]{1,4})\.linear\.(weight|bias)", "heads.{0}.blocks.{1}.{2}"),
    (r"blocks\.([0-9]{1,4})\.layers\.([0-9]{1,4})\.(weight|bias)", "heads.{0}.blocks.{1}.{2}"),
    (r"lm_heads\.([0-9]{1,4})\.(weight)", "heads.{0}.lm_head.{1}"),
)
_OUTPUT = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\.weight")
"""The authors' output matrix of a head, which has the number behind those of the blocks."""


def open_medusa(checkpoint: HeadsCheckpoint, model: PreTrainedModel, weights: TextWeights) -> DraftHeads:
    """Returns the heads of a checkpoint for `model`, whose parameters have the expressions `weights`.

    Raises CheckpointError for heads of another model, or with missing or mis-shaped weights, and UnsupportedModelError.
    """
    options, target = read_options(checkpoint.config), model.config.get_text_config()
    for field, says, has in (
        ("hidden_size", options.hidden, target.hidden_size), ("vocab_size", options.vocab, target.vocab_size)
    ):  # fmt: skip
        require_same(checkpoint, field, has if says is None else says, has)
    if checkpoint.config.get("truncated_vocab_size") not in (None, target.vocab_size):
        raise UnsupportedModelError(f"{checkpoint.path}: Medusa heads with a truncated vocabulary are not supported")
    if checkpoint.config.get("original_lm_head"):
        raise UnsupportedModelError(f"{checkpoint.path}: Medusa heads with original_lm_head are not supported")
    stored = {ours: name for name in checkpoint.names if (ours := _our_name(name, options.blocks)) is not None}
    biased = tuple(f"heads.0.blocks.{block}.bias" in stored for block in range(options.blocks))
    with without_storage():
        heads = MedusaHeads(target.hidden_size, target.vocab_size, options.heads, biased)
    outputs = [f"heads.{head}.lm_head.weight" for head in range(options.heads)]
    shared = not any(name in stored for name in outputs)
    theirs = _output_of(model, weights) if shared else None
    shapes = {name: tuple(parameter.shape) for name, parameter in heads.named_parameters()}
    if unknown := sorted(set(checkpoint.names) - {name for ours, name in stored.items() if ours in shapes}):
        raise CheckpointError(
            f"{checkpoint.path}: {len(unknown)} tensors are no part of {options.heads} Medusa heads with "
            f"{options.blocks} blocks, such as {unknown[0]}"
        )
    own = {name: shape for name, shape in shapes.items() if not (shared and name in outputs)}
    checkpoint.require({stored.get(name, name): shape for name, shape in own.items()}, WEIGHTS)
    expressions: dict[str, WeightExpr] = {name: Ref(checkpoint.name_in_build(stored[name])) for name in own}
    if theirs is not None:
        expressions |= dict.fromkeys(outputs, theirs)
    return DraftHeads(
        kind=MEDUSA,
        width=target.hidden_size,
        points=[Point(model.get_decoder(), True)],
        features=Last(),
        head=heads.eval(),
        feature_weights={},
        head_weights=expressions,
        draft_tokens=None,
        at_once=options.heads,
    )


def _our_name(name: str, blocks: int) -> str | None:
    """Returns the name that a stored tensor has in MedusaHeads; None if it has none."""
    name = _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name
    for form, ours in _FORMS:
        if found := re.fullmatch(form, name):
            return ours.format(*found.groups())
    output = _OUTPUT.fullmatch(name)
    return f"heads.{output[1]}.lm_head.weight" if output and int(output[2]) == blocks else None


def _output_of(model: PreTrainedModel, weights: TextWeights) -> WeightExpr:
    """Returns the model's output matrix, or its embedding where both are one."""
    modules = (model.get_output_embeddings(), model.get_input_embeddings())
    names = {module: f"{path}.weight" for path, module in model.named_modules() if module in modules}
    found = (weights.expressions.get(names[module]) for module in modules if module in names)
    expression = next((each for each in found if each is not None), None)
    if expression is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no output matrix that Medusa heads could use")
    return expression
