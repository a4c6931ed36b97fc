"""Says for each model family how often every rewrite must fire, per layer and once per model.

A family without an entry has the expectations of any decoder. A pass that is not named has no expectation. For
quantize_weights, a family's table counts every matrix that can be quantized; a build quantizes all of them or some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tensorwright.errors import CheckpointError
from tensorwright.models.families.dense import DENSE
from tensorwright.models.families.expected import MATRICES, Expected
from tensorwright.models.families.latent import LATENT
from tensorwright.models.families.mixtures import MIXTURES
from tensorwright.models.families.recurrent import RECURRENT


class Quantized(NamedTuple):
    """The matrices of a model that a build quantizes."""

    layers: bool = False
    embedding: bool = False
    lm_head: bool = False


NOTHING = Quantized()

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""The words for the number of layers in config.json, the usual one first."""


class Traced(NamedTuple):
    """What a trace holds, for families that are not registered: every family has its own words for it in its config.

    attentions: the softmaxes over the positions of a sequence. recurrences: the operations that carry a state.
    mixtures: the mixtures of experts.
    """

    attentions: int = 0
    recurrences: int = 0
    mixtures: int = 0


def _any_decoder(config: dict[str, Any]) -> dict[str, Expected]:
    """Returns the expectations of every decoder: each layer attends once and writes its cache once.

    `expected_counts` counts in the trace what mixtures and recurrent layers make different.
    """
    return {"recognise_attention": Expected(1), "insert_kv_cache": Expected(1)}


_FAMILIES = {**DENSE, **LATENT, **MIXTURES, **RECURRENT}


def registered() -> dict[str, Callable[[dict[str, Any]], dict[str, Expected]]]:
    """Returns by model_type the function that gives the expectations. The function's docstring describes the family."""
    return dict(_FAMILIES)


def expectations(config: dict[str, Any], quantized: Quantized = NOTHING) -> dict[str, Expected]:
    """Returns how often each pass must fire, by the pass's name.

    config: the content of config.json. quantized: the matrices that the build quantizes. Raises CheckpointError if the
    config does not name its family.
    """
    family = config.get("model_type")
    if not isinstance(family, str):
        raise CheckpointError(f"config.json: model_type must name the model's family, not {family!r}")
    expected = _FAMILIES.get(family, _any_decoder)(config)
    if "quantize_weights" in expected:
        every = expected["quantize_weights"]
        in_some_layers = every.constant - MATRICES.constant
        layers = Expected(every.per_layer, in_some_layers) if quantized.layers else Expected()
        tables = quantized.embedding + quantized.lm_head
        expected["quantize_weights"] = Expected(layers.per_layer, layers.constant + tables)
    return expected


def expected_counts(
    config: dict[str, Any], quantized: Quantized = NOTHING, layers: int | None = None, traced: Traced | None = None
) -> dict[str, int]:
    """Returns the `expectations` as whole numbers.

    config: the config of the model's text part. layers: the layers that the graph has; None means those of the config.
    traced: what the trace holds, for families that are not registered. Every mixture must have a route. In a model with
    recurrences, which not all layers need have, every attention of the trace must be recognised, and every recurrence
    and attention must get a cache. Raises CheckpointError if the config does not give the number of layers.
    """
    name = next((name for name in LAYER_COUNTS if name in config), LAYER_COUNTS[0])
    if layers is None:
        kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern") or ()
        layers = config.get(name) or len(kinds)  # some configs say the kind of every layer, and not how many there are
    if not isinstance(layers, int) or layers < 1:
        raise CheckpointError(f"config.json: {name} must be a positive number, not {layers!r}")
    counts = {name: expected.count(layers) for name, expected in expectations(config, quantized).items()}
    if config["model_type"] in _FAMILIES or traced is None:
        return counts
    if traced.recurrences:
        attentions = traced.attentions
        counts.update(recognise_attention=attentions, insert_kv_cache=attentions + traced.recurrences)
    return {**counts, "recognise_router": traced.mixtures}
