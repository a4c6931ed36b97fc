"""Every family of the registry: each rewrite fires as often as expected there, and none of them changes the numbers."""

from __future__ import annotations

import itertools

import pytest
from transformers import CONFIG_MAPPING

from support.tiny_families import VARIANTS
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.errors import PassError
from tensorwright.models.families.latent import DENSE
from tensorwright.models.registry import _FAMILIES, Quantized, expected_counts
from tensorwright.passes.pipeline import run_pipeline
from tensorwright.passes.quantize_weights import quantize_weights
from tensorwright.passes.recognition import RECOGNITION
from tensorwright.passes.rewriting.compare import Comparison

KNOWN = [variant for variant, (family, _) in VARIANTS.items() if family in _FAMILIES]

QUICK = (
    "deepseek_v3_experts", "falcon", "gemma2", "gpt2", "granitemoehybrid_experts", "gpt_oss", "lfm2", "llama",
    "mixtral", "qwen3_next_experts",
)  # fmt: skip
"""Variants that `make check` tries, between them of every file of models/families/."""

PASS_BY_PASS = (
    *QUICK, "apertus", "bloom", "cohere", "gemma4_shared", "glm", "hunyuan_v1_dense", "kimi_linear", "llama4_text_some",
    "opt", "stablelm_head_norms", "zamba2_adapters",
)  # fmt: skip
"""Variants whose numbers are compared over each pass. Of the others the traced graph is compared with the lowered one,
within the bound of one pass."""
FIRES_ELSEWHERE = {
    "canonicalise_casts": "in bfloat16, test_pipeline.py",
    "widen_activations": "in bfloat16, test_pipeline.py",
    "eliminate_dead_nodes": "behind other passes that leave something, test_eliminate_dead_nodes.py",
    "fold_token_maps": "in models that read images too, test_fold_token_maps.py",
}
"""Passes of the recognition that none of PASS_BY_PASS needs, and where their numbers are compared."""


def report_of(model, variant):
    return model.compared if variant in PASS_BY_PASS else model.report


TRIED = [pytest.param(variant, marks=() if variant in QUICK else pytest.mark.slow) for variant in KNOWN]


def test_every_family_of_the_registry_has_a_variant():
    assert {VARIANTS[variant][0] for variant in KNOWN} == set(_FAMILIES)
    assert set(QUICK) <= set(KNOWN)


@pytest.mark.parametrize("variant", TRIED)
def test_counts_and_numbers(rewritten, variant):
    model = rewritten(variant)
    report = report_of(model, variant)
    expected = expected_counts(model.checkpoint.config)
    assert {name: report.counts[name] for name in expected} == expected
    if variant not in PASS_BY_PASS:
        comparison = Comparison(checkpoint_weights(model.checkpoint))
        comparison.check(model.traced, "trace", lossy=False)
        comparison.check(report.graph, "all", lossy=False)


@pytest.mark.slow
def test_the_numbers_are_compared_over_each_pass_that_fires(rewritten):
    fired = {name for variant in PASS_BY_PASS for name, count in rewritten(variant).compared.counts.items() if count}
    assert {step.name for phase in RECOGNITION for step in phase.steps} - fired == FIRES_ELSEWHERE.keys()


@pytest.mark.parametrize("family", sorted({"deepseek_v2", *DENSE}))
def test_dense_layers_that_config_json_does_not_give_are_those_of_the_class(family):
    config = CONFIG_MAPPING[family](num_hidden_layers=6)
    kinds = getattr(config, "mlp_layer_types", None)
    dense = kinds.count("dense") if kinds else config.first_k_dense_replace
    assert expected_counts({"model_type": family, "num_hidden_layers": 6})["recognise_router"] == 6 - dense


@pytest.mark.parametrize("variant", TRIED)
def test_every_matrix_of_a_family_is_quantized(rewritten, variant):
    model = rewritten(variant)
    graph = report_of(model, variant).cached_graph.clone()
    graph.facts.quantize = parse_spec("int8")
    expected = expected_counts(model.checkpoint.config, Quantized(True, True, True))
    count = quantize_weights(graph)
    assert count == expected.get("quantize_weights", count)
    tables = [node for node in graph.find("embedding") if node.inputs[1].name != "positions"]
    users = graph.users()
    routers = [node for node in graph.find("linear") if [user.op for user in users[node.output]] == ["route"]]
    assert list(graph.find("linear")) == routers
    assert not [*tables, *graph.find("experts")]
    routes = expected.get("recognise_router", 0) + expected.get("recognise_gated_expert", 0)
    assert len(routers) == len(list(graph.find("quantized_experts"))) == routes


@pytest.mark.parametrize(("layers", "embedding", "head"), [*itertools.product([False, True], repeat=3)])
def test_what_is_not_asked_for_is_not_expected(rewritten, layers, embedding, head):
    model = rewritten("llama_tied")
    names = ["int8" if asked else "none" for asked in (layers, embedding, head)]
    graph = model.report.cached_graph.clone()
    graph.facts.quantize = parse_spec("{},embedding={},lm_head={}".format(*names))
    expected = expected_counts(model.checkpoint.config, Quantized(layers, embedding, head))
    assert quantize_weights(graph) == expected["quantize_weights"] == 8 * layers + embedding + head


@pytest.mark.parametrize("variant", ["gemma2"])
def test_a_miss_is_named(rewritten, variant):
    model = rewritten(variant)
    expected = expected_counts(model.checkpoint.config)
    for name, count in expected.items():
        with pytest.raises(PassError, match=f"pass {name} must rewrite {count + 1} times in this model"):
            run_pipeline(model.traced, expectations={name: count + 1})
