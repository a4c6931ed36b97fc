"""lower_to_cpu:  the cached graph  ->  one node per instruction of the CPU plan, with final types

A is the engine's type (float32 or bfloat16): matmul inputs, q, the KV cache, matmul weights and the embedding table are
A, everything else is float32, and so are matrices that the family keeps so (the fact "wide"), with the rows that their
linears read.  These are folded if the inner value has no other user:

    gate(x W^T + b)         ->  matmul with a gated epilogue (weight layout panels_gated)
    (x W^T + b) + residual  ->  matmul with a residual
    embedding * number      ->  embedding with a scale

Each tree of ops that only compute element by element becomes one instruction (elementwise_trees.py). A matmul's input
may have another reader that needs float32, or a kernel that writes only float32: then the program "x0" rounds it to A.

Operands are in the order [x, w, bias?, residual?] for matmul and layer_norm, [x, w, residual?] for rms_norm. An
absent operand is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.engine_format.weight_layouts import PANELS, RAW, WeightLayout, gated
from tensorwright.errors import LoweringError, UnsupportedModelError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.graph import SOURCES, STORED
from tensorwright.ir.ops import find_spec, instructions, kind_of, op_names
from tensorwright.ir.records import CACHE, MAX_INS, SHARED, Instruction, Op, Operand
from tensorwright.ir.verify import FEATURES
from tensorwright.passes.rewriting.elementwise_trees import Trees, number_of
from tensorwright.passes.rewriting.explain import located
from tensorwright.passes.rewriting.folded_products import (
    HEAD_PRODUCTS,
    LINEARS,
    find_folded,
    residual_adds,
    spreads_numbers,
)
from tensorwright.passes.rewriting.matcher import describe
from tensorwright.passes.rewriting.rewriter import Types, make_node
from tensorwright.plugins.experts.gate import DEFAULTS
from tensorwright.plugins.experts.op import COUNTS, PART
from tensorwright.plugins.matmul.op import EPILOGUE_NONE, EPILOGUES
from tensorwright.plugins.paged_attention.op import BUDGET, CPU_MAX_HEAD_DIM
from tensorwright.plugins.route import op as route

IDS = {"token_ids": 0, "positions": 1}
"""The operands that an embedding gathers rows by, with their numbers in plugins/embedding/kernel.h."""

EXPERTS = ("experts", "quantized_experts")


def lower_to_cpu(graph: Graph) -> int:
    """Returns the number of instructions.

    Raises LoweringError for a node without a kernel, UnsupportedModelError for heads wider than kernels take.
    """
    lowering = Lowering(graph)
    for node in graph.nodes:
        lowering.lower(node)
    graph.nodes = lowering.nodes
    graph.outputs = [lowering.moved[v] for v in graph.outputs]
    graph.stage = "lowered"
    graph.drop_dead()
    return sum(n.op not in SOURCES for n in graph.nodes)


class Lowering:
    """Rebuilds the graph in order. `moved` maps each old value to its new one."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.users = graph.users()
        self.results = set(graph.outputs)
        self.act = graph.facts.dtype
        self.wide = set(graph.facts.wide) if self.act != "float32" else set()
        self.nodes: list[Node] = []
        self.moved: dict[Value, Value] = {}
        self.weights: dict[tuple[Value, WeightLayout], Value] = {}
        self.rounded: dict[Value, Value] = {}
        self.folded = find_folded(graph, self.users)
        self.trees = Trees(graph, residual_adds(graph, self.folded))
        self.scope = ""

    def lower(self, node: Node) -> None:
        self.scope = node.scope
        if node.op in STORED or id(node) in self.folded | self.trees.inside:
            return
        rule = RULES.get(node.op) or RULES_OF_KINDS.get(kind_of(node.op))
        if rule is None and id(node) in self.trees.roots:
            rule = lower_tree
        if rule is None and instruction_of(node.op) is not None:
            rule = lower_by_record
        if rule is None:
            known = ", ".join(lowered_ops())
            raise self.refusal(node.outputs[0], f"has no kernel on target cpu; the ops with one are {known}")
        for old, new in zip(node.outputs, rule(self, node), strict=True):
            self.moved[old] = new

    def emit(self, op: str, inputs: Sequence[Value | None], kinds: Types, **attrs: Any) -> list[Value]:
        node = make_node(self.graph, op, inputs, attrs, kinds, self.scope)
        self.nodes.append(node)
        return node.outputs

    def value(self, value: Value) -> Value:
        """Returns the new value for an activation or input."""
        if value not in self.moved:
            raise self.refusal(value, "is used as an activation, but it is a weight or constant")
        return self.moved[value]

    def weight(self, value: Value, layout: WeightLayout, wide: str | None = None) -> Value:
        """Returns a weight or constant array in one layout. Each layout is stored once. RAW is flat.

        wide: the type of a matrix that is not of A.
        """
        source = value.producer
        if source.op not in STORED:
            raise self.refusal(value, "must be a weight of the checkpoint or a constant")
        dtype = "float32" if layout == RAW else wide or self.act
        if layout.kind == "panels" and dtype != "float32" and self.is_wide(value):
            raise self.refusal(value, "stays float32 in this family, and only a linear reads such a matrix")
        if (value, layout) not in self.weights:
            attrs = {**source.attrs, **({"layout": layout} if source.op == "weight" else {})}
            shape = value.shape
            if layout == RAW and value.rank > 1:
                shape = (math.prod(int(d) for d in value.shape),)
                held = "expr" if source.op == "weight" else "value"
                attrs[held] = attrs[held].reshape(shape)
            node = make_node(self.graph, source.op, (), attrs, [(dtype, shape)], source.scope, value.name)
            self.nodes.append(node)
            self.weights[value, layout] = node.output
        return self.weights[value, layout]

    def is_wide(self, value: Value) -> bool:
        """Returns whether the family keeps a matrix, or a part of a joined one, in float32."""
        source = value.producer
        return source.op == "weight" and not self.wide.isdisjoint(source.attrs["expr"].refs())

    def input_type(self, value: Value) -> str:
        """Returns A if only products read `value`, matmuls or scores, else float32 (matmul_operand then rounds it). A
        result of the graph is float32."""
        users = [] if value in self.results else self.users[value]
        return self.act if users and all(self.feeds_product(user, value) for user in users) else "float32"

    def feeds_product(self, user: Node, value: Value) -> bool:
        if user.op in ("take_columns", "split_columns"):
            return True  # Only products read what comes of it.
        ops = (*LINEARS, *EXPERTS, *HEAD_PRODUCTS, "paged_attention")
        wide = spreads_numbers(user) or (user.op == "linear" and self.is_wide(user.operand(1)))
        return user.op in ops and user.inputs[0] is value and not wide

    def matmul_operand(self, value: Value) -> Value:
        """Returns the input of a matmul in A. An instruction rounds the input if its kernel writes float32."""
        x = self.value(value)
        if x.dtype == self.act:
            return x
        if x.dtype != "float32":
            raise self.refusal(value, f"is {x.dtype}, and a product reads {self.act} or float32")
        if value not in self.rounded:
            operands = [x, None, None, None, None]
            self.rounded[value] = self.emit("elementwise", operands, [(self.act, x.shape)], program="x0")[0]
        return self.rounded[value]

    def refusal(self, value: Value, why: str) -> LoweringError:
        return LoweringError(located(self.graph, value.producer, f"lower_to_cpu: {describe(value)} {why}"))


def instruction_of(op: str) -> tuple[Op, Instruction] | None:
    """Returns the record of an op and the instruction that takes its operands and attributes unchanged; None if there
    is no such instruction."""
    spec = find_spec(op, "cached")
    if spec is None or (spec.reference is None and not spec.meets_ranks):
        return None
    instruction = instructions().get(spec.lowers_to or spec.name)
    if instruction is None or not set(instruction.attrs) <= set(spec.attrs):
        return None
    required = {operand.name for operand in instruction.operands if not operand.optional}
    return (spec, instruction) if required <= {operand.name for operand in spec.operands} else None


def lowered_ops() -> list[str]:
    """Returns the names of the ops that have a rule of their own or an instruction with their operands."""
    return [op for op in op_names("cached") if op in RULES or kind_of(op) in RULES_OF_KINDS or instruction_of(op)]


def lower_by_record(low: Lowering, node: Node) -> list[Value]:
    """Emits the instruction whose record names the same operands as the op's record."""
    records = instruction_of(node.op)
    if records is None:
        raise low.refusal(node.outputs[0], "has no instruction with the same operands")
    spec, instruction = records
    given = dict(zip((operand.name for operand in spec.operands), node.inputs, strict=False))
    operands: list[Value | None] = []
    for operand in instruction.operands:
        value = given.get(operand.name)
        if value is None:
            operands.append(None)
        else:
            operands.append(low.weight(value, operand.layout) if operand.kind == SHARED else low.value(value))
    kinds = [
        (low.input_type(old) if result.narrow else old.dtype if is_kept(result, old) else "float32", old.shape)
        for result, old in zip(instruction.results, node.outputs, strict=False)
    ]
    attrs = {k: float(node.attrs[k]) if kind == "float" else node.attrs[k] for k, kind in instruction.attrs.items()}
    return low.emit(instruction.name, operands, kinds, **attrs)


def is_kept(result: Operand, old: Value) -> bool:
    """Returns whether a result has the type that it has in the cached graph: a cache, or whole numbers."""
    return result.kind == CACHE or old.dtype == "int32"


def lower_tree(low: Lowering, node: Node) -> list[Value]:
    tree = low.trees.roots[id(node)]
    x = [low.value(v) for v in tree.x]
    w = None if tree.w is None else low.weight(tree.w, RAW)
    kind = (low.input_type(node.output), node.output.shape)
    operands = [*x, *[None] * (4 - len(x)), w]
    return low.emit("elementwise", operands, [kind], program=tree.program)


def lower_mul(low: Lowering, node: Node) -> list[Value]:
    """Lowers a scaled embedding, or else a tree that ends in this product."""
    x, factor = node.operand(0), node.operand(1)
    if x.node is not None and id(x.node) in low.folded:
        return lower_embedding(low, x.node, float(number_of(factor) or 0.0))
    if id(node) not in low.trees.roots:
        raise low.refusal(node.output, "multiplies what no kernel does")
    return lower_tree(low, node)


def lower_input(low: Lowering, node: Node) -> list[Value]:
    low.nodes.append(node)
    if node.output.name != FEATURES:
        return node.outputs
    # join_draft_heads says where the model leaves its features, and where the heads leave theirs.
    kind = ("float32", node.output.shape)
    return low.emit("draft_features", [None, node.output], [kind], logits=0, hidden=0)


def lower_embedding(low: Lowering, node: Node, factor: float = 1.0) -> list[Value]:
    table, ids = node.operand(0), node.operand(1)
    part = {"first": node.attrs.get("first", 0), "rows": int(table.shape[0]) if "first" in node.attrs else 0}
    attrs = {**format_attr(node), "ids": IDS[ids.name], **part, "scale": float(node.attrs.get("scale", 1.0)) * factor}
    wide = None if table.constant is None else "float32"  # A constant table has the numbers that the model computes.
    operands = [low.weight(table, layout_of(node, PANELS), wide), low.value(ids)]
    return low.emit(node.op, operands, [("float32", node.output.shape)], **attrs)


def format_attr(node: Node) -> dict[str, WeightFormat]:
    """Returns the format of a quantized op as an attribute; {} for other ops."""
    return {"format": node.attrs["format"]} if "format" in node.attrs else {}


def layout_of(node: Node, layout: WeightLayout) -> WeightLayout:
    """Returns `layout`, or the quantized layout that replaces it for a quantized op."""
    return layout.in_format(node.attrs.get("format"))


def lower_linear(low: Lowering, node: Node) -> list[Value]:
    return lower_matmul(low, node, node, PANELS, EPILOGUE_NONE, None)


def lower_matmul(
    low: Lowering, linear: Node, last: Node, layout: WeightLayout, epilogue: int, residual: Value | None
) -> list[Value]:
    """Emits the instruction for `linear` and what is folded into it. `last` is the node whose result it gives."""
    x, w, b = linear.operand(0), linear.operand(1), linear.optional(2)
    bias = None if b is None else low.weight(b, RAW)
    out = last.output
    kind = (low.input_type(out), out.shape)
    wide = linear.op == "linear" and low.is_wide(w)
    weight = low.weight(w, layout_of(linear, layout), "float32" if wide else None)
    rows = low.value(x) if wide else low.matmul_operand(x)
    if wide and rows.dtype != "float32":
        raise low.refusal(x, f"is {rows.dtype}, and its product with a matrix that stays float32 reads float32")
    operands = [rows, weight, bias, None if residual is None else low.value(residual)]
    op = "matmul"
    if linear.op == "quantized_linear":
        op = "weight_only_matmul" if linear.attrs["format"].keeps_activations else "quantized_matmul"
    return low.emit(op, operands, [kind], **format_attr(linear), epilogue=epilogue, n=out.shape[-1])


def lower_gate(low: Lowering, node: Node) -> list[Value]:
    x = node.operand(0)
    activation = node.attrs["activation"]
    if x.node is not None and id(x.node) in low.folded:
        return lower_matmul(low, x.node, node, gated(PANELS), EPILOGUES[activation], None)
    return lower_by_record(low, node)


def lower_take_columns(low: Lowering, node: Node) -> list[Value]:
    """Emits the columns of rows of A in another order, which products alone read."""
    operands = [low.matmul_operand(node.operand(0)), low.weight(node.operand(1), RAW)]
    return low.emit("take_columns", operands, [(low.act, node.output.shape)])


def lower_split_columns(low: Lowering, node: Node) -> list[Value]:
    """Emits the split of rows of A, whose parts are read by products alone."""
    operands = [low.matmul_operand(node.operand(0)), low.weight(node.operand(1), RAW)]
    return low.emit("split_columns", operands, [(low.act, value.shape) for value in node.outputs])


def lower_concat(low: Lowering, node: Node) -> list[Value]:
    """Emits the instruction for rows side by side, which joins at most so many at once."""
    (y,) = node.outputs
    parts = [low.value(v) for v in map(node.operand, range(len(node.inputs)))]
    if y.rank != 2 or any(v.dtype != "float32" for v in parts):
        raise low.refusal(y, "joins what is not rows of float32, and no kernel does")
    while len(parts) > 1:
        taken, parts = parts[:MAX_INS], parts[MAX_INS:]
        cols = sum(int(v.shape[1]) for v in taken)
        operands = [*taken, *[None] * (MAX_INS - len(taken))]
        parts = [*low.emit("concat", operands, [("float32", (y.shape[0], cols))]), *parts]
    return parts


def lower_slice(low: Lowering, node: Node) -> list[Value]:
    """Emits the columns that a slice keeps, as take_columns."""
    (y,), x, start = node.outputs, node.operand(0), node.attrs["start"]
    sound = y.rank == 2 and node.attrs["dim"] in (1, -1) and node.attrs["step"] == 1 and y.dtype == "float32"
    end = start + y.shape[1] if sound and isinstance(start, int) and isinstance(y.shape[1], int) else 0
    if not 0 <= start < end <= int(x.shape[1]):
        raise low.refusal(y, "takes other than neighbouring columns of rows of float32, and no kernel does")
    columns = np.arange(start, end, dtype=np.float32)
    (numbers,) = low.emit("constant", [], [("float32", columns.shape)], value=columns)
    return low.emit("take_columns", [low.value(x), numbers], [("float32", y.shape)])


def lower_add(low: Lowering, node: Node) -> list[Value]:
    a, b = node.operand(0), node.operand(1)
    for linear, residual in ((b, a), (a, b)):
        if linear.node is not None and id(linear.node) in low.folded:
            return lower_matmul(low, linear.node, node, PANELS, EPILOGUE_NONE, residual)
    tree = low.trees.roots.get(id(node))
    if tree is not None and tree.program not in ("x0 x1 add", "x0 x0 add"):
        return lower_tree(low, node)
    if a.shape != b.shape:
        raise low.refusal(node.output, "adds shapes that differ, and no kernel does")
    return low.emit("add", [low.value(a), low.value(b)], [("float32", node.output.shape)])


def lower_rotary_kv_write(low: Lowering, node: Node) -> list[Value]:
    q, cache = node.outputs
    if node.attrs["head_dim"] > CPU_MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"target cpu takes heads of at most {CPU_MAX_HEAD_DIM} dimensions, those of layer {node.attrs['layer']} "
            f"have {node.attrs['head_dim']}"
        )
    kinds = [(low.input_type(q), q.shape), (cache.dtype, cache.shape)]
    operands = [None if v is None else low.value(v) for v in node.inputs]
    return low.emit("rotary_kv_write", operands, kinds, **kv_attrs(node, "rotary_dim"))


def lower_head_products(low: Lowering, node: Node) -> list[Value]:
    """Emits the products of heads. Numbers that are spread over columns stay float32."""
    x, w = node.operand(0), node.operand(1)
    if spreads_numbers(node):
        operands = [low.value(x), low.weight(w, PANELS, "float32")]
    else:
        operands = [low.matmul_operand(x), low.weight(w, layout_of(node, PANELS))]
    kind = (low.input_type(node.output), node.output.shape)
    return low.emit(node.op, operands, [kind], heads=int(w.shape[0]), **format_attr(node))


def lower_latent_kv_write(low: Lowering, node: Node) -> list[Value]:
    """Emits the write of a latent row. Its kernels and those of attention take latents in whole groups of 4 bytes."""
    q, cache = node.outputs
    sizes = node.attrs["head_dim"], node.attrs["v_dim"]
    if any(size % 2 for size in sizes) or sizes[0] > CPU_MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"target cpu takes latent rows of an even number of columns, at most {CPU_MAX_HEAD_DIM}, with an even "
            f"number of them normalised; those of layer {node.attrs['layer']} have {sizes[0]} and {sizes[1]}"
        )
    kinds = [(low.input_type(q), q.shape), (cache.dtype, cache.shape)]
    operands = [None if v is None else low.value(v) for v in node.inputs]
    return low.emit("latent_kv_write", operands, kinds, **kv_attrs(node))


def lower_paged_attention(low: Lowering, node: Node) -> list[Value]:
    kind = (low.input_type(node.output), node.output.shape)
    chosen = {name: node.attrs.get(name, 0) for name in (*BUDGET, "sparse_prefill")}
    numbers = {name: float(node.attrs[name]) for name in ("scale", "softcap")}
    attrs = {**kv_attrs(node), **chosen, **numbers}
    vectors = [None if v is None else low.weight(v, RAW) for v in (node.optional(5), node.optional(6))]
    prompts = None if (v := node.optional(7)) is None else low.value(v)
    operands = [*(low.value(node.operand(i)) for i in range(5)), *vectors, prompts]
    return low.emit("paged_attention", operands, [kind], **attrs)


def kv_attrs(node: Node, *more: str) -> dict[str, int]:
    return {"kv_layer": node.attrs["layer"], "heads": node.attrs["heads"], **{k: node.attrs[k] for k in more}}


def lower_layer_norm(low: Lowering, node: Node) -> list[Value]:
    """Emits layer_norm for the three ops: the norm of rows, of rows after a sum, or of runs of columns."""
    at = 2 if node.op == "add_layer_norm" else 1  # the position of the weight; the bias follows
    b = node.optional(at + 1)
    bias = None if b is None else low.weight(b, RAW)
    residual = low.value(node.operand(1)) if at == 2 else None
    operands = [low.value(node.operand(0)), low.weight(node.operand(at), RAW), bias, residual]
    y, *total = node.outputs
    attrs: dict[str, Any] = {"start": 0, "heads": 1, "width": int(y.shape[-1])}
    if node.op == "layer_norm_columns":
        attrs = {key: node.attrs[key] for key in attrs}
    attrs |= {key: float(node.attrs[key]) for key in ("eps", "weight_offset")}
    kinds = [(low.input_type(y), y.shape), *(("float32", v.shape) for v in total)]
    return low.emit("layer_norm", operands, kinds, **attrs)


def lower_route(low: Lowering, node: Node) -> list[Value]:
    """Emits a route. It has an instruction of its own if it says more than how many experts it chooses."""
    kinds = [(old.dtype, old.shape) for old in node.outputs]
    logits = low.value(node.operand(0))
    vectors = [None if v is None else low.weight(v, RAW) for v in (node.optional(1), node.optional(2))]
    if vectors == [None, None] and node.attrs.keys() <= {"k", "normalise"}:
        return low.emit("route", [logits], kinds, **node.attrs)
    return low.emit("route_by_score", [logits, *vectors], kinds, **{**route.DEFAULTS, **node.attrs})


def lower_experts(low: Lowering, node: Node) -> list[Value]:
    """Emits experts. Both products read A, as those of a dense layer do."""
    x, index, weights, up, down = (node.operand(i) for i in range(5))
    part = {name: node.attrs.get(name, 0) for name in PART}
    shared = {"experts": up.shape[0], **part, **format_attr(node)}
    if node.attrs.keys() - {"activation", "format", *COUNTS} or len(node.inputs) > 5:
        return lower_halves_of_experts(low, node, shared)
    operands = [
        low.matmul_operand(x),
        low.value(index),
        low.value(weights),
        low.weight(up, layout_of(node, gated(PANELS))),
        low.weight(down, layout_of(node, PANELS)),
    ]
    identities = node.attrs.get("identities", 0)
    attrs = {**shared, "activation": node.attrs["activation"], "identities": identities, "inner": low.act}
    return low.emit(node.op, operands, [("float32", node.output.shape)], **attrs)


def lower_halves_of_experts(low: Lowering, node: Node, shared: dict[str, Any]) -> list[Value]:
    """Emits one instruction for each product of experts with biases or with a gate that matmul does not have."""
    if node.attrs.get("identities", 0):
        raise low.refusal(node.output, "has identities beside experts with biases or a gate of their own")
    gate = {**DEFAULTS, **{k: v for k, v in node.attrs.items() if k not in ("format", *COUNTS)}}
    x, index, weights = low.matmul_operand(node.operand(0)), low.value(node.operand(1)), low.value(node.operand(2))
    up, down, up_bias, down_bias = node.operand(3), node.operand(4), node.optional(5), node.optional(6)
    scales_input = gate.pop("scales_input")
    first, second = (weights, None) if scales_input else (None, weights)
    layout = gated(PANELS) if gate["gated"] else PANELS
    biases = [None if b is None else low.weight(b, RAW) for b in (up_bias, down_bias)]
    width = int(down.shape[2]) * int(node.operand(1).shape[-1])
    (inner,) = low.emit(
        f"{node.op}_up",
        [x, index, first, low.weight(up, layout_of(node, layout)), biases[0]],
        [(low.act, (*node.output.shape[:-1], width))],
        **shared,
        **gate,
        inner=low.act,
    )
    operands = [inner, index, second, low.weight(down, layout_of(node, PANELS)), biases[1]]
    return low.emit(f"{node.op}_down", operands, [("float32", node.output.shape)], **shared)


RULES: dict[str, Callable[[Lowering, Node], list[Value]]] = {
    "input": lower_input,
    "embedding": lower_embedding,
    **dict.fromkeys(("layer_norm", "add_layer_norm", "layer_norm_columns"), lower_layer_norm),
    "linear": lower_linear,
    "quantized_linear": lower_linear,
    "quantized_embedding": lower_embedding,
    "route": lower_route,
    **dict.fromkeys(EXPERTS, lower_experts),
    "add": lower_add,
    "concat": lower_concat,
    "slice": lower_slice,
    "take_columns": lower_take_columns,
    "split_columns": lower_split_columns,
    "mul": lower_mul,
    **dict.fromkeys(HEAD_PRODUCTS, lower_head_products),
    "rotary_kv_write": lower_rotary_kv_write,
    "latent_kv_write": lower_latent_kv_write,
    "paged_attention": lower_paged_attention,
}

RULES_OF_KINDS: dict[str, Callable[[Lowering, Node], list[Value]]] = {"gate": lower_gate}
"""The rules of all ops whose record says a kind."""
