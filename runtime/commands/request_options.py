"""Adds the options of `tensorwright run` that are a request's parameters, and reads them.

Each option goes to the field of its name in SamplingParams or GuidedDecodingParams, and that class checks the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tensorwright.click_options import add_options, take
from tensorwright.options.declare import Door, find
from tensorwright.options.request import EARLY_STOPPING, GUIDED, SAMPLING

if TYPE_CHECKING:
    from tensorwright.runtime.guided.params import GuidedDecodingParams
    from tensorwright.runtime.requests.sampling_params import SamplingParams

PREFIX = "guided_"
"""The prefix of the arguments of guided decoding, for `json` is also the name of an option of the command."""
MODELS_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields that a model may have a default for. The default of the length is always the command's own."""


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of sampling and those of guided decoding to a command."""
    return add_options(Door.RUN, SAMPLING)(add_options(Door.RUN, GUIDED, prefix=PREFIX)(command))


@dataclass(frozen=True)
class AskedParams:
    """The parameters that the command's options give.

    params: the parameters for a model without defaults; sampling is greedy unless --temperature says otherwise.
    left_out: the fields that no option set and that a model may have a default for.
    """

    params: SamplingParams
    left_out: frozenset[str]

    def over(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Returns the parameters with the model's defaults (LLM.sampling_defaults) in the fields of left_out. If the
        defaults say how tokens are drawn, sampling is not greedy."""
        from tensorwright.runtime.requests.generation_defaults import shapes_distribution, with_defaults

        drawn = {"temperature": 1.0} if shapes_distribution(defaults) else {}
        fitting = with_defaults({"beam_width": self.params.beam_width}, drawn | {**defaults})
        return replace(self.params, **{name: value for name, value in fitting.items() if name in self.left_out})


def take_params(options: dict[str, Any]) -> AskedParams:
    """Removes the options of `request_options` from `options`, and returns their parameters."""
    from tensorwright.runtime.requests.sampling_params import SamplingParams

    guided = take_guided(options)
    given = take(options, Door.RUN, SAMPLING)
    given["early_stopping"] = EARLY_STOPPING[given["early_stopping"]]
    left_out = frozenset(field for field in MODELS_FIELDS if given[field] is None)
    fields = {"temperature": 0.0} | {field: value for field, value in given.items() if field not in left_out}
    return AskedParams(SamplingParams(guided_decoding=guided, **fields), left_out)


def take_guided(options: dict[str, Any]) -> GuidedDecodingParams | None:
    """Removes the options of guided decoding from `options`, and returns their parameters, or None if none was given.
    Raises click.UsageError if several were given that exclude each other."""
    from tensorwright.runtime.guided.params import KINDS, GuidedDecodingParams

    given = take(options, Door.RUN, GUIDED, prefix=PREFIX)
    asked = {field: value for field, value in given.items() if value not in (None, False, ())}
    kinds = [field for field in asked if field in KINDS]
    if len(kinds) > 1:
        names = " and ".join(find(GUIDED, field).shown(Door.RUN).flag for field in kinds)
        raise click.UsageError(f"one of them at most: {names}")
    return GuidedDecodingParams(**asked) if asked else None
