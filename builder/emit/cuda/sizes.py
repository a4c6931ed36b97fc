"""Computes with sizes of a step that are unknown at build time: `Size` stands where launch.py files have an int.

Arithmetic on sizes makes expressions, and equal expressions are one (`Expressions`). A comparison that the bounds of
the variables decide is a plain bool. Any other is a `Condition`: as soon as it is used as a truth value, the path that
is being followed decides it (`Path`), so that trace_launches.py can follow plain Python such as `if tokens > 1` on both
sides.

    expressions = Expressions((Variable("tokens", 1, 8192),))
    tokens = expressions.variable(0)
    ceil_div(tokens, 64)                  # a Size: -(-tokens // 64)
    with expressions.following((True,)):  # the first comparison that is open is true
        tokens > 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import StepSize

CONSTANT, VARIABLE, ADD, SUB, MUL, FLOOR_DIV, MOD, MIN, MAX, BIT_LENGTH, LESS, LESS_EQUAL, EQUAL = range(13)
"""The operations of an expression, by the numbers that a plan has. MIN, MAX, BIT_LENGTH and LESS_EQUAL are part of the
format. Python's min, max and bit_length compare, so that they become branches, and a <= b is the opposite of b < a."""
SIGNS = {ADD: "+", SUB: "-", MUL: "*", FLOOR_DIV: "//", MOD: "%", LESS: "<", EQUAL: "=="}
Bounds = tuple[int, int]
"""The smallest and the largest value of an expression."""


@dataclass(frozen=True)
class Variable:
    """A number that a step has, and its smallest and largest value in any step."""

    name: str
    low: int
    high: int


@dataclass
class Path:
    """One way through the comparisons that a function makes.

    forced: the answers to the first comparisons; the answer to further ones is True. taken: (expression, answer) of
    each comparison so far. bounds: what the answers say of expressions.
    """

    forced: Sequence[bool]
    taken: list[tuple[int, bool]] = field(default_factory=list)
    bounds: dict[int, Bounds] = field(default_factory=dict)
    cache: dict[int, Bounds] = field(default_factory=dict)


class Expressions:
    """Holds all expressions of a plan, each once, as (operation, a, b); a and b are numbers of earlier ones."""

    def __init__(self, variables: Sequence[Variable]):
        self.variables = tuple(variables)
        self.items: list[tuple[int, int, int]] = []
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._path: Path | None = None
        self._free = Path(())
        """The bounds outside of any path."""

    def variable(self, number: int) -> Size:
        return Size(self, self._keep(VARIABLE, number, 0))

    def number_of(self, value: int | Size) -> int:
        """Returns the number of an expression, also for a plain integer."""
        return value.number if isinstance(value, Size) else self._keep(CONSTANT, value, 0)

    def make(self, op: int, left: int | Size, right: int | Size) -> int | Size:
        """Returns the result of an operation: an int if the operands are known or the result is."""
        if not isinstance(left, Size) and not isinstance(right, Size):
            return compute(op, left, right)
        known = _simplified(op, left, right)
        if known is not None:
            return known
        if op in (ADD, MUL) and self.number_of(left) > self.number_of(right):
            left, right = right, left
        return Size(self, self._keep(op, self.number_of(left), self.number_of(right)))

    def compare(self, op: int, left: int | Size, right: int | Size, negated: bool = False) -> bool | Condition:
        """Returns left < right or left == right, or its opposite: a bool where the bounds know it."""
        if op == EQUAL and self.number_of(left) > self.number_of(right):
            left, right = right, left
        known = self._known(op, self.bounds_of(left), self.bounds_of(right), left, right)
        if known is not None:
            return known != negated
        return Condition(self, self._keep(op, self.number_of(left), self.number_of(right)), negated)

    def decide(self, number: int) -> bool:
        """Returns the answer of the path to a comparison. Raises KernelError where no path is followed."""
        path = self._path
        if path is None:
            raise KernelError(f"{self.text(number)} is open at build time, and is needed to go on")
        for decided, answer in path.taken:
            if decided == number:
                return answer
        op, left, right = self.items[number]
        known = self._known(op, self._bounds(left), self._bounds(right))
        if known is not None:
            return known
        answer = path.forced[len(path.taken)] if len(path.taken) < len(path.forced) else True
        path.taken.append((number, answer))
        self._learn(path, op, left, right, answer)
        return answer

    @contextmanager
    def following(self, forced: Sequence[bool]) -> Iterator[Path]:
        """Follows a path inside the context."""
        self._path = path = Path(forced)
        try:
            yield path
        finally:
            self._path = None

    def bounds_of(self, value: int | Size) -> Bounds:
        """Returns the smallest and largest value, as far as the path and the variables tell."""
        return self._bounds(value.number) if isinstance(value, Size) else (value, value)

    def text(self, number: int) -> str:
        """Returns an expression in words, for messages."""
        op, a, b = self.items[number]
        if op == CONSTANT:
            return str(a)
        if op == VARIABLE:
            return self.variables[a].name
        return f"({self.text(a)} {SIGNS[op]} {self.text(b)})"

    def _keep(self, op: int, a: int, b: int) -> int:
        item = (op, a, b)
        if item not in self._numbers:
            self._numbers[item] = len(self.items)
            self.items.append(item)
        return self._numbers[item]

    def _bounds(self, number: int) -> Bounds:
        path = self._path or self._free
        if number not in path.cache:
            op, a, b = self.items[number]
            if op == CONSTANT:
                found = a, a
            elif op == VARIABLE:
                found = self.variables[a].low, self.variables[a].high
            else:
                found = _bounds_of_result(op, self._bounds(a), self._bounds(b))
            low, high = path.bounds.get(number, found)
            path.cache[number] = max(low, found[0]), min(high, found[1])
        return path.cache[number]

    def _known(
        self, op: int, left: Bounds, right: Bounds, a: int | Size | None = None, b: int | Size | None = None
    ) -> bool | None:
        if a is not None and b is not None and self.number_of(a) == self.number_of(b):
            return op == EQUAL
        if op == LESS:
            return True if left[1] < right[0] else False if left[0] >= right[1] else None
        if left[1] < right[0] or right[1] < left[0]:
            return False
        return True if left[0] == left[1] == right[0] == right[1] else None

    def _learn(self, path: Path, op: int, left: int, right: int, answer: bool) -> None:
        """Narrows the bounds of both sides of a comparison whose answer was taken."""
        (low, high), (low_b, high_b) = self._bounds(left), self._bounds(right)
        if op == LESS and answer:
            self._narrow(path, left, low, high_b - 1)
            self._narrow(path, right, low + 1, high_b)
        elif op == LESS:
            self._narrow(path, left, low_b, high)
            self._narrow(path, right, low_b, high)
        elif answer:
            self._narrow(path, left, low_b, high_b)
            self._narrow(path, right, low, high)
        elif low_b == high_b:
            self._narrow(path, left, low + (low == low_b), high - (high == low_b))
        elif low == high:
            self._narrow(path, right, low_b + (low_b == low), high_b - (high_b == low))
        path.cache.clear()

    def _narrow(self, path: Path, number: int, low: int, high: int) -> None:
        """Notes that an expression is from low to high, and what follows for the expression that it is made of."""
        op, a, b = self.items[number]
        known = path.bounds.get(number, (low, high))
        path.bounds[number] = max(low, known[0]), min(high, known[1])
        left, right = (None, None) if op in (CONSTANT, VARIABLE) else (self._constant(a), self._constant(b))
        if left is not None:
            a, b, left, right = b, a, right, left
        if right is None:
            return
        if op == ADD:
            self._narrow(path, a, low - right, high - right)
        elif op == SUB:
            first = self.items[number][2] == a
            self._narrow(path, a, *((right - high, right - low) if first else (low + right, high + right)))
        elif op == MUL and right > 0:
            self._narrow(path, a, -(-low // right), high // right)
        elif op == FLOOR_DIV and right > 0 and self.items[number][1] == a:
            self._narrow(path, a, low * right, high * right + right - 1)

    def _constant(self, number: int) -> int | None:
        return self.items[number][1] if self.items[number][0] == CONSTANT else None


class Size(StepSize):
    """A whole number that a step decides: an expression over its sizes."""

    __slots__ = ("expressions", "number")

    def __init__(self, expressions: Expressions, number: int):
        self.expressions, self.number = expressions, number

    def __add__(self, other: int | Size) -> int | Size:
        return self.expressions.make(ADD, self, other)

    def __radd__(self, other: int) -> int | Size:
        return self.expressions.make(ADD, other, self)

    def __sub__(self, other: int | Size) -> int | Size:
        return self.expressions.make(SUB, self, other)

    def __rsub__(self, other: int) -> int | Size:
        return self.expressions.make(SUB, other, self)

    def __mul__(self, other: int | Size) -> int | Size:
        return self.expressions.make(MUL, self, other)

    def __rmul__(self, other: int) -> int | Size:
        return self.expressions.make(MUL, other, self)

    def __floordiv__(self, other: int | Size) -> int | Size:
        return self._divided(FLOOR_DIV, self, other)

    def __rfloordiv__(self, other: int) -> int | Size:
        return self._divided(FLOOR_DIV, other, self)

    def __mod__(self, other: int | Size) -> int | Size:
        return self._divided(MOD, self, other)

    def __rmod__(self, other: int) -> int | Size:
        return self._divided(MOD, other, self)

    def __neg__(self) -> int | Size:
        return self.expressions.make(SUB, 0, self)

    def __lt__(self, other: int | Size) -> bool | Condition:
        return self.expressions.compare(LESS, self, other)

    def __gt__(self, other: int | Size) -> bool | Condition:
        return self.expressions.compare(LESS, other, self)

    def __le__(self, other: int | Size) -> bool | Condition:
        return self.expressions.compare(LESS, other, self, negated=True)

    def __ge__(self, other: int | Size) -> bool | Condition:
        return self.expressions.compare(LESS, self, other, negated=True)

    def __eq__(self, other: object) -> bool | Condition:  # type: ignore[override]
        return self.expressions.compare(EQUAL, self, other) if isinstance(other, int | Size) else NotImplemented

    def __ne__(self, other: object) -> bool | Condition:  # type: ignore[override]
        if not isinstance(other, int | Size):
            return NotImplemented
        return self.expressions.compare(EQUAL, self, other, negated=True)

    def __hash__(self) -> int:
        return hash(("Size", self.number))

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __index__(self) -> int:
        raise KernelError(f"{self} is a size of a step, which is not known at build time, and a plain number is needed")

    def __repr__(self) -> str:
        return self.expressions.text(self.number)

    def bit_length(self) -> int:
        """Returns the bits of a size that is not negative, as a plain number: each possible one is a path."""
        low, high = self.expressions.bounds_of(self)
        for bits in range(max(low, 0).bit_length(), high.bit_length()):
            if self < 1 << bits:
                return bits
        return high.bit_length()

    def _divided(self, op: int, left: int | Size, right: int | Size) -> int | Size:
        if self.expressions.bounds_of(right)[0] < 1:
            raise KernelError(f"{left} is divided by {right}, which may be 0 or less in some step")
        return self.expressions.make(op, left, right)


class Condition:
    """A comparison of sizes that only a step can answer. Its truth value is the answer of the path."""

    __slots__ = ("expressions", "negated", "number")

    def __init__(self, expressions: Expressions, number: int, negated: bool):
        self.expressions, self.number, self.negated = expressions, number, negated

    def __bool__(self) -> bool:
        return self.expressions.decide(self.number) != self.negated


def compute(op: int, a: int, b: int) -> int:
    """Returns what an operation makes of two numbers. Of BIT_LENGTH only `a` counts."""
    results = {
        ADD: lambda: a + b, SUB: lambda: a - b, MUL: lambda: a * b, FLOOR_DIV: lambda: a // b, MOD: lambda: a % b,
        MIN: lambda: min(a, b), MAX: lambda: max(a, b), BIT_LENGTH: a.bit_length, LESS: lambda: int(a < b),
        LESS_EQUAL: lambda: int(a <= b), EQUAL: lambda: int(a == b),
    }  # fmt: skip
    return results[op]()


def _simplified(op: int, left: int | Size, right: int | Size) -> int | Size | None:
    """Returns the result where one operand is a plain 0 or 1 that decides it, else None."""
    a, b = (None if isinstance(x, Size) else x for x in (left, right))
    if op == ADD and 0 in (a, b):
        return right if a == 0 else left
    if op == MUL and 0 in (a, b):
        return 0
    if op == MUL and 1 in (a, b):
        return right if a == 1 else left
    if (op == SUB and b == 0) or (op == FLOOR_DIV and b == 1):
        return left
    if op == MOD and b == 1:
        return 0
    return None


def _bounds_of_result(op: int, a: Bounds, b: Bounds) -> Bounds:
    if op == ADD:
        return a[0] + b[0], a[1] + b[1]
    if op == SUB:
        return a[0] - b[1], a[1] - b[0]
    if op == MOD:
        return (0, b[1] - 1) if b[0] > 0 else (b[0], b[1])
    if op in (LESS, EQUAL):
        return 0, 1
    if op == FLOOR_DIV:  # `_divided` has shown that the divisor is 1 or more.
        b = max(b[0], 1), max(b[1], 1)
    results = [compute(op, x, y) for x in a for y in b]
    return min(results), max(results)
