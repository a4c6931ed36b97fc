"""elementwise(x0, x1?, x2?, x3?, w?){program}:  y = program, column by column

x: the same shape [T, C] each, float32; w: [C].  A program is a list of words in the order of a stack machine: "x0 30.0
div tanh 30.0 mul" is 30 * tanh(x0 / 30).  Words: x0 .. x3, w, numbers, and the operations of BINARY and UNARY.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir.records import InPlace, Instruction, rows, shared
from tensorwright.plugins.rounding import round_to

# These are the limits of a kernel. kernel.h has the same numbers.
BYTES, STACK, INPUTS, CONSTANTS = 32, 8, 4, 4
OPERANDS = {"x0": 1, "x1": 2, "x2": 3, "x3": 4, "w": 5}
FIRST_CONSTANT = 6

BINARY: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "add": (16, np.add),
    "sub": (17, np.subtract),
    "mul": (18, np.multiply),
    "div": (19, np.divide),
    "maximum": (20, np.maximum),
    "minimum": (21, np.minimum),
}
_erf = np.vectorize(math.erf, otypes=[np.float64])
UNARY: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "neg": (32, np.negative),
    "abs": (33, np.abs),
    "square": (34, np.square),
    "sqrt": (35, np.sqrt),
    "rsqrt": (36, lambda x: 1.0 / np.sqrt(x)),
    "exp": (37, np.exp),
    "tanh": (38, np.tanh),
    "sigmoid": (39, lambda x: 1.0 / (1.0 + np.exp(-x))),
    "silu": (40, lambda x: x / (1.0 + np.exp(-x))),
    "relu": (41, lambda x: np.maximum(x, 0.0)),
    "gelu_tanh": (42, lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "gelu": (43, lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2)))),
    "erf": (44, _erf),
    "softplus": (45, lambda x: np.logaddexp(0.0, x)),
}


def reference(inputs: list[np.ndarray | None], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    return [round_to(evaluate(inputs, attrs["program"]).astype(np.float32), act_dtype)]


def evaluate(inputs: list[np.ndarray | None], program: str) -> np.ndarray:
    """Returns the program's result with float64 arithmetic. `inputs` are in the order of OPERANDS; None is absent."""
    named = dict(zip(OPERANDS, inputs, strict=False))
    stack: list[Any] = []
    with np.errstate(over="ignore"):
        for word in program.split():
            if word in BINARY:
                b, a = stack.pop(), stack.pop()
                stack.append(BINARY[word][1](a, b))
            elif word in UNARY:
                stack.append(UNARY[word][1](stack.pop()))
            else:
                operand = named.get(word)
                stack.append(np.float64(np.float32(word)) if operand is None else operand.astype(np.float64))
    return np.asarray(stack.pop())


def encode(program: str) -> tuple[list[int], list[float]]:
    """Returns the eight ints and four floats of the instruction. Raises GraphError for what no kernel can run."""
    code, constants, depth = bytearray(), [], 0
    for word in program.split():
        taken = 2 if word in BINARY else 1 if word in UNARY else 0
        if taken:
            code.append((BINARY[word] if taken == 2 else UNARY[word])[0])
        elif word in OPERANDS:
            code.append(OPERANDS[word])
        else:
            number = _number(word, program)
            if number not in constants:
                constants.append(number)
            code.append(FIRST_CONSTANT + constants.index(number))
        if depth < taken or depth + 1 - taken > STACK:
            raise GraphError(
                f"elementwise: the stack must hold 0 to {STACK} values; {word!r} in {program!r} breaks that"
            )
        depth += 1 - taken
    if depth != 1 or len(code) > BYTES or len(constants) > CONSTANTS:
        raise GraphError(
            f"elementwise: a program must leave one value and have at most {BYTES} words and {CONSTANTS} numbers, "
            f"which {program!r} does not"
        )
    return list(struct.unpack("<8i", code.ljust(BYTES, b"\0"))), constants + [0.0] * (CONSTANTS - len(constants))


def _number(word: str, program: str) -> float:
    try:
        number = float(np.float32(word))
    except ValueError:
        raise GraphError(f"elementwise: there is no word {word!r}, in {program!r}") from None
    if not math.isfinite(number):
        raise GraphError(f"elementwise: a number must be finite in float32, not {word}")
    return number


INSTRUCTION = Instruction(
    "elementwise",
    number=11,
    operands=(rows("x0"), rows("x1?"), rows("x2?"), rows("x3?"), shared("w?", RAW)),
    attrs={"program": "str"},
    encode=lambda attrs: encode(attrs["program"]),
    reference=reference,
    in_place=(InPlace("y", ("x0", "x1", "x2", "x3")),),
)
