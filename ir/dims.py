"""Computes with dimensions: integers, symbols and exact integer expressions over them, in one canonical spelling.

A dimension is an int or a text such as "seq", "seq + 1", "2*seq", "seq*seq" or "(seq // 2)". Two dimensions are equal
exactly when their canonical spellings are equal; every function here takes any spelling and returns the canonical one.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Dim

Polynomial = dict[tuple[str, ...], int]
"""Maps each monomial, a sorted tuple of symbols and floor-division atoms, to its coefficient, which is never zero."""
MAX_CHARACTERS = 1000
"""The most characters of a dimension as text."""
MAX_TERMS = 256
"""The most monomials of a polynomial. A product of two sums may have as many as the product of their numbers."""
MAX_BITS = 256
"""The most bits of a coefficient."""


def add(*dims: Dim) -> Dim:
    """Returns the sum of `dims`."""
    total: Polynomial = {}
    for dim in dims:
        _accumulate(total, _parse(dim), 1)
    return _spell(total)


def sub(a: Dim, b: Dim) -> Dim:
    """Returns a - b."""
    total = dict(_parse(a))
    _accumulate(total, _parse(b), -1)
    return _spell(total)


def mul(*dims: Dim) -> Dim:
    """Returns the product of `dims`, which is 1 for none. The product of a shape is its element count."""
    numbers = [dim for dim in dims if type(dim) is int]
    if len(numbers) == len(dims) and not abs(math.prod(numbers)) >> MAX_BITS:
        return math.prod(numbers)
    product: Polynomial = {(): 1}
    for dim in dims:
        product = _multiply(product, _parse(dim))
    return _spell(product)


def floor_div(a: Dim, b: Dim) -> Dim:
    """Returns a // b, divided out if the division is exact for every value of the symbols."""
    return _spell(_quotient(_parse(a), _parse(b)))


def canonical(dim: Dim) -> Dim:
    """Returns `dim` in its canonical spelling. Raises GraphError if `dim` is not a dimension."""
    return dim if type(dim) is int else _canonical(dim)


@lru_cache(maxsize=4096)
def _canonical(dim: Dim) -> Dim:
    return _spell(_parse(dim))


def is_canonical(dim: object) -> bool:
    """Returns whether `dim` is a dimension in its canonical spelling."""
    if isinstance(dim, bool) or not isinstance(dim, int | str):
        return False
    try:
        return canonical(dim) == dim
    except GraphError:
        return False


def same(a: Dim, b: Dim) -> bool:
    """Returns whether a and b are equal for every value of their symbols."""
    return a == b or canonical(a) == canonical(b)


def symbols(dim: Dim) -> set[str]:
    """Returns the names of the symbols that `dim` depends on."""
    if isinstance(dim, int):
        return set()
    return {n.id for n in ast.walk(_syntax(dim)) if isinstance(n, ast.Name)}


def evaluate(dim: Dim, bindings: Mapping[str, int]) -> int:
    """Returns the value of `dim` where `bindings` has the symbols' values. Raises GraphError for a symbol without a
    value."""
    if isinstance(dim, int):
        return dim
    return _evaluate(_syntax(dim), bindings, dim)


def evaluate_all(shape: Iterable[Dim], bindings: Mapping[str, int]) -> tuple[int, ...]:
    """Returns every dimension of `shape` as a number. Raises GraphError for a symbol without a value."""
    return tuple(evaluate(d, bindings) for d in shape)


# -- polynomials ------------------------------------------------------------------------------------------------------


def _accumulate(total: Polynomial, other: Polynomial, sign: int) -> None:
    for monomial, coefficient in other.items():
        total[monomial] = total.get(monomial, 0) + sign * coefficient
        if total[monomial] == 0:
            del total[monomial]


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for left, m in a.items():
        for right, n in b.items():
            _accumulate(product, {tuple(sorted(left + right)): m * n}, 1)
        if len(product) > MAX_TERMS:
            raise GraphError(f"a dimension must have at most {MAX_TERMS} terms when it is multiplied out")
    if any(abs(n) >> MAX_BITS for n in product.values()):
        raise GraphError(f"a dimension must have no number of more than {MAX_BITS} bits")
    return product


def _quotient(top: Polynomial, bottom: Polynomial) -> Polynomial:
    """Returns the exact quotient if there is one, else one indivisible symbol, spelled "(top // bottom)"."""
    exact = _divide(top, bottom)
    if exact is not None:
        return exact
    if set(top) <= {()} and set(bottom) == {()}:
        number = top.get((), 0) // bottom[()]
        return {(): number} if number else {}
    return {(f"({_group(_spell(top))} // {_group(_spell(bottom))})",): 1}


def _group(dim: Dim) -> str:
    text = str(dim)
    return text if text.isalnum() or text.isidentifier() else f"({text})"


def _divide(top: Polynomial, bottom: Polynomial) -> Polynomial | None:
    """Returns the quotient if it is exact, else None. A sum of monomials divides only itself."""
    if len(bottom) != 1:
        return {(): 1} if top == bottom and top else None
    ((divisor, number),) = bottom.items()
    quotient: Polynomial = {}
    for monomial, coefficient in top.items():
        rest = list(monomial)
        for symbol in divisor:
            if symbol not in rest:
                return None
            rest.remove(symbol)
        if coefficient % number:
            return None
        quotient[tuple(rest)] = coefficient // number
    return quotient


def _spell(poly: Polynomial) -> Dim:
    """Spells a polynomial: the highest degree first, then by name, the number last. Returns an int if it has no
    symbols."""
    if set(poly) <= {()}:
        return poly.get((), 0)
    text = ""
    for monomial, coefficient in sorted(poly.items(), key=lambda item: (-len(item[0]), item[0])):
        size = abs(coefficient)
        factors = ([str(size)] if size != 1 or not monomial else []) + list(monomial)
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} " + "*".join(factors) if text else ("-" if sign == "-" else "") + "*".join(factors)
    return text


# -- text -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _syntax(dim: str) -> ast.expr:
    if len(dim) > MAX_CHARACTERS:
        raise GraphError(f"a dimension must have at most {MAX_CHARACTERS} characters, got {len(dim)}")
    try:
        return ast.parse(dim, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # Too deep nesting raises the last two.
        raise GraphError(f"a dimension must be an integer expression over symbols, not {dim!r}") from error


def _parse(dim: Dim) -> Polynomial:
    if isinstance(dim, bool) or not isinstance(dim, int | str):
        raise GraphError(f"a dimension must be an int or a text, not {dim!r}")
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    return _parse_text(dim)


@lru_cache(maxsize=4096)
def _parse_text(dim: str) -> Polynomial:
    """Returns a polynomial that nobody may change: whoever asks again gets the same."""
    try:
        return _polynomial(_syntax(dim), dim)
    except RecursionError:
        raise GraphError("a dimension must not nest so deep") from None


def _polynomial(node: ast.expr, text: str) -> Polynomial:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _multiply({(): 1}, {(): node.value}) if node.value else {}
    if isinstance(node, ast.Name):
        return {(node.id,): 1}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _multiply({(): -1}, _polynomial(node.operand, text))
    if isinstance(node, ast.BinOp):
        left, right = _polynomial(node.left, text), _polynomial(node.right, text)
        if isinstance(node.op, ast.Mult):
            return _multiply(left, right)
        if isinstance(node.op, ast.FloorDiv) and right:
            return _quotient(left, right)
        if isinstance(node.op, ast.Add | ast.Sub):
            total = dict(left)
            _accumulate(total, right, 1 if isinstance(node.op, ast.Add) else -1)
            return total
    raise GraphError(f"a dimension may use + - * // over symbols and integers, not {text!r}")


def _evaluate(node: ast.expr, bindings: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in bindings:
            raise GraphError(f"dimension {text!r} needs a value for {node.id}, which no input gives")
        return bindings[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, bindings, text)
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, bindings, text), _evaluate(node.right, bindings, text)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv):
            return left // right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
    raise GraphError(f"a dimension may use + - * // over symbols and integers, not {text!r}")
