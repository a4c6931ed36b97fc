"""Writes a plan of target cuda, cuda/sm_<SM>.plan: all that the runtime needs to start the kernels of a step.

Numbers are little-endian: u32, i64, u64, f64. text: u32 length, then bytes in UTF-8. list(T): u32 count, then the
items. The file is read strictly in sequence.

    magic "TWCUDAPL", u32 version, u64 bytes of the whole file, u32 CRC-32 (zlib's) of what follows
    u32 sm; u32 vocab_size; u32 max_seq_len; u32 block_size; u32 dtype of the activations (DTYPE_NUMBERS); u64 bytes of
        weights.bin
    u32 max_tokens; u32 max_rows; u32 max_seqs: the largest step; u64 bytes of the workspace for it
    list(group): u32 window; u32 chunked
    list(KV layer): u32 group; list(u64 bytes of one block), one for each page tensor: K, V unless it is a part of K,
        and, where there are, scales
    list(recurrent layer): u64 bytes of the state of one sequence, a multiple of 64
    list(slot): u32 kind (0 a row for each token, 1 for each row of logits, 2 for each sequence); u64 bytes of a row
    list(weight): u64 offset, a multiple of 256; u64 bytes; both of weights.bin
    list(kernel): text entry point; u32 num_warps; u32 shared_bytes; list(u32 parameter: 0 pointer, 1 i32, 2 i64,
        3 f32), with the two null pointers that every kernel takes last; text cubin
    list(expression): u32 operation (sizes.py); i64 a; i64 b: numbers of earlier expressions, but the value of a
        constant, and for a variable its number: 0 tokens, 1 rows, 2 seqs, 3 + g the columns of the block table of cache
        group g, 3 + G + g the blocks in the pool of group g, of G groups
    u32 number of the first instruction that computes features for heads, 2^32 - 1 without heads, and nothing more then;
        u32 number of the first instruction of the heads, which are the last; u32 slot of their logits, float32; u32 the
        KV layer whose one tensor holds features, a row of activations for each position of a block; u32 columns of a
        feature; u32 1 if the heads have keys and values, which are in the same cache group, else 0; u32 number of the
        first instruction that draws tokens from the heads' logits, and of the last ones, or 2^32 - 1; u32 their slot
    list(instruction): text for messages; list(node): u32 type
        0 branch: u32 condition (an expression), u32 node if it is not 0, u32 node if it is 0
        1 leaf: list(work), started in order: u32 kind
            kind 0, launch: u32 kernel; 3 x u32 grid (expressions); list(argument): u32 kind; i64 a; f64 b
            kind 1, product D = x w^T (+ bias) (+ C): u32 m (an expression); u32 n; u32 k; u32 the numbers from one row
            of D and C to the next; u32 dtype of x and w; u32 dtype of D, C and bias; five arguments, as below or of
            kind 255 for none: x [m, k], w [n, k], bias [n], C [m, n], D [m, n]. x and w are dense. With m 0 nothing is
            computed.
        2 refused: text why
        Node 0 is the root. A branch leads to later nodes.
        arguments, without the two null pointers: memory a at byte b, of kind 0 slot, 1 weight, 2 metadata (0 token_ids,
        1 positions, 2 seq_starts, 3 context_lens, 4 logit_rows, 5 + g the slots of group g, 5 + G + g its block table,
        5 + 2 G how tokens are drawn, by rows of FIELDS of plugins/draw_tokens, then, where layers are recurrent, the
        slots of states, or, where there are heads, the slots of the positions behind the rows; int32), 3 page tensor
        (256 * layer + its place), 4 workspace, 7 the state of recurrent layer a in slot 0; or 5: the integer expression
        a; or 6: the number b
    u32 slot of the logits: float32, vocab_size columns
    u32 number of the first instruction that draws tokens (plugins/draw_tokens), of which the runtime leaves out all in
        steps that draw none, and 2^32 - 1 without any; u32 slot of the tokens: int32. Those for heads follow
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TypeVar

from tensorwright.builder.emit.cuda.sizes import CONSTANT, VARIABLE
from tensorwright.builder.emit.cuda.trace_launches import Branch, Leaf, Node
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import SCRATCH

MAGIC, VERSION = b"TWCUDAPL", 3
DTYPE_NUMBERS = {"float32": 0, "bfloat16": 1, "float16": 2}
PARAMETERS = {"i32": 1, "i64": 2, "fp32": 3}
"""The number of a parameter's type; that of a pointer is 0."""
ROW_KINDS = ("tokens", "rows", "seqs")
"""What a slot has rows for, by number. These are the first variables too."""
LAUNCH, PRODUCT = 0, 1
NO_DRAWS = NO_HEADS = 2**32 - 1
BRANCH, LEAF, REFUSED = 0, 1, 2
INTEGER, FLOAT, ABSENT = 5, 6, 255
"""Kinds of arguments beside those of addresses.py."""

T = TypeVar("T")


@dataclass(frozen=True)
class Argument:
    """One argument of a launch or a product, in the terms of the file."""

    kind: int
    a: int = 0
    b: float = 0.0


@dataclass(frozen=True)
class PlannedLaunch:
    """One start of a kernel, by its number. grid: numbers of expressions."""

    kernel: int
    grid: tuple[int, int, int]
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Product:
    """One product. m: the number of an expression. stride: numbers from one row of D and C to the next. args: x, w,
    bias, C, D."""

    m: int
    n: int
    k: int
    stride: int
    dtype: str
    out_dtype: str
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Instruction:
    """What a step starts of one call: the leaves of `nodes` hold PlannedLaunch and Product."""

    text: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class KvLayerPages:
    """The cache group of a layer, and the bytes of one block of each of its page tensors."""

    group: int
    block_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Heads:
    """The part of a plan that proposes tokens: its instructions, the slot of its logits, and where features lie.

    first_feature: the first instruction that computes features. first: the first one of the heads. feature_layer: the
    number among the KV layers. feature_width: the columns of a feature. attend: whether the heads have keys and values.
    first_draw, tokens_slot: the first instruction that draws tokens from the heads' logits, and their slot.
    """

    first_feature: int
    first: int
    logits_slot: int
    feature_layer: int
    feature_width: int
    attend: bool
    first_draw: int = NO_DRAWS
    tokens_slot: int = 0


@dataclass(frozen=True)
class Plan:
    """The content of the file. max_step: tokens, rows and sequences; groups: (window, chunked); states: bytes of each
    recurrent layer's; slots: (kind, bytes of a row); weights: (offset, bytes); expressions: as `Expressions.items`;
    draws: the first instruction that draws tokens, and their slot, or None where none does. heads: None without any."""

    sm: int
    vocab_size: int
    max_seq_len: int
    block_size: int
    dtype: str
    weights_bytes: int
    max_step: tuple[int, int, int]
    workspace_bytes: int
    groups: tuple[tuple[int, bool], ...]
    layers: tuple[KvLayerPages, ...]
    slots: tuple[tuple[int, int], ...]
    weights: tuple[tuple[int, int], ...]
    kernels: tuple[CompiledKernel, ...]
    expressions: tuple[tuple[int, int, int], ...]
    instructions: tuple[Instruction, ...]
    logits_slot: int
    states: tuple[int, ...] = ()
    draws: tuple[int, int] | None = None
    heads: Heads | None = None


def to_bytes(plan: Plan) -> bytes:
    """Returns the file. It has only the expressions that something in it uses."""
    numbers = _used_expressions(plan)
    facts = (plan.sm, plan.vocab_size, plan.max_seq_len, plan.block_size, DTYPE_NUMBERS[plan.dtype])
    parts = [
        struct.pack("<5IQ", *facts, plan.weights_bytes),
        struct.pack("<3IQ", *plan.max_step, plan.workspace_bytes),
        _list(plan.groups, lambda group: struct.pack("<2I", *group)),
        _list(plan.layers, lambda one: _u32(one.group) + _list(one.block_bytes, lambda n: struct.pack("<Q", n))),
        _list(plan.states, lambda size: struct.pack("<Q", size)),
        _list(plan.slots, lambda slot: struct.pack("<IQ", *slot)),
        _list(plan.weights, lambda weight: struct.pack("<2Q", *weight)),
        _list(plan.kernels, _kernel),
        _list(numbers, lambda number: _expression(plan.expressions[number], numbers)),
        _heads(plan.heads),
        _list(plan.instructions, lambda one: _instruction(one, numbers)),
        _u32(plan.logits_slot),
        struct.pack("<2I", *(plan.draws or (NO_DRAWS, 0))),
    ]
    body = b"".join(parts)
    head = MAGIC + _u32(VERSION)
    return head + struct.pack("<QI", len(head) + 12 + len(body), zlib.crc32(body)) + body


def _used_expressions(plan: Plan) -> dict[int, int]:
    """Returns the number in the file of each expression that is used, by its number in the plan, in order."""
    waiting: list[int] = []
    for node in (node for one in plan.instructions for node in one.nodes):
        if isinstance(node, Branch):
            waiting.append(node.condition)
        elif isinstance(node, Leaf):
            for work in node.launches:
                waiting += [work.m] if isinstance(work, Product) else work.grid
                waiting += [arg.a for arg in work.args if arg.kind == INTEGER]
    used: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in used:
            used.add(number)
            op, a, b = plan.expressions[number]
            waiting += [] if op in (CONSTANT, VARIABLE) else [a, b]
    return {number: place for place, number in enumerate(sorted(used))}


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return _u32(len(data)) + data


def _list(items: Iterable[T], write: Callable[[T], bytes]) -> bytes:
    written = [write(item) for item in items]
    return _u32(len(written)) + b"".join(written)


def _kernel(kernel: CompiledKernel) -> bytes:
    types = [0 if kind.startswith("*") or kind == SCRATCH else PARAMETERS[kind] for kind in kernel.parameters]
    head = _text(kernel.name) + struct.pack("<2I", kernel.num_warps, kernel.shared_bytes)
    return head + _list(types, _u32) + _text(kernel.cubin)


def _expression(item: tuple[int, int, int], numbers: dict[int, int]) -> bytes:
    op, a, b = item
    return struct.pack("<I2q", op, *((a, b) if op in (CONSTANT, VARIABLE) else (numbers[a], numbers[b])))


def _heads(heads: Heads | None) -> bytes:
    return _u32(NO_HEADS) if heads is None else struct.pack("<8I", *astuple(heads))


def _argument(arg: Argument, numbers: dict[int, int]) -> bytes:
    return struct.pack("<Iqd", arg.kind, numbers[arg.a] if arg.kind == INTEGER else arg.a, arg.b)


def _instruction(one: Instruction, numbers: dict[int, int]) -> bytes:
    return _text(one.text) + _list(one.nodes, lambda node: _node(node, numbers))


def _node(node: Node, numbers: dict[int, int]) -> bytes:
    if isinstance(node, Branch):
        return struct.pack("<4I", BRANCH, numbers[node.condition], node.if_true, node.if_false)
    if isinstance(node, Leaf):
        return _u32(LEAF) + _list(node.launches, lambda work: _work(work, numbers))
    return _u32(REFUSED) + _text(node.why)


def _work(work: PlannedLaunch | Product, numbers: dict[int, int]) -> bytes:
    if isinstance(work, Product):
        types = DTYPE_NUMBERS[work.dtype], DTYPE_NUMBERS[work.out_dtype]
        sizes = struct.pack("<7I", PRODUCT, numbers[work.m], work.n, work.k, work.stride, *types)
        return sizes + b"".join(_argument(arg, numbers) for arg in work.args)
    head = struct.pack("<5I", LAUNCH, work.kernel, *(numbers[size] for size in work.grid))
    return head + _list(work.args, lambda arg: _argument(arg, numbers))


def slot_kind(rows: str) -> int:
    """Returns the number of what a slot has rows for."""
    return ROW_KINDS.index(rows)


def variable_names(groups: int) -> Sequence[str]:
    """Returns the names of all variables of a plan with so many cache groups, by number."""
    return (*ROW_KINDS, *(f"max_blocks.{g}" for g in range(groups)), *(f"blocks.{g}" for g in range(groups)))
