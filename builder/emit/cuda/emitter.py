"""Turns a graph into calls of target cuda, node after node, by handlers (handlers.py) that it is given.

A is the activation type. Every activation is A, but rotary tables, and what the logits are made of, which are float32.
A handler gets the emitter and a node, adds calls, and returns the tensors of the node's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tensorwright.builder.emit.cuda.addresses import METADATA, PAGES, PAGES_OF_A_LAYER, SLOT, STATES, Address
from tensorwright.builder.emit.cuda.calls import Call, LaunchModule, OpCall, ProductCall
from tensorwright.builder.emit.cuda.plan_file import ROW_KINDS, variable_names
from tensorwright.builder.emit.cuda.sizes import Expressions, Size, Variable
from tensorwright.builder.emit.cuda.slots import Buffer
from tensorwright.builder.emit.cuda.weights_file import WeightsFile
from tensorwright.builder.emit.onnx.plugin_io import groups_of
from tensorwright.builder.emit.onnx.plugin_weights import PluginWeights
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.kv_cache import SCALED_BYTES, page_dtype
from tensorwright.errors import KernelError, LoweringError
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.graph import SOURCES, Graph, Node, Value
from tensorwright.ir.ops import ELEMENTWISE, kind_of
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.rewriting.elementwise_trees import Tree, Trees
from tensorwright.plugins.draw_tokens.op import FIELDS
from tensorwright.plugins.gpu.launch import MAX_BLOCKS, DenseProduct, Tensor, ceil_div

STEP_METADATA = ("token_ids", "positions", "seq_starts", "context_lens", "logit_rows")
"""The metadata of a step, by number. Behind these are the slots of each cache group, then their block tables, then how
tokens are drawn, then, where layers are recurrent, the slots of states, and last, where there are heads, the slots of
the positions behind the rows of logits."""
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
        self.work_lists: dict[tuple[Any, ...], Tensor] = {}
        """The lists of decodes' work, by what decides them."""
        self._products: dict[Value, int] = {}
        """The number of the call of each value that is a product."""
        self.users = graph.users()
        self.wide = self._wide_values()
        self._trees = Trees(graph, taken=set())
        self._inputs()

    def run(self, nodes: Iterable[Node], handlers: Handlers, of_kinds: Handlers, of_tree: TreeHandler) -> None:
        """Adds the calls of nodes, after those that they read from. handlers: by the name of an op; of_kinds: by the
        kind that its record says; of_tree: for a tree of ops on each element. Raises LoweringError for an op without a
        kernel."""
        for node in nodes:
            if node.op in SOURCES or id(node) in self._trees.inside:
                continue
            handler = handlers.get(node.op) or of_kinds.get(kind_of(node.op) or "")
            if id(node) in self._trees.roots:
                results = of_tree(self, node, self._trees.roots[id(node)])
            elif handler is not None:
                results = handler(self, node)
            else:
                raise self.refusal(node, f"{node.op} has no kernel for target cuda")
            self.tensors |= {v: t for v, t in zip(node.outputs, results, strict=True) if t is not None}

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
        self._products[node.output] = len(self.calls)
        self.calls.append(ProductCall(self.text(node), DenseProduct(x, w, y, bias)))

    def sum_in_products(self, values: Sequence[Value], dtype: str) -> Tensor | None:
        """Returns the sum of computed values, of a type, if products can add it up: all of the values but one are
        products that nothing else reads, and each adds the sum of those before it. Returns None if they cannot.

        The sum has the memory of the last product. It is rounded once for each product, when that is stored: once less
        than where a product is stored first, and a kernel adds it.
        """
        products = sorted((v for v in values if self._may_add(v)), key=lambda v: self._products[v])
        others = [v for v in values if v not in products] or [products.pop(0)]
        if len(others) > 1 or len(values) < 2:
            return None
        total = self.activation(others[0], "residual")
        tensors = [total, *(self.tensors[v] for v in products)]
        alike = {(tensor.dtype, tensor.shape) for tensor in tensors}
        if alike != {(dtype, total.shape)} or self._written(total) >= self._products[products[0]]:
            return None
        for value in products:
            at = self._products[value]
            call = self.calls[at]
            assert isinstance(call, ProductCall)
            added = replace(call.product, residual=total)
            self.calls[at], total = replace(call, product=added), call.product.y
        return total

    def _may_add(self, value: Value) -> bool:
        """Says whether a value is a product without a residual that only one operand of one node reads."""
        if value not in self._products or not self.only_use(value):
            return False
        call = self.calls[self._products[value]]
        return isinstance(call, ProductCall) and call.product.residual is None

    def _written(self, tensor: Tensor) -> int:
        """Returns the number of the last call so far that writes a tensor's memory, -1 if none does."""
        written = -1
        for number, call in enumerate(self.calls):
            results = call.outputs.values() if isinstance(call, OpCall) else (call.product.y,)
            if any(result.address == tensor.address for result in results):
                written = number
        return written

    def text(self, node: Node) -> str:
        """Returns the words of a node for messages."""
        return f"{node.scope} {node.op}".strip()

    def only_use(self, value: Value) -> bool:
        """Says whether one operand of one node reads a computed value, so that a result may have its memory."""
        readers = self.users.get(value, [])
        computed = value.node is not None and value.node.op not in SOURCES and value not in self.graph.outputs
        return computed and len(readers) == 1 and readers[0].inputs.count(value) == 1

    def pages(self, layer: int) -> dict[str, Tensor]:
        """Returns the page tensors of a layer by name, those of `page_kinds`."""
        about = self.graph.facts.kv_layers[layer]
        shape = (self.sizes[f"blocks.{about.group}"], about.kv_heads, self.graph.facts.block_size, about.head_dim)
        kinds = page_kinds(about, self.dtype)
        found = {}
        for place, (name, dtype) in enumerate(kinds):
            address: Any = Address(PAGES, layer * PAGES_OF_A_LAYER + place)
            found[name] = Tensor.dense(name, address, shape if name.endswith("pages") else shape[:3], dtype)
        return found

    def state(self, layer: int) -> Tensor:
        """Returns the state of a recurrent layer in the first slot, float32."""
        address: Any = Address(STATES, layer)
        numbers = self.graph.facts.state_layers[layer].bytes // ITEM_BYTES["float32"]
        return Tensor.dense("states", address, (numbers,), "float32")

    @property
    def slot_numbers(self) -> int:
        """The float32 numbers from the states of one slot to those of the next."""
        return sum(layer.bytes for layer in self.graph.facts.state_layers) // ITEM_BYTES["float32"]

    def metadata(self, name: str, group: int = 0) -> Tensor:
        """Returns a metadata tensor: one of STEP_METADATA, slots or block_tables of a cache group, draws, state_slots,
        or next_slots, which a graph with heads has."""
        tokens, rows, seqs = (self.sizes[kind] for kind in ROW_KINDS)
        shapes: dict[str, tuple[Any, ...]] = {
            "token_ids": (tokens,), "positions": (tokens,), "seq_starts": (seqs + 1,), "context_lens": (seqs,),
            "logit_rows": (rows,), "slots": (tokens,), "draws": (rows, len(FIELDS)), "state_slots": (seqs,),
            "next_slots": (rows,),
        }  # fmt: skip
        if name == "block_tables":
            shapes[name] = (seqs, self.sizes[f"max_blocks.{group}"])
        behind, groups = len(STEP_METADATA), len(self.groups)
        last = behind + 2 * groups
        places = {
            "slots": behind + group, "block_tables": behind + groups + group, "draws": last, "state_slots": last + 1,
            "next_slots": last + 1,
        }  # fmt: skip
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
            if value.name in STEP_METADATA:
                self.tensors[value] = self.metadata(value.name)

    def _largest(self, tensor: Tensor) -> tuple[int, ...]:
        sizes: tuple[Any, ...] = tensor.shape
        return tuple(self.expressions.bounds_of(size)[1] if isinstance(size, Size) else size for size in sizes)

    def _wide_values(self) -> set[Value]:
        """Returns the values that only ops on each element lie between and the logits: they are float32. So are those
        of heads, the third output."""
        waiting = [*self.graph.outputs[:1], *self.graph.outputs[2:3]]
        found = set(waiting)
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


def page_kinds(layer: KvLayer, activations: str) -> list[tuple[str, str]]:
    """Returns the name and type of each page tensor of a layer: k_pages, v_pages unless V is a part of K, and for
    SCALED_BYTES k_scales and v_scales."""
    dtype = layer.dtype_or(activations)
    if layer.v_dim:
        return [("k_pages", dtype)]
    pages = [("k_pages", page_dtype(dtype)), ("v_pages", page_dtype(dtype))]
    return pages + [("k_scales", "float32"), ("v_scales", "float32")] * (dtype in SCALED_BYTES)
