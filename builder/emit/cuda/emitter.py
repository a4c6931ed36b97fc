"""Turns a graph into calls of target cuda, node after node, by handlers (handlers.py) that it is given.

A is the activation type. Every activation is A, but rotary tables, and what the logits are made of, which are float32.
A handler gets the emitter and a node, adds calls, and returns the tensors of the node's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tensorwright.builder.emit.cuda.addresses import METADATA, PAGES, PAGES_OF_A_LAYER, SLOT, Address
from tensorwright.builder.emit.cuda.calls import Call, LaunchModule, OpCall, ProductCall
from tensorwright.builder.emit.cuda.plan_file import ROW_KINDS, variable_names
from tensorwright.builder.emit.cuda.sizes import Expressions, Size, Variable
from tensorwright.builder.emit.cuda.slots import Buffer
from tensorwright.builder.emit.cuda.weights_file import WeightsFile
from tensorwright.builder.emit.onnx.plugin_io import groups_of
from tensorwright.builder.emit.onnx.plugin_weights import PluginWeights
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError, LoweringError
from tensorwright.ir.graph import SOURCES, Graph, Node, Value
from tensorwright.ir.ops import ELEMENTWISE, kind_of
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.rewriting.elementwise_trees import Tree, Trees
from tensorwright.plugins.draw_tokens.op import FIELDS
from tensorwright.plugins.gpu.launch import MAX_BLOCKS, Tensor, ceil_div

STEP_METADATA = ("token_ids", "positions", "seq_starts", "context_lens", "logit_rows")
"""The metadata of a step, by number. Behind these are the slots of each cache group, then their block tables, and last
how tokens are drawn."""
WIDE_OPS = frozenset(("slice", "cast", "clamp"))
"""Ops beside those on each element through which logits go without a rounding."""


class CudaEmitter:
    """One graph while it becomes calls. max_step: the most tokens, rows of logits and sequences of a step."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, dtype: str, max_step: tuple[int, int, int]):
        self.graph, self.dtype, self.max_step = graph, dtype, max_step
        self.groups = groups_of(graph.facts)
        self.expressions = Expressions(self._variables())
        names = variable_names(len(self.groups))
        self.sizes: dict[str, Any] = {name: self.expressions.variable(i) for i, name in enumerate(names)}
        self.file = WeightsFile()
        self.weights = PluginWeights(self.file, checkpoint, dtype)
        self.calls: list[Call] = []
        self.buffers: list[Buffer] = []
        self.tensors: dict[Value, Tensor] = {}
        """The tensor of each computed value, and of each input."""
        self.caches: dict[Value, int] = {}
        """The layer of each kv value."""
        self.users = graph.users()
        self.wide = self._wide_values()

    def run(self, handlers: Handlers, of_kinds: Handlers, of_tree: TreeHandler) -> Tensor:
        """Reads the whole graph and returns the logits. handlers: by the name of an op; of_kinds: by the kind that its
        record says; of_tree: for a tree of ops on each element. Raises LoweringError for an op without a kernel."""
        self._inputs()
        trees = Trees(self.graph, taken=set())
        for node in self.graph.nodes:
            if node.op in SOURCES or id(node) in trees.inside:
                continue
            handler = handlers.get(node.op) or of_kinds.get(kind_of(node.op) or "")
            if id(node) in trees.roots:
                results = of_tree(self, node, trees.roots[id(node)])
            elif handler is not None:
                results = handler(self, node)
            else:
                raise self.refusal(node, f"{node.op} has no kernel for target cuda")
            self.tensors |= {v: t for v, t in zip(node.outputs, results, strict=True) if t is not None}
        (logits,) = self.graph.outputs
        return self.tensors[logits]

    # -- methods for the handlers -----------------------------------------------------------------------------------

    def refusal(self, node: Node, why: str) -> LoweringError:
        return LoweringError(f"{node.scope or 'the model'}: {why}; build with target cpu")

    def activation(self, value: Value, name: str) -> Tensor:
        """Returns the tensor of a computed value or of an input. name: that of the operand."""
        if value not in self.tensors:
            raise LoweringError(f"%{value.name} is used as an activation, but it is a weight or constant")
        return replace(self.tensors[value], name=name)

    def plain(self, value: Value, name: str, dtype: str | None = None) -> Tensor:
        """Returns a weight or constant in the checkpoint's shape, in A or another type."""
        return self.file.tensor(self.weights.plain(value, dtype), name)

    def result(self, value: Value, name: str, dtype: str | None = None) -> Tensor:
        """Returns a new dense tensor for a result, of A or another type."""
        return self.make(value.shape, name, dtype or self.dtype)

    def wide_result(self, value: Value, name: str) -> Tensor:
        """Returns a new dense tensor for a result: float32 if it leads to the logits, else of A."""
        return self.make(value.shape, name, "float32" if value in self.wide else self.dtype)

    def make(self, shape: Sequence[Any], name: str, dtype: str) -> Tensor:
        """Returns a new dense tensor. shape: as a value of the graph has it."""
        rows, columns = shape[0], [int(size) for size in shape[1:]]
        if rows not in ROW_KINDS:
            raise LoweringError(f"an activation of shape {list(shape)} has no place on target cuda")
        self.buffers.append(Buffer(rows, prod(columns) * ITEM_BYTES[dtype]))
        address: Any = Address(SLOT, len(self.buffers) - 1)
        return Tensor.dense(name, address, (self.sizes[rows], *columns), dtype)

    def call(
        self,
        node: Node,
        module: Any,
        attrs: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
    ) -> None:
        """Adds a call of a launch.py. attrs: the node's, with the sizes that kernels are compiled for."""
        largest = {name: self._largest(tensor) for name, tensor in inputs.items()}
        try:
            workspace = module.workspace_bytes(attrs, largest)
        except KernelError as error:
            raise self.refusal(node, str(error)) from error
        launch: LaunchModule = module
        self.calls.append(OpCall(self.text(node), launch, dict(attrs), dict(inputs), dict(outputs), workspace))

    def product(self, node: Node, x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor) -> None:
        """Adds a product with a stored matrix."""
        if x.dtype != w.dtype:
            raise self.refusal(node, f"a product of {x.dtype} with {w.dtype} has no form on target cuda")
        self.calls.append(ProductCall(self.text(node), x, w, bias, y))

    def text(self, node: Node) -> str:
        """Returns the words of a node for messages."""
        return f"{node.scope} {node.op}".strip()

    def only_use(self, value: Value) -> bool:
        """Says whether one operand of one node reads a computed value, so that a result may have its memory."""
        readers = self.users.get(value, [])
        computed = value.node is not None and value.node.op not in SOURCES and value not in self.graph.outputs
        return computed and len(readers) == 1 and readers[0].inputs.count(value) == 1

    def pages(self, layer: int) -> dict[str, Tensor]:
        """Returns the page tensors of a layer by name: k_pages, v_pages, and for int8 k_scales and v_scales."""
        about = self.graph.facts.kv_layers[layer]
        shape = (self.sizes[f"blocks.{about.group}"], about.kv_heads, self.graph.facts.block_size, about.head_dim)
        kinds = page_kinds(about.dtype_or(self.dtype))
        found = {}
        for place, (name, dtype) in enumerate(kinds):
            address: Any = Address(PAGES, layer * PAGES_OF_A_LAYER + place)
            found[name] = Tensor.dense(name, address, shape if name.endswith("pages") else shape[:3], dtype)
        return found

    def metadata(self, name: str, group: int = 0) -> Tensor:
        """Returns a metadata tensor: one of STEP_METADATA, slots or block_tables of a cache group, or draws."""
        tokens, rows, seqs = (self.sizes[kind] for kind in ROW_KINDS)
        shapes = {
            "token_ids": (tokens,), "positions": (tokens,), "seq_starts": (seqs + 1,), "context_lens": (seqs,),
            "logit_rows": (rows,), "slots": (tokens,), "block_tables": (seqs, self.sizes[f"max_blocks.{group}"]),
            "draws": (rows, len(FIELDS)),
        }  # fmt: skip
        groups, behind = len(self.groups), len(STEP_METADATA)
        places = {"slots": behind + group, "block_tables": behind + groups + group, "draws": behind + 2 * groups}
        number = places[name] if name in places else STEP_METADATA.index(name)
        address: Any = Address(METADATA, number)
        return Tensor.dense(name, address, shapes[name], "int32")

    # -- the parts of the class -------------------------------------------------------------------------------------

    def _variables(self) -> list[Variable]:
        facts, (tokens, rows, seqs) = self.graph.facts, self.max_step
        blocks = ceil_div(facts.max_seq_len, facts.block_size)
        names = variable_names(len(self.groups))
        highs = [tokens, rows, seqs, *[blocks] * len(self.groups), *[MAX_BLOCKS[0]] * len(self.groups)]
        return [Variable(name, int(name != "rows"), high) for name, high in zip(names, highs, strict=True)]

    def _inputs(self) -> None:
        for value in self.graph.inputs:
            if value.is_cache:
                self.caches[value] = int(value.name.removeprefix("kv_cache."))
            elif value.name in STEP_METADATA:
                self.tensors[value] = self.metadata(value.name)

    def _largest(self, tensor: Tensor) -> tuple[int, ...]:
        sizes: tuple[Any, ...] = tensor.shape
        return tuple(self.expressions.bounds_of(size)[1] if isinstance(size, Size) else size for size in sizes)

    def _wide_values(self) -> set[Value]:
        """Returns the values that only ops on each element lie between and the logits: they are float32."""
        found, waiting = set(self.graph.outputs), list(self.graph.outputs)
        while waiting:
            node = waiting.pop().producer
            if node.op not in ELEMENTWISE and node.op not in WIDE_OPS:
                continue
            for value in node.inputs:
                if value is not None and not value.is_stored and len(self.users.get(value, [])) == 1:
                    found.add(value)
                    waiting.append(value)
        return found


Handler = Callable[[CudaEmitter, Node], "list[Tensor | None]"]
Handlers = Mapping[str, Handler]
TreeHandler = Callable[[CudaEmitter, Node, Tree], "list[Tensor | None]"]


def page_kinds(dtype: str) -> list[tuple[str, str]]:
    """Returns the name and type of each page tensor of a layer, for the type of its cache."""
    pages = [("k_pages", dtype), ("v_pages", dtype)]
    return pages + [("k_scales", "float32"), ("v_scales", "float32")] * (dtype == "int8")
