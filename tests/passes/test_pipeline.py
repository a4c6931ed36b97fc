"""The pipeline: order, verification, expectations, comparison, dumps, and errors that say where they happened."""

import dataclasses
import re

import pytest
import torch

from support.pass_graphs import ops
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.errors import GraphError, InvalidOptionError, LoweringError, PassError, UnsupportedModelError
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.passes.fuse_swiglu import fuse_swiglu
from tensorwright.passes.pipeline import PIPELINE, Phase, Step, check_order, run_pipeline
from tensorwright.passes.rewriting.matcher import apply, pattern


def with_step(run, after, **options):
    """The pipeline with one more pass behind the first run of `after`."""
    phases, done = [], False
    for phase in PIPELINE:
        steps = []
        for step in phase.steps:
            steps.append(step)
            if step.name == after and not done:
                steps.append(Step(run, "for the test", **options))
                done = True
        phases.append(dataclasses.replace(phase, steps=tuple(steps)))
    return tuple(phases)


def without(name):
    return tuple(dataclasses.replace(p, steps=tuple(s for s in p.steps if s.name != name)) for p in PIPELINE)


def test_every_step_says_why_and_the_order_holds():
    check_order(PIPELINE)
    assert all(step.why for phase in PIPELINE for step in phase.steps)
    names = [step.name for phase in PIPELINE for step in phase.steps]
    assert names[-1] == "plan_memory"


def test_a_wrong_order_is_refused():
    fuse = Step(lambda graph: 0, "x", after=("later",))
    with pytest.raises(PassError, match="must come after later"):
        check_order((Phase("p", "traced", (fuse,)),))
    with pytest.raises(PassError, match="canonicalise_masks must come before recognise_masks"):
        check_order(without("recognise_masks"))
    with pytest.raises(PassError, match="must come before fuse_swiglu"):
        check_order(without("fuse_swiglu"))


def test_the_traced_graph_stays_and_both_graphs_come_back(model):
    text = print_graph(model.traced)
    report = run_pipeline(model.traced)
    assert print_graph(model.traced) == text
    assert (report.graph.stage, report.cached_graph.stage) == ("lowered", "cached")
    assert print_graph(parse_graph(print_graph(report.cached_graph))) == print_graph(report.cached_graph)
    assert print_graph(parse_graph(print_graph(report.graph))) == print_graph(report.graph)
    assert list(report.counts) == list(report.seconds)
    assert report.counts == model.report.counts


def test_the_same_graph_gives_the_same_text(model):
    assert print_graph(run_pipeline(model.traced).graph) == print_graph(model.report.graph)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_verify_compares_every_pass(rewritten, dtype):
    model = rewritten("qwen2", dtype)
    report = run_pipeline(model.traced, verify=True, weights=checkpoint_weights(model.checkpoint))
    assert list(report.differences) == list(report.counts)
    lossy = {name for name, value in report.differences.items() if value > 1e-3}
    assert lossy == ({"widen_activations", "lower_to_cpu"} if dtype == "bfloat16" else set())


def test_verify_catches_a_pass_that_changes_the_numbers(model):
    def halve_epsilon(graph):
        for node in graph.find("rms_norm"):
            node.attrs["eps"] *= 100
        return len(graph.find("rms_norm"))

    weights = checkpoint_weights(model.checkpoint)
    pipeline = with_step(halve_epsilon, "recognise_rms_norm")
    with pytest.raises(PassError, match="pass halve_epsilon changed the numbers"):
        run_pipeline(model.traced, verify=True, weights=weights, pipeline=pipeline)
    run_pipeline(model.traced, pipeline=pipeline)


@pytest.mark.parametrize("wanted", ["rms_norm", "causal_conv"])
def test_a_pass_runs_on_graphs_that_have_what_it_is_for(model, wanted):
    pipeline = with_step(lambda graph: 7, "recognise_rms_norm", only_if=lambda graph: bool(graph.find(wanted)))
    assert run_pipeline(model.traced, pipeline=pipeline).counts["<lambda>"] == (7 if wanted == "rms_norm" else 0)


def test_a_pass_that_breaks_the_graph_is_named_with_those_before_it(model):
    def break_it(graph):
        graph.find("rms_norm")[0].attrs["epsilon"] = 1.0
        return 1

    with pytest.raises(PassError) as error:
        run_pipeline(model.traced, pipeline=with_step(break_it, "recognise_rms_norm"))
    text = str(error.value)
    assert re.match(r"pass break_it \(number \d+, after widen_activations, canonicalise_casts,", text)
    assert "rms_norm has no epsilon" in text
    underlined = next(line for line in text.splitlines() if line.strip() == "^" * len("rms_norm"))
    above = text.splitlines()[text.splitlines().index(underlined) - 1]
    assert above[underlined.index("^") :].startswith("rms_norm(")


def test_a_miss_says_what_was_expected_and_the_closest_match(model):
    graph = model.traced.clone()
    for node in graph.nodes:
        if node.op == "silu":
            node.op = "tanh"
    with pytest.raises(PassError, match=r"fuse_gate_up must rewrite 2 times in this model, and rewrote 0; closest"):
        run_pipeline(graph, expectations={"fuse_gate_up": 2})
    with pytest.raises(PassError, match=r"recognise_attention must rewrite 3 times in this model, and rewrote 2"):
        run_pipeline(model.traced, expectations={"recognise_attention": 3})
    run_pipeline(model.traced, expectations={"canonicalise_shapes": model.count("canonicalise_shapes")})


def test_what_cannot_be_lowered_names_node_module_and_closest_match(model):
    """A gated unit with another activation has no kernel here."""
    graph = model.traced.clone()
    for node in graph.nodes:
        if node.op == "silu":
            node.op = "sin"
    with pytest.raises(LoweringError) as error:
        run_pipeline(graph)
    text = str(error.value)
    assert "pass lower_to_cpu" in text
    assert "model.layers.0.mlp" in text
    assert "closest partial match: " in text
    assert "  ^^^" in text


def test_a_model_that_rotates_only_queries_is_refused_by_name(model):
    def unrotate(graph):
        keys = pattern("k = rotary(x, table)\nout = attention(q, k, v)", outputs=["k"])
        return apply(graph, keys, None, lambda m, g: m.x)

    with pytest.raises(UnsupportedModelError, match=r"insert_kv_cache: %\S+ \(attention .* must read q and k, both"):
        run_pipeline(model.traced, pipeline=with_step(unrotate, "fuse_qkv"))


def test_dump_and_progress(model, tmp_path):
    seen = []
    run_pipeline(model.traced, dump=tmp_path / "d", progress=lambda name, count, seconds: seen.append((name, count)))
    files = sorted(p.name for p in (tmp_path / "d").iterdir())
    assert len(files) == len(seen)
    assert files[0] == "01_widen_activations.txt"
    assert seen[-1] == ("plan_memory", 22)
    last = parse_graph((tmp_path / "d" / files[-1]).read_text())
    assert ops(last) == ops(model.report.graph)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"verify": True}, "verify needs weights"),
        ({"expectations": {"fuse_everything": 1}}, "no pass is called fuse_everything; there are "),
    ],
)
def test_wrong_options(model, options, reason):
    with pytest.raises(InvalidOptionError, match=reason):
        run_pipeline(model.traced, **options)


def test_an_illegal_trace_is_refused_before_any_pass(model):
    graph = model.traced.clone()
    graph.nodes[5].attrs["nonsense"] = 1
    with pytest.raises(PassError, match="as the first pass"):
        run_pipeline(graph)
    assert issubclass(PassError, GraphError)
    assert torch.is_grad_enabled()


def test_passes_count_only_rewrites(model):
    graph = model.report.cached_graph.clone()
    assert fuse_swiglu(graph) == 0
