"""Makes expressions of the conversions that transformers declares for checkpoints of other forms than the model.

transformers' conversion_mapping says by a WeightConverter which stored tensors become which parameters, and by which
operations: of every pattern of names a list of tensors, in the order of their numbers.

    MergeModulelist   a list of tensors becomes their stack
    Concatenate       the tensors of all patterns, in the order of the patterns, follow each other
    Transpose         two dimensions of a tensor change places, always, or where the parameter's shape differs
    Chunk             a tensor is cut into parts of one length, one for each parameter
    Split             a tensor is cut into parts, each as long as its parameter
    ErnieFuseAndSplitTextVisionExperts
                      each list is cut into parts of one length, one for each parameter; the stacks of a parameter's
                      parts follow each other
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from transformers import PreTrainedModel
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ConversionOps,
    ErnieFuseAndSplitTextVisionExperts,
    MergeModulelist,
    Split,
    Transpose,
    WeightConverter,
    dot_natural_key,
)

from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.checkpoint import Checkpoint

Parts = dict[str, list[WeightExpr]]
"""Expressions by the pattern that the names of their tensors match, or by the pattern of their parameter's name."""

Wanted = dict[str, tuple[int, ...]]
"""The shapes of the parameters that a conversion makes, by the patterns of their names."""


class Conversions:
    """Collects the stored tensors that become parameters in another form."""

    def __init__(self, converters: Sequence[WeightConverter]):
        self._by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        self._names: dict[str, dict[str, list[str]]] = {}

    def add(self, target: str, pattern: str, name: str) -> None:
        """Notes that the stored tensor `name`, which matches `pattern` of a converter, is a part of `target`.

        Where the converter makes several parameters, `target` is the first of them.
        """
        self._names.setdefault(target, {}).setdefault(pattern, []).append(name)

    @property
    def targets(self) -> dict[str, str]:
        """The first parameter that each of the stored tensors becomes a part of, by the tensor's name."""
        return {
            name: target
            for target, by_pattern in self._names.items()
            for names in by_pattern.values()
            for name in names
        }

    def expressions(self, model: PreTrainedModel, checkpoint: Checkpoint) -> dict[str, WeightExpr]:
        """Returns the expression of each parameter and each stored buffer that is converted.

        Raises CheckpointError if the parts do not make the parameter, and UnsupportedModelError for a conversion that
        no expression has.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        found: dict[str, WeightExpr] = {}
        for target in self._names:
            found |= self._expressions_of(target, shapes, checkpoint)
        for target, expr in found.items():
            shape, wanted = expr.shape(checkpoint), shapes[target]
            if shape != wanted:
                raise CheckpointError(
                    f"{checkpoint.path}: {target} must be {list(wanted)}, but its stored parts make {list(shape)}: "
                    f"{', '.join(list(expr.refs())[:3])} and so on; the config or the checkpoint is not whole"
                )
        return found

    def _expressions_of(
        self, first: str, shapes: dict[str, tuple[int, ...]], checkpoint: Checkpoint
    ) -> dict[str, WeightExpr]:
        """Returns the expressions of the parameters that one conversion makes. first: the name of the first of them."""
        names = self._names[first]
        converter = self._by_pattern[next(iter(names))]
        parts: Parts = {
            pattern: [Ref(name) for name in sorted(names[pattern], key=dot_natural_key)]
            for pattern in converter.source_patterns
            if pattern in names
        }
        parameters = _parameters(first, converter.target_patterns)
        unknown = [name for name in parameters.values() if name not in shapes]
        if unknown:
            raise self._refusal(unknown[0], checkpoint, "stored tensors, and the model has no such parameter")
        wanted = {pattern: shapes[name] for pattern, name in parameters.items()}
        for operation in converter.operations:
            converted = _convert(operation, parts, wanted, checkpoint)
            if converted is None:
                raise self._refusal(first, checkpoint, f"{type(operation).__name__} of stored tensors")
            parts = converted
        if len(parts) == 1 == len(wanted):
            parts = dict(zip(wanted, parts.values(), strict=True))
        if parts.keys() != wanted.keys() or any(len(results) != 1 for results in parts.values()):
            raise self._refusal(first, checkpoint, "parts that become no single tensor")
        return {parameters[pattern]: results[0] for pattern, results in parts.items()}

    def _refusal(self, target: str, checkpoint: Checkpoint, what: str) -> UnsupportedModelError:
        kind = checkpoint.config.get("model_type")
        return UnsupportedModelError(
            f"{checkpoint.path}: transformers makes {target!r} of {what} while loading {kind}, which is not supported"
        )


def _parameters(first: str, patterns: list[str]) -> dict[str, str]:
    """Returns the names of the parameters that a converter makes, by their patterns. first: the name of the first."""
    if len(patterns) == 1:
        return {patterns[0]: first}
    prefix, _, suffix = first.partition(patterns[0])
    return {pattern: prefix + pattern + suffix for pattern in patterns}


def _convert(operation: ConversionOps, parts: Parts, wanted: Wanted, checkpoint: Checkpoint) -> Parts | None:
    """Returns what an operation makes of the parts; None for an operation that no expression has.

    wanted: the parameters that the whole conversion makes.
    """
    match operation:
        case MergeModulelist(dim=0):
            return {pattern: [some[0].stack(some[1:])] for pattern, some in parts.items()}
        case Concatenate(dim=dim):
            first, *rest = [part for some in parts.values() for part in some]
            return {next(iter(wanted)): [first.concat(rest, dim)]}
        case ErnieFuseAndSplitTextVisionExperts(stack_dim=0, concat_dim=dim):
            return _share_out(parts, wanted, dim)
    if len(parts) != 1 or any(len(some) != 1 for some in parts.values()):
        return None  # The operations below take a single tensor.
    ((pattern, (part,)),) = parts.items()
    match operation:
        case Transpose(check_dims=True) if part.shape(checkpoint) == next(iter(wanted.values())):
            return parts
        case Transpose(dim0=dim0, dim1=dim1):
            return {pattern: [part.transpose(dim0, dim1)]}
        case Chunk(dim=dim, num_shards_attribute=None):
            length = part.shape(checkpoint)[dim]
            size = -(-length // len(wanted))
            return _cut(part, dim, [min(size, length - at) for at in range(0, length, size)], wanted)
        case Split(dim=dim):
            sizes = [shape[dim] for shape in wanted.values()]
            return _cut(part, dim, sizes, wanted) if sum(sizes) == part.shape(checkpoint)[dim] else None
    return None


def _cut(part: WeightExpr, dim: int, sizes: list[int], wanted: Wanted) -> Parts | None:
    """Returns one part of these sizes for each parameter; None if there are not as many."""
    if len(sizes) != len(wanted):
        return None
    ranges = pairwise(accumulate(sizes, initial=0))
    return {pattern: [part.slice(dim, *cut)] for pattern, cut in zip(wanted, ranges, strict=True)}


def _share_out(parts: Parts, wanted: Wanted, dim: int) -> Parts | None:
    """Cuts each list into one part per parameter, and joins the stacks of each parameter's parts along `dim`."""
    shared: Parts = {}
    for at, pattern in enumerate(wanted):
        sizes = [-(-len(some) // len(wanted)) for some in parts.values()]
        groups = [some[at * size : (at + 1) * size] for some, size in zip(parts.values(), sizes, strict=True)]
        if not all(groups):
            return None
        first, *rest = [group[0].stack(group[1:]) for group in groups]
        shared[pattern] = [first.concat(rest, dim)]
    return shared
