"""Makes the plan of one SM: traces every call into a tree of launches, and compiles the kernels that were met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tensorwright.builder.emit.cuda.addresses import ALIGNMENT, SLOT, WORKSPACE, Address
from tensorwright.builder.emit.cuda.calls import Call, OpCall, ProductCall, address_of
from tensorwright.builder.emit.cuda.plan_file import (
    ABSENT,
    FLOAT,
    INTEGER,
    Argument,
    Instruction,
    PlannedLaunch,
    Product,
)
from tensorwright.builder.emit.cuda.sizes import Expressions
from tensorwright.builder.emit.cuda.trace_launches import Leaf, Node, trace
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError, LoweringError
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.gpu.launch import DenseProduct, KernelSpec, Launch, Tensor

OPERAND = -1
"""The kind of an address in a trace that calls of the same form share: the number is that of the memory among the
call's own."""
WORKSPACE_DTYPE = "float32"


class Planner:
    """The instructions of one SM. slots: the slot of each buffer."""

    def __init__(self, expressions: Expressions, slots: tuple[int, ...], sm: int):
        self.expressions, self.slots, self.sm = expressions, slots, sm
        self.specs: dict[KernelSpec, int] = {}
        """The number of each kernel that is started, in the order of their first start."""
        self._traces: dict[str, tuple[Node, ...]] = {}

    def instruction(self, call: Call) -> Instruction:
        """Returns what the plan says of a call. Raises LoweringError for one that the operation's kernels refuse."""
        if isinstance(call, ProductCall):
            product = self._product(call.product)
            own = tuple(self._in_slot(arg) for arg in product.args)
            return Instruction(call.text, (Leaf((replace(product, args=own),)),))
        memories, shared = _with_own_addresses(call)
        key = repr((call.module, sorted(call.attrs.items()), shared.inputs, shared.outputs))
        if key not in self._traces:
            try:
                self._traces[key] = trace(self.expressions, lambda: self._launches(shared))
            except KernelError as error:
                raise LoweringError(f"{call.text}: {error}; build with target cpu") from error
        return Instruction(call.text, tuple(self._placed(node, memories) for node in self._traces[key]))

    def compiled(self, advance: Callable[[int, int], None]) -> tuple[CompiledKernel, ...]:
        """Compiles the kernels, by number. Raises KernelError."""
        made = []
        for spec in self.specs:
            made.append(compile_kernel(spec, self.sm))
            advance(len(made), len(self.specs))
        return tuple(made)

    def _launches(self, call: OpCall) -> tuple[PlannedLaunch | Product, ...]:
        workspace = None
        if call.workspace:
            address: Any = Address(WORKSPACE)
            count = call.workspace // ITEM_BYTES[WORKSPACE_DTYPE]
            workspace = Tensor.dense("workspace", address, (count,), WORKSPACE_DTYPE)
        dtypes = {name: tensor.dtype for name, tensor in {**call.inputs, **call.outputs}.items()}
        known = {(spec.kernel, spec.variant): spec for spec in call.module.kernels(call.attrs, dtypes, self.sm)}
        made = call.module.launches(call.attrs, call.inputs, call.outputs, workspace, self.sm)
        return tuple(self._product(one) if isinstance(one, DenseProduct) else self._planned(one, known) for one in made)

    def _planned(self, launch: Launch, known: Mapping[tuple[str, str], KernelSpec]) -> PlannedLaunch:
        spec = known.get((launch.kernel, launch.variant))
        if spec is None:
            raise LoweringError(f"{launch.kernel} is started in a form that its launch.py does not list in kernels()")
        x, y, z = (self.expressions.number_of(size) for size in launch.grid)
        kinds = [kind for _, kind in spec.signature]
        args = tuple(self._argument(kind, value) for kind, value in zip(kinds, launch.args, strict=True))
        return PlannedLaunch(self.specs.setdefault(spec, len(self.specs)), (x, y, z), args)

    def _argument(self, kind: str, value: Any) -> Argument:
        if kind.startswith("*"):
            address = address_of(value)
            return Argument(address.kind, address.number, float(address.offset))
        return Argument(FLOAT, 0, value) if kind == "fp32" else Argument(INTEGER, self.expressions.number_of(value))

    def _placed(self, node: Node, memories: list[Address]) -> Node:
        """Returns a node with the memory of one call in place of the numbers of a shared trace."""
        if not isinstance(node, Leaf):
            return node
        return Leaf(
            tuple(replace(one, args=tuple(self._at(arg, memories) for arg in one.args)) for one in node.launches)
        )

    def _at(self, arg: Argument, memories: list[Address]) -> Argument:
        if arg.kind != OPERAND:
            return arg
        found = memories[arg.a]
        return self._in_slot(Argument(found.kind, found.number, arg.b))

    def _in_slot(self, arg: Argument) -> Argument:
        """Returns an argument with the slot of a buffer in place of the buffer."""
        return replace(arg, a=self.slots[arg.a]) if arg.kind == SLOT else arg

    def _product(self, product: DenseProduct) -> Product:
        n, k = product.w.shape
        m = self.expressions.number_of(product.y.shape[0])
        operands = (product.x, product.w, product.bias, product.residual, product.y)
        args = tuple(Argument(ABSENT) if tensor is None else self._argument("*", tensor) for tensor in operands)
        return Product(m, n, k, product.y.strides[0], product.w.dtype, product.y.dtype, args)


def workspace_bytes(calls: list[Call]) -> int:
    """Returns the bytes of the workspace that all calls share, one after the other."""
    most = max((call.workspace for call in calls if isinstance(call, OpCall)), default=0)
    return -(-most // ALIGNMENT) * ALIGNMENT


def _with_own_addresses(call: OpCall) -> tuple[list[Address], OpCall]:
    """Returns the memories of a call, and the call with their numbers in the addresses, so that calls which differ only
    in memory are alike."""
    memories: list[Address] = []

    def own(tensor: Tensor) -> Tensor:
        address = address_of(tensor)
        base = replace(address, offset=0)
        if base not in memories:
            memories.append(base)
        moved: Any = Address(OPERAND, memories.index(base), address.offset)
        return replace(tensor, address=moved)

    inputs = {name: own(tensor) for name, tensor in call.inputs.items()}
    outputs = {name: own(tensor) for name, tensor in call.outputs.items()}
    return memories, replace(call, inputs=inputs, outputs=outputs)
