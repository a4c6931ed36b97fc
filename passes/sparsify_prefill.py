"""sparsify_prefill: paged_attention(q, cache, ...) -> paged_attention(q, cache, ..., prompt_lens){sparse_prefill = N}

The fact "sparse_prefill" N asks for it; without it, every query sees all positions before it. A block of a prompt's
queries then sees at most N positions: the first block of keys, the block before its own, its own, and of the others
those that its queries weigh most (plugins/paged_attention/choice.py). What is behind the prompt's whole blocks sees
everything: the last tokens of most prompts, and the answer. What a row sees is a function of the block's queries, the
keys before them and the length of the prompt, so a row's bits depend on nothing else, as long as no chunk ends within a
block.
"""

from __future__ import annotations

from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir.facts import Facts
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.verify import PROMPT_INPUTS

(PROMPTS,) = PROMPT_INPUTS
AT = 7
"""The place of prompt_lens among the operands of paged_attention."""


def sparsify_prefill(graph: Graph) -> int:
    """Returns how many nodes of attention choose what they see. Raises InvalidOptionError for a number of positions
    that hides nothing, and UnsupportedModelError for a model whose attention cannot choose."""
    facts = graph.facts
    budget = facts.sparse_prefill
    if budget == 0:
        return 0
    nodes = graph.find("paged_attention")
    if fault := _fault(facts, nodes):
        raise UnsupportedModelError(
            f"sparse_prefill is for models all of whose layers attend to all positions, with keys of each head's own, "
            f"and {facts.model_type} has {fault}; leave it out"
        )
    if budget + facts.block_size > facts.max_seq_len:
        raise InvalidOptionError(
            f"sparse_prefill must be at most max_seq_len less {facts.block_size}, "
            f"{facts.max_seq_len - facts.block_size}, not {budget}: it would hide nothing; say a smaller one, or leave "
            "it out"
        )
    kind = PROMPT_INPUTS[PROMPTS]
    prompts = graph.add("input", (), {}, [kind], names=[PROMPTS], before=nodes[0]).output
    for node in nodes:
        node.inputs = [*node.inputs, *[None] * (AT - len(node.inputs)), prompts]
        node.attrs = {**node.attrs, "sparse_prefill": budget}
    return len(nodes)


def see_all(graph: Graph) -> None:
    """Undoes sparsify_prefill: every query sees all positions again."""
    for node in graph.find("paged_attention"):
        if "sparse_prefill" not in node.attrs:
            continue
        kept = node.inputs[:AT]
        while kept[-1] is None:
            kept.pop()
        node.inputs = kept
        node.attrs = {name: value for name, value in node.attrs.items() if name != "sparse_prefill"}
    graph.nodes = [node for node in graph.nodes if node.op != "input" or node.output.name != PROMPTS]


def _fault(facts: Facts, nodes: list[Node]) -> str:
    """Returns what of a model keeps its prompts from being sparse; "" if nothing does."""
    if facts.state_layers:
        return "recurrent layers, whose states hold all positions"
    if not nodes:
        return "no attention"
    if any(layer.v_dim for layer in facts.kv_layers):
        return "latent rows, which all heads share"
    if any(layer.window for layer in facts.kv_layers):
        return "layers with a window of their own"
    if any(node.optional(6) is not None for node in nodes):
        return "scores that fall with distance (ALiBi)"
    return ""
