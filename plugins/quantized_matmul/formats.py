"""Formats of quantized weights, by the names that users and graphs give them.

int4:gN, int8:gN  groups of N (32, 64, 128) along K share a bfloat16 scale; activations likewise, per token and group
w8a8              int8, one float32 scale per output row; activations one scale per token
fp8               E4M3 floats, one float32 scale per output row (of bfloat16's precision); not for cpu and onnx

Targets other than cpu keep activations as they are: there int4, int8 and fp8 are weight-only and w8a8 does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError

GROUPS = (32, 64, 128)
DEFAULT_GROUP = 32
FORMATS = ("int4", "int8", "w8a8", "fp8")
OFFERED = {
    "cpu": ("int4", "int8", "w8a8"),
    "onnx": ("int4", "int8"),
    "tensorrt": ("int4", "int8", "fp8"),
    "tensorrt-rtx": ("int4", "int8", "fp8"),
}
"""Of FORMATS, those that a target has."""
SCALE_BYTES = 64
LANES = 16
MOST_WHOLE_ROW = (2**31 - 1) // (127 * 128)
"""TW_MOST_WHOLE_ROW of layout.h: the most columns that w8a8 sums up exactly in 32 bits."""


@dataclass(frozen=True)
class WeightFormat:
    """`bits` of a weight; `group` elements of K under one scale, 0: the whole row. `kind`: "int" or "fp"."""

    bits: int
    group: int
    kind: str = "int"

    def __str__(self) -> str:
        if self.kind == "fp":
            return "fp8"
        return "w8a8" if self.group == 0 else f"int{self.bits}:g{self.group}"

    @property
    def dtype(self) -> str:
        return "float8_e4m3fn" if self.kind == "fp" else f"int{self.bits}"

    @property
    def largest(self) -> int:
        """Magnitude that a scale is made for on the positive side."""
        if self.kind == "fp":
            return 448
        return 127 if self.bits == 8 else 7

    def groups(self, k: int) -> int:
        return 1 if self.group == 0 else -(-k // self.group)

    def stored_group(self, k: int) -> int:
        """Elements of a group as stored."""
        if self.kind == "fp":
            return k
        return self.group or -(-k // 4) * 4

    def group_bytes(self, k: int) -> int:
        """Of one group of a panel of 16 rows, scales not counted."""
        return self.stored_group(k) * LANES * self.bits // 8

    def panel_bytes(self, k: int) -> int:
        """Of 16 rows of K columns, scales included: plugins/quantized_matmul/layout.h. fp8 has no panels."""
        if self.kind == "fp":
            raise InvalidOptionError("target cpu has no kernels for fp8 weights; quantize to int4, int8 or w8a8")
        groups = self.groups(k)
        return (groups + 1) // 2 * SCALE_BYTES + groups * self.group_bytes(k)

    def bits_per_weight(self, k: int) -> float:
        return self.panel_bytes(k) * 8 / (LANES * k)


def parse_format(text: str, offered: tuple[str, ...] = FORMATS) -> WeightFormat:
    """ "int4", "int8:g64", "w8a8", "fp8". Raises InvalidOptionError that says what there is: `offered`, of a target."""
    if text == "w8a8":
        return WeightFormat(8, 0)
    if text == "fp8":
        return WeightFormat(8, 0, "fp")
    kind, _, group = text.partition(":")
    if kind in ("int4", "int8"):
        if not group and ":" not in text:
            return WeightFormat(int(kind[3:]), DEFAULT_GROUP)
        if group in {f"g{size}" for size in GROUPS}:
            return WeightFormat(int(kind[3:]), int(group[1:]))
    sizes = ", ".join(f"g{size}" for size in GROUPS)
    names = [f"int8 (each also with a group: {sizes}, as in int4:g64)" if name == "int8" else name for name in offered]
    raise InvalidOptionError(f"quantize: a weight format must be {', '.join(names[:-1])} or {names[-1]}, not {text!r}")


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


def parse_spec(text: str, offered: tuple[str, ...] = FORMATS) -> QuantizeSpec:
    """FORMAT[,embedding=FORMAT][,lm_head=FORMAT]; a FORMAT may be "none". What is not named follows the first.

    Raises InvalidOptionError, which names the formats `offered` for one that does not exist.
    """
    return _resolve(text, offered)[0]


def cpu_spec(text: str) -> QuantizeSpec:
    """parse_spec for target cpu, which has no fp8."""
    spec = parse_spec(text, OFFERED["cpu"])
    _refuse(spec, "fp8", "target cpu has no kernels for it; quantize to int4, int8 or w8a8")
    return spec


def weight_only_spec(text: str, *targets: str) -> QuantizeSpec:
    """parse_spec for the targets that round weights only. Raises InvalidOptionError for what they cannot do.

    An embedding has rows of int8 or of the activation type there: one that is not named stays in the activation type
    where it cannot follow the linears.
    """
    target, offered = " or ".join(targets), OFFERED[targets[0]]
    spec, named = _resolve(text, offered)
    _refuse(spec, "w8a8", f"target {target} keeps activations as they are; quantize to int8, weight-only there")
    if "fp8" not in offered:
        _refuse(spec, "fp8", f"target {target} has no such products; quantize to int8 or int4")
    if spec.embedding is None or spec.embedding.dtype == "int8":
        return spec
    if "embedding" in named:
        raise InvalidOptionError(
            f"quantize: on target {target} the embedding must be int8 or none, not {spec.embedding}; "
            "say embedding=int8 or embedding=none"
        )
    return QuantizeSpec(spec.linears, None, spec.lm_head)


def _refuse(spec: QuantizeSpec, name: str, why: str) -> None:
    if name in (str(spec.linears), str(spec.embedding), str(spec.lm_head)):
        raise InvalidOptionError(f"quantize: the format must not be {name}: {why}")


def _resolve(text: str, offered: tuple[str, ...]) -> tuple[QuantizeSpec, set[str]]:
    """The formats, and which parts were named."""
    first, *others = [part.strip() for part in text.split(",")]
    linears = None if first == "none" else parse_format(first, offered)
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
        named[name] = None if value == "none" else parse_format(value, offered)
    return QuantizeSpec(linears, named["embedding"], named["lm_head"]), seen
