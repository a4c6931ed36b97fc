"""Defines the formats of quantized weights, and the grammar of `--quantize`, which names them.

int4:gN, int8:gN  groups of N (32, 64, 128) along K share a bfloat16 scale; on target cpu, activations are rounded to
                  8 bits too, with a scale for each token and group
int3:gN, int2:gN  likewise, for those who need the space: 3 and 2 bits
uintB:gN          likewise with B of 8, 4, 3 or 2 bits, and a whole number as zero point for each row and group:
                  scale * (q - zero), q and zero from 0 to 2^B - 1
mxfp4             E2M1 floats in groups of 32 that share a power of two, as the OCP Microscaling Formats specification
                  has them; activations as for int4
w4a8:gN           4 bits in groups of N (32, 64, 128) under one float32 scale for each output row: scale * (offset +
                  step * code), where code is from 0 to 15, and the whole numbers step and offset belong to a row and
                  group; activations as for w8a8
w8a8              int8 with one float32 scale for each output row; activations have one scale for each token
fp8               E4M3 floats with one float32 scale for each output row; activations are not rounded
fp8:gN            likewise with a scale for each row and group of N

int4:gN and int8:gN may be 2:4 sparse, as in `int4:g64:2:4`: of each 4 neighbours along K two are kept
(plugins/quantized_matmul/sparsity.py).

The scales of groups of whole numbers may be float16, as in `uint4:g128:fp16`, which holds the scales of most quantized
checkpoints exactly. A format that ends in `:wo` (weight-only), as `int4:g64:wo` or `mxfp4:wo`, has the same weights,
and target cpu does not round activations beside them.

Only target cpu rounds activations. For the other targets int4, int8 and fp8 are weight-only, and the others do not
exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from tensorwright.engine_format.format_rules import Rule, RuleTable, is_pattern
from tensorwright.errors import InvalidOptionError

GROUPS = (32, 64, 128)
DEFAULT_GROUP = 32
FORMATS = ("int4", "int8", "uint4", "uint8", "int3", "int2", "uint3", "uint2", "mxfp4", "w4a8", "w8a8", "fp8")
"""All kinds of formats. `targets.TARGETS` says which of them a target has."""
FLOAT16_SCALES = ":fp16"
_WEIGHT_ONLY = ":wo"
SPARSITY = "2:4"
"""The one pattern of sparsity: of each 4 neighbours along K two are kept."""
_SPARSE = f":{SPARSITY}"
SPARSE_BLOCK = 32
"""The columns of a block of sparse weights: TW_SPARSE_BLOCK of layout.h."""
SPARSE_PLACES = 64
"""The bytes of a block that say where the kept elements of 16 rows were."""
_GROUP = f"(?::g({'|'.join(map(str, GROUPS))}))?"
_GROUPED = re.compile(
    f"(int|uint)([2348]){_GROUP}({FLOAT16_SCALES})?((?:{_WEIGHT_ONLY})?(?:{_SPARSE})?|{_SPARSE}{_WEIGHT_ONLY})"
)
_MXFP4 = re.compile(f"mxfp4({_WEIGHT_ONLY})?")
_FP8 = re.compile(f"fp8{_GROUP}")
_TWO_LEVELS = re.compile(f"w4a8{_GROUP}")

PARTS = ("embedding", "lm_head")
"""The matrices that may have a format of their own."""
SCALES_BYTES = 64
"""The bytes of the scales in a panel: those of as many groups as fit, or of whole rows."""
ZEROS_HEADER = (192, 128, 4)
"""The bytes of a header of groups with zero points, where in it the zero points begin, and the groups that share it."""
OFFSETS_AT = 32
"""Where in a header of w4a8 the offsets begin, behind the steps of two groups."""
MAX_STEP = 16
"""The largest step of w4a8: 15 steps are then less than 256, so that bytes can hold what they reach."""
FLOAT16 = "float16"
LANES = 16
"""The number of rows in a panel."""
MAX_RULES_SHOWN = 4
"""The most rules of a spec that a line for people shows."""
MAX_WHOLE_ROW = (2**31 - 1) // (127 * 128)
"""The most columns that w8a8 and w4a8 can sum exactly in 32 bits: TW_MAX_WHOLE_ROW of layout.h."""


@dataclass(frozen=True)
class WeightFormat:
    """The quantization of one matrix."""

    bits: int
    """Bits of one weight."""
    group: int
    """The number of elements of K that share a scale. 0 means that the whole row shares one."""
    kind: str = "int"
    """One of "int", "uint" (with zero points), "steps" (w4a8), "mxfp" and "fp"."""
    scales: str = "bfloat16"
    """The type of the scales of groups of "int" and "uint": "bfloat16" or "float16"."""
    weight_only: bool = False
    """Whether products leave activations as they are, where the kind alone does not say so."""
    sparse: bool = False
    """Whether two of each 4 neighbours along K are kept."""

    def __str__(self) -> str:
        """Returns the name that `parse_format` reads, with the group spelled out."""
        if self.kind == "fp":
            return f"fp8:g{self.group}" if self.group else "fp8"
        last = _WEIGHT_ONLY * self.weight_only
        if self.kind == "mxfp":
            return f"mxfp4{last}"
        if self.kind == "steps":
            return f"w4a8:g{self.group}"
        if self.group == 0:
            return "w8a8"
        last = f"{last}{_SPARSE * self.sparse}"
        return f"{self.kind}{self.bits}:g{self.group}{FLOAT16_SCALES * (self.scales == FLOAT16)}{last}"

    @property
    def family(self) -> str:
        """The kind of format, without the group: one of FORMATS."""
        return str(self).partition(":")[0]

    @property
    def dtype(self) -> str:
        """The type of the stored weights, a key of `dtypes.BITS`."""
        return "float8_e4m3fn" if self.kind == "fp" else "w4a8" if self.kind == "steps" else f"{self.kind}{self.bits}"

    @property
    def codec(self) -> str:
        """The name of the form in which target cpu stores the weights and their scales, a key of `dtypes.NUMBERS`."""
        return f"{self.dtype}{'_fp16' * (self.scales == FLOAT16)}{'_sparse' * self.sparse}"

    @property
    def keeps_activations(self) -> bool:
        """Whether products on target cpu read activations as they are, and not rounded to 8 bits."""
        return self.weight_only or self.kind == "fp"

    @property
    def has_zeros(self) -> bool:
        return self.kind == "uint"

    @property
    def has_codes(self) -> bool:
        """Whether weights are whole numbers times scales."""
        return self.kind in ("int", "uint") and not self.sparse

    @property
    def has_steps(self) -> bool:
        """Whether groups have whole numbers as scales, under one scale for each row: w4a8."""
        return self.kind == "steps"

    @property
    def sums_whole_rows(self) -> bool:
        """Whether products are exact sums over a whole row, with one scale for each token."""
        return self.has_steps or (self.group == 0 and self.kind == "int")

    @property
    def largest(self) -> int:
        """The magnitude of the largest positive value. For mxfp4 it is that of the doubled values."""
        if self.has_steps:
            return 127
        if self.kind == "fp":
            return 448
        if self.kind == "mxfp":
            return 12
        return 2**self.bits - 1 if self.has_zeros else 2 ** (self.bits - 1) - 1

    @property
    def least(self) -> int:
        """The least value that the packer gives, less a zero point of 0. Those of 8 bits are symmetric."""
        return 0 if self.has_zeros else -self.largest - (self.kind == "int" and self.bits < 8)

    @property
    def values_dtype(self) -> str:
        """The numpy type that holds values, those of whole numbers less their zero points."""
        if self.kind == "fp":
            return "float32"
        return "int16" if self.has_zeros and self.bits == 8 else "int8"

    @property
    def scale_bytes(self) -> int:
        """The bytes of one scale in a panel of target cpu."""
        return 1 if self.kind in ("mxfp", "steps") else 2 if self.group and self.kind != "fp" else 4

    @property
    def period(self) -> int:
        """The number of groups in a panel that follow a header with their scales."""
        if self.has_steps:
            return 2
        return ZEROS_HEADER[2] if self.has_zeros else SCALES_BYTES // (LANES * self.scale_bytes)

    @property
    def header_bytes(self) -> int:
        """The bytes of such a header."""
        return ZEROS_HEADER[0] if self.has_zeros else SCALES_BYTES

    @property
    def front_bytes(self) -> int:
        """The bytes of the scales of whole rows in front of all headers of a panel of groups."""
        return SCALES_BYTES if self.has_steps else 0

    def groups(self, k: int) -> int:
        """Returns the number of groups in a row of `k` columns."""
        return 1 if self.group == 0 else -(-k // self.group)

    def stored_group(self, k: int) -> int:
        """Returns the elements of one group as stored, padding included."""
        return self.group or -(-k // 4) * 4

    def activation_groups(self, k: int) -> int:
        """Returns how many scales a token's activations have in a product with rows of `k` columns."""
        return 1 if self.sums_whole_rows else self.groups(k)

    def group_bytes(self, k: int) -> int:
        """Returns the bytes of one group of a panel of 16 rows, without scales."""
        dense = self.stored_group(k) * LANES * self.bits // 8
        return dense // 2 + self.group // SPARSE_BLOCK * SPARSE_PLACES if self.sparse else dense

    def panel_bytes(self, k: int) -> int:
        """Returns the bytes of a panel of 16 rows and `k` columns, with scales: plugins/quantized_matmul/layout.h."""
        groups = self.groups(k)
        return self.front_bytes + -(-groups // self.period) * self.header_bytes + groups * self.group_bytes(k)

    def group_offset(self, k: int, i: int) -> int:
        """Returns where in a panel the weights of group `i` begin."""
        return self.front_bytes + (i // self.period + 1) * self.header_bytes + i * self.group_bytes(k)

    def scale_offset(self, k: int, i: int) -> int:
        """Returns where in a panel the 16 scales of group `i` begin, or its steps."""
        return self._header_offset(k, i) + i % self.period * LANES * self.scale_bytes

    def zero_offset(self, k: int, i: int) -> int:
        """Returns where in a panel the 16 zero points of group `i` begin, or its offsets, a byte each."""
        return self._header_offset(k, i) + (OFFSETS_AT if self.has_steps else ZEROS_HEADER[1]) + i % self.period * LANES

    def _header_offset(self, k: int, i: int) -> int:
        return self.front_bytes + i // self.period * (self.header_bytes + self.period * self.group_bytes(k))


def sparsified(fmt: WeightFormat) -> WeightFormat:
    """Returns the format with 2:4 sparse weights. Raises InvalidOptionError for a format that has none."""
    if fmt.kind != "int" or fmt.bits not in (4, 8) or fmt.group == 0 or fmt.scales == FLOAT16 or fmt.weight_only:
        raise InvalidOptionError(
            f"sparsity {SPARSITY}: there are no 2:4 sparse weights of format {fmt}; quantize to int4 or int8 in "
            f"groups, with bfloat16 scales and without {_WEIGHT_ONLY}"
        )
    return replace(fmt, sparse=True)


def densified(asked: Asked) -> Asked:
    """Returns the format of the same weights with all of them kept; what is no sparse format stays."""
    return replace(asked, sparse=False) if isinstance(asked, WeightFormat) else asked


W8A8 = WeightFormat(8, 0)
MXFP4 = WeightFormat(4, 32, "mxfp")


def parse_format(text: str, offered: tuple[str, ...] = FORMATS) -> WeightFormat:
    """Reads "int4", "int8:g64", "uint4:g128:fp16", "int4:wo", "int4:2:4", "mxfp4", "w4a8", "w8a8", "fp8" or "fp8:g128".

    Raises InvalidOptionError for any other text. The message lists the formats `offered`.
    """
    if text == "w8a8":
        return W8A8
    if found := _FP8.fullmatch(text):
        return WeightFormat(8, int(found[1] or 0), "fp")
    if found := _MXFP4.fullmatch(text):
        return replace(MXFP4, weight_only=found[1] is not None)
    if found := _TWO_LEVELS.fullmatch(text):
        return WeightFormat(4, int(found[1] or DEFAULT_GROUP), "steps")
    if found := _GROUPED.fullmatch(text):
        kind, bits, group, float16, more = found.groups()
        scales = FLOAT16 if float16 else "bfloat16"
        fmt = WeightFormat(int(bits), int(group or DEFAULT_GROUP), kind, scales, _WEIGHT_ONLY in more)
        return sparsified(fmt) if _SPARSE in more else fmt
    sizes = ", ".join(f"g{size}" for size in GROUPS)
    last = next(name for name in ("uint2", "uint8", "int8") if name in offered)
    names = [f"{name} (each also with a group: {sizes}, as in int4:g64)" if name == last else name for name in offered]
    raise InvalidOptionError(f"quantize: a weight format must be {', '.join(names[:-1])} or {names[-1]}, not {text!r}")


def every_format(offered: tuple[str, ...], scales: tuple[str, ...] = ("",)) -> tuple[WeightFormat, ...]:
    """Returns the formats of some kinds, each with every group that it may have.

    scales: the ends of names of grouped formats, for the type of their scales: "" for the usual one, or FLOAT16_SCALES.
    """
    ends = [f":g{size}{end}" for size in GROUPS for end in scales]
    texts = [f"{name}{end}" for name in offered for end in (["", *ends] if _GROUPED.fullmatch(name) is None else ends)]
    forms = (_GROUPED, _FP8, _MXFP4, _TWO_LEVELS, re.compile("w8a8"))
    read = (parse_format(text, offered) for text in texts if any(form.fullmatch(text) for form in forms))
    return tuple(dict.fromkeys(read))


@dataclass(frozen=True)
class Choice:
    """Stands for formats that a build chooses for each matrix on its own.

    bits: the bits per weight that all matrices together may take; the build measures which of them need more. None
    means the format in which the checkpoint has a matrix already, if one of the target holds it exactly.
    """

    bits: float | None = None

    def __str__(self) -> str:
        return "kept" if self.bits is None else f"mixed:{self.bits:g}"


KEPT = Choice()
MIN_BITS, MAX_BITS = 1.0, 32.0
"""The least and the most bits per weight that `mixed` can ask for."""
_MIXED = re.compile(r"mixed:(\d{1,2}(?:\.\d{1,4})?)")

Asked = WeightFormat | Choice | None
"""What a spec says of a matrix. None means the activation type."""
FormatRule = Rule[Asked]
"""What a spec says of the matrices that a pattern of names matches."""


@dataclass(frozen=True)
class QuantizeSpec:
    """The formats of the linear layers' matrices, of the embedding and of lm_head. None means the activation type.

    rules: overrule these three for the weights that they match; of several, the last one that matches holds. The spec
    of a graph that is to be quantized has no Choice.
    """

    linears: Asked
    embedding: Asked
    lm_head: Asked
    rules: tuple[FormatRule, ...] = ()

    def __str__(self) -> str:
        """Returns the text that `parse_spec` reads, with every part spelled out. An equal spec has an equal text."""
        parts = [("embedding", self.embedding), ("lm_head", self.lm_head)]
        parts += [(rule.pattern, rule.value) for rule in self.rules]
        return ",".join([format_name(self.linears), *(f"{name}={_part_name(value)}" for name, value in parts)])

    @property
    def summary(self) -> str:
        """The text for people: only the number of rules, where there are many."""
        if len(self.rules) <= MAX_RULES_SHOWN:
            return str(self)
        return f"{QuantizeSpec(self.linears, self.embedding, self.lm_head)}, and {len(self.rules)} rules"

    @property
    def _values(self) -> tuple[Asked, ...]:
        return (self.linears, self.embedding, self.lm_head, *(rule.value for rule in self.rules))

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """The formats of the parts that are quantized, and of the rules."""
        return tuple(fmt for fmt in self._values if isinstance(fmt, WeightFormat))

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices that are left to the build, each once."""
        return tuple(dict.fromkeys(fmt for fmt in self._values if isinstance(fmt, Choice)))

    @property
    def says_how_many(self) -> bool:
        """Whether the spec says how many matrices are quantized: no rule may take some out of a part, or into it."""
        return not self.choices and (not self.rules or len({fmt is None for fmt in self._values}) == 1)

    @cached_property
    def table(self) -> RuleTable[Asked]:
        """The rules, to look up names in."""
        return RuleTable(self.rules)

    def format_of(self, name: str, part: Asked) -> Asked:
        """Returns what the spec says of a weight. part: that of its part, which holds where no rule matches."""
        rule = self.table.find(name)
        return part if rule is None else rule.value


UNQUANTIZED = QuantizeSpec(None, None, None)


def parse_spec(text: str, offered: tuple[str, ...] = FORMATS) -> QuantizeSpec:
    """Reads FORMAT[,embedding=FORMAT][,lm_head=FORMAT][,PATTERN=FORMAT ...]. An unnamed part has the first format,
    dense.

    A FORMAT may be "none" or "kept", and the first "mixed:BITS", where the parts may be "mixed" too. A PATTERN is of
    names of weights: format_rules.py.

    Raises InvalidOptionError for any other text. The message lists the formats `offered`.
    """
    return _parse_parts(text, offered)[0]


def parse_cpu_spec(text: str, offered: tuple[str, ...]) -> QuantizeSpec:
    """Reads a spec for target cpu. Raises InvalidOptionError for a sparse embedding."""
    spec = parse_spec(text, offered)
    if isinstance(spec.embedding, WeightFormat) and spec.embedding.sparse:
        raise InvalidOptionError(
            f"quantize: the embedding must not be {spec.embedding}: its rows are read, not multiplied; say "
            f"embedding={densified(spec.embedding)}"
        )
    return spec


def with_sparsity(text: str | None) -> str:
    """Returns the text of a spec whose layers are 2:4 sparse. text: that of the spec without sparsity, or None.

    Raises InvalidOptionError for a text that names no format of the layers, or one that is never sparse.
    """
    spec = UNQUANTIZED if text is None else parse_spec(text)
    if not isinstance(spec.linears, WeightFormat):
        found = "" if spec.linears is None else f", named in place of {spec.linears}"
        raise InvalidOptionError(f"sparsity {SPARSITY} needs quantize: int4 or int8{found}")
    return str(replace(spec, linears=sparsified(spec.linears)))


def parse_weight_only_spec(text: str, target: str, offered: tuple[str, ...]) -> QuantizeSpec:
    """Reads a spec for a target that rounds weights only, but for w8a8 where it is offered. Raises InvalidOptionError
    for what the target cannot do.

    Rows of an embedding are int8 or of the activation type there. An embedding that is not named, and cannot have the
    format of the linear layers, keeps the activation type. target: its name in messages.
    """
    spec, named = _parse_parts(text, offered)
    if spec.choices:
        raise InvalidOptionError(
            f"quantize: formats are chosen (mixed, kept) for target cpu alone, not for {target}; name formats, such as "
            "those that tensorwright inspect --quantize-config shows of an engine of target cpu"
        )
    for fmt in spec.formats:
        if fmt.sums_whole_rows and fmt.family not in offered:
            _refuse(
                spec, str(fmt), f"target {target} keeps activations as they are; quantize to int8, weight-only there"
            )
        if fmt.weight_only:
            _refuse(spec, str(fmt), f"target {target} keeps activations as they are in any format; leave out :wo")
        if fmt.family not in offered or fmt.scales == FLOAT16 or fmt.sparse or (fmt.kind == "fp" and fmt.group):
            _refuse(spec, str(fmt), f"target {target} has no such products; quantize to int8 or int4")
    embedding = spec.embedding
    if not isinstance(embedding, WeightFormat) or (embedding.dtype == "int8" and embedding.group):
        return spec
    if "embedding" in named:
        raise InvalidOptionError(
            f"quantize: on target {target} the embedding must be int8 or none, not {spec.embedding}; "
            "say embedding=int8 or embedding=none"
        )
    return replace(spec, embedding=None)


def format_name(fmt: Asked) -> str:
    return "none" if fmt is None else str(fmt)


def _part_name(fmt: Asked) -> str:
    """Returns the text of a part of a spec other than the first, which alone says the bits of `mixed`."""
    return format_name(fmt).partition(":")[0] if isinstance(fmt, Choice) else format_name(fmt)


def _refuse(spec: QuantizeSpec, name: str, why: str) -> None:
    if name in map(str, spec.formats):
        raise InvalidOptionError(f"quantize: the format must not be {name}: {why}")


def _parse_parts(text: str, offered: tuple[str, ...]) -> tuple[QuantizeSpec, set[str]]:
    """Returns the spec, and the names of the parts that the text names."""
    first, *others = [part.strip() for part in text.split(",")]
    linears = _parse_first(first, offered)
    formats: dict[str, Asked] = dict.fromkeys(PARTS, densified(linears))
    named: set[str] = set()
    rules: list[FormatRule] = []
    for part in others:
        name, equals, value = part.partition("=")
        if not (name in formats or is_pattern(name)) or not equals or name in named:
            raise InvalidOptionError(
                "quantize must be FORMAT, then at most embedding=FORMAT, lm_head=FORMAT and formats of weights by "
                f"patterns of their names, each once, as in int4:g64,lm_head=int8,model.layers.0.*=int8; {part!r} in "
                f"{text if len(text) < 200 else text[:200] + '...'!r} is not"
            )
        named.add(name)
        fmt = _parse_part(value, linears, offered)
        if name in formats:
            formats[name] = fmt
        else:
            rules.append(Rule(name, fmt))
    return QuantizeSpec(linears, formats["embedding"], formats["lm_head"], tuple(rules)), named


def _parse_first(text: str, offered: tuple[str, ...]) -> Asked:
    if text.partition(":")[0] != "mixed":
        return _parse_part(text, None, offered)
    found = _MIXED.fullmatch(text)
    if found is None or not MIN_BITS <= float(found[1]) <= MAX_BITS:
        raise InvalidOptionError(
            f"quantize: mixed needs the bits per weight that all matrices may take, from {MIN_BITS:g} to {MAX_BITS:g}, "
            f"as in mixed:4.5, not {text!r}"
        )
    return Choice(float(found[1]))


def _parse_part(text: str, first: Asked, offered: tuple[str, ...]) -> Asked:
    if text == "none":
        return None
    if text == "kept":
        return KEPT
    if text == "mixed" and isinstance(first, Choice) and first.bits is not None:
        return first
    return parse_format(text, offered)
