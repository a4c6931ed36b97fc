"""Makes expressions of the conversions that transformers declares for checkpoints that store a parameter in parts.

transformers' conversion_mapping says by a WeightConverter which stored tensors become one parameter, and by which
operations: of every pattern of names a list of tensors, in the order of their numbers.

    MergeModulelist   a list of tensors becomes their stack
    Concatenate       the tensors of all patterns, in the order of the patterns, follow each other
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, dot_natural_key

from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.checkpoint import Checkpoint

Parts = dict[str, list[WeightExpr]]
"""Expressions by the pattern that the names of their tensors match."""


class Conversions:
    """Collects the stored tensors that become parts of parameters."""

    def __init__(self, converters: Sequence[WeightConverter]):
        self._by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        self._names: dict[str, dict[str, list[str]]] = {}

    def add(self, target: str, pattern: str, name: str) -> None:
        """Notes that the stored tensor `name`, which matches `pattern` of a converter, is a part of `target`."""
        self._names.setdefault(target, {}).setdefault(pattern, []).append(name)

    @property
    def targets(self) -> dict[str, str]:
        """The parameter that each of the stored tensors becomes a part of, by the tensor's name."""
        return {
            name: target
            for target, by_pattern in self._names.items()
            for names in by_pattern.values()
            for name in names
        }

    def expressions(self, model: PreTrainedModel, checkpoint: Checkpoint) -> dict[str, WeightExpr]:
        """Returns the expression of each parameter that is stored in parts.

        Raises CheckpointError if the parts do not make the parameter, and UnsupportedModelError for a conversion that
        no expression has.
        """
        parameters = dict(model.named_parameters())
        found = {target: self._expression(target, checkpoint) for target in self._names}
        for target, expr in found.items():
            if target not in parameters:
                raise self._refusal(target, checkpoint, "parts of several parameters")
            shape, wanted = expr.shape(checkpoint), tuple(parameters[target].shape)
            if shape != wanted:
                raise CheckpointError(
                    f"{checkpoint.path}: {target} must be {list(wanted)}, but its stored parts make {list(shape)}: "
                    f"{', '.join(list(expr.refs())[:3])} and so on; the config or the checkpoint is not whole"
                )
        return found

    def _expression(self, target: str, checkpoint: Checkpoint) -> WeightExpr:
        names = self._names[target]
        converter = self._by_pattern[next(iter(names))]
        parts: Parts = {
            pattern: [Ref(name) for name in sorted(names[pattern], key=dot_natural_key)]
            for pattern in converter.source_patterns
            if pattern in names
        }
        for operation in converter.operations:
            match operation:
                case MergeModulelist(dim=0):
                    parts = {pattern: [some[0].stack(some[1:])] for pattern, some in parts.items()}
                case Concatenate(dim=dim):
                    first, *rest = [part for some in parts.values() for part in some]
                    parts = {target: [first.concat(rest, dim)]}
                case _:
                    raise self._refusal(target, checkpoint, f"{type(operation).__name__} of stored tensors")
        (results,) = parts.values() if len(parts) == 1 else ([],)
        if len(results) != 1:
            raise self._refusal(target, checkpoint, "parts that become no single tensor")
        return results[0]

    def _refusal(self, target: str, checkpoint: Checkpoint, what: str) -> UnsupportedModelError:
        kind = checkpoint.config.get("model_type")
        return UnsupportedModelError(
            f"{checkpoint.path}: transformers makes {target!r} of {what} while loading {kind}, which is not supported"
        )
