"""Formats of quantized weights, by the names that users and graphs give them.

int4:gN, int8:gN  groups of N (32, 64, 128) along K share a bfloat16 scale; activations likewise, per token and group
w8a8              int8, one float32 scale per output row; activations one scale per token
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError

GROUPS = (32, 64, 128)
DEFAULT_GROUP = 32
SCALE_BYTES = 64
LANES = 16


@dataclass(frozen=True)
class WeightFormat:
    """`bits` of a weight; `group` elements of K under one scale, 0: the whole row."""

    bits: int
    group: int

    def __str__(self) -> str:
        return "w8a8" if self.group == 0 else f"int{self.bits}:g{self.group}"

    @property
    def dtype(self) -> str:
        return f"int{self.bits}"

    @property
    def largest(self) -> int:
        """Magnitude that a scale is made for on the positive side."""
        return 127 if self.bits == 8 else 7

    def groups(self, k: int) -> int:
        return 1 if self.group == 0 else -(-k // self.group)

    def stored_group(self, k: int) -> int:
        """Elements of a group as stored."""
        return self.group or -(-k // 4) * 4

    def group_bytes(self, k: int) -> int:
        """Of one group of a panel of 16 rows, scales not counted."""
        return self.stored_group(k) * LANES * self.bits // 8

    def panel_bytes(self, k: int) -> int:
        """Of 16 rows of K columns, scales included: plugins/quantized_matmul/layout.h."""
        groups = self.groups(k)
        return (groups + 1) // 2 * SCALE_BYTES + groups * self.group_bytes(k)

    def bits_per_weight(self, k: int) -> float:
        return self.panel_bytes(k) * 8 / (LANES * k)


def parse_format(text: str) -> WeightFormat:
    """ "int4", "int8:g64", "w8a8". Raises InvalidOptionError that says what there is."""
    if text == "w8a8":
        return WeightFormat(8, 0)
    kind, _, group = text.partition(":")
    if kind in ("int4", "int8"):
        if not group and ":" not in text:
            return WeightFormat(int(kind[3:]), DEFAULT_GROUP)
        if group in {f"g{size}" for size in GROUPS}:
            return WeightFormat(int(kind[3:]), int(group[1:]))
    sizes = ", ".join(f"g{size}" for size in GROUPS)
    raise InvalidOptionError(
        f"a weight format must be int4, int8 (each also with a group: {sizes}, as in int4:g64) or w8a8, not {text!r}"
    )


@dataclass(frozen=True)
class QuantizeSpec:
    """Formats of the layers' matrices, the embedding and lm_head; None: in the engine's activation type."""

    linears: WeightFormat | None
    embedding: WeightFormat | None
    lm_head: WeightFormat | None

    def __str__(self) -> str:
        def name(fmt: WeightFormat | None) -> str:
            return "none" if fmt is None else str(fmt)

        return f"{name(self.linears)},embedding={name(self.embedding)},lm_head={name(self.lm_head)}"


def parse_spec(text: str) -> QuantizeSpec:
    """FORMAT[,embedding=FORMAT][,lm_head=FORMAT]; a FORMAT may be "none". What is not named follows the first.

    Raises InvalidOptionError.
    """
    first, *others = [part.strip() for part in text.split(",")]
    linears = None if first == "none" else parse_format(first)
    named: dict[str, WeightFormat | None] = {"embedding": linears, "lm_head": linears}
    seen: set[str] = set()
    for part in others:
        name, equals, value = part.partition("=")
        if name not in named or not equals or name in seen:
            raise InvalidOptionError(
                "quantize must be FORMAT, then at most embedding=FORMAT and lm_head=FORMAT, as in "
                f"int4:g64,lm_head=int8; {part!r} in {text!r} is not"
            )
        seen.add(name)
        named[name] = None if value == "none" else parse_format(value)
    return QuantizeSpec(linears, named["embedding"], named["lm_head"])
