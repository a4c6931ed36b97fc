"""Explanations: every known optimization has a row, and the rows tell the truth about engines of several kinds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.places import ROOT
from tensorwright.errors import EngineError
from tensorwright.insight.devices.device import Device, platforms
from tensorwright.insight.explain import explain as module
from tensorwright.insight.explain import of_the_graph
from tensorwright.insight.explain.engine_view import EngineView
from tensorwright.insight.explain.explain import Explanation, as_dict, explain, what_next
from tensorwright.insight.explain.finding import Finding, Status, Worth
from tensorwright.insight.explain.show import worth_text
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine.engine_dir import open_engine

PEAKS = {"float32": 1e11, "bfloat16": 2e11, "int8": 4e11}
SLOW = Device("a made one", platforms()["x86"], 64 << 30, 10e9, PEAKS, "made up for tests")


@pytest.fixture(autouse=True)
def _made_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_here", lambda threads, linked=False: (SLOW, 2))


def rows(explanation: Explanation) -> dict[str, Finding]:
    found = {finding.name: finding for finding in explanation.findings}
    assert len(found) == len(explanation.findings)
    return found


def test_pico(pico_engine: Path) -> None:
    found = rows(explain(pico_engine))
    done = {name for name, finding in found.items() if finding.status is Status.DONE}
    assert {
        "flash attention",
        "grouped heads (GQA, MQA)",
        "one product for q, k and v",
        "one product for gate and up",
        "activation inside the product",
        "RMSNorm as one operation",
        "residual sums inside norms",
        "rotary inside the write of the cache",
        "one table for embedding and lm_head",
        "in-flight batching",
        "paged KV cache",
        "prefix reuse",
        "chunked prefill",
        "16 bits for weights and activations",
    } <= done
    assert found["flash attention"].detail == "8 attentions"
    assert found["grouped heads (GQA, MQA)"].detail == "8 layers, 3 heads to each"
    assert found["latent attention (MLA)"].status is Status.NOT_APPLICABLE
    assert found["caches of windows"].status is Status.NOT_APPLICABLE
    assert found["weights in int4"].status is Status.LOSSY
    assert found["tensor parallel"].status is Status.NOT_HERE
    assert not [name for name, finding in found.items() if finding.status is Status.MISSED]


def test_what_is_done_brings_something(pico_engine: Path) -> None:
    for name, finding in rows(explain(pico_engine)).items():
        if finding.status is Status.DONE and finding.worth is not None:
            worth = finding.worth
            factors = [f for f in (worth.decode, worth.batch, worth.prefill) if f is not None]
            assert all(factor >= 0.999 for factor in factors), name
            assert worth.bytes >= 0, name


def test_worths_follow_the_bytes(pico_engine: Path) -> None:
    """A decode step of an engine that waits for memory takes as long as its bytes."""
    found = rows(explain(pico_engine))
    four, eight = found["weights in int4"].worth, found["weights in w8a8"].worth
    assert 1.2 < eight.decode < 2.0 < four.decode < 4.0
    assert four.bytes > eight.bytes > 0
    assert found["16 bits for weights and activations"].worth.decode == pytest.approx(2, rel=0.2)
    cached = found["KV cache in int8"]
    assert cached.status is Status.LOSSY
    assert found["KV cache in fp8"].status is Status.NOT_HERE
    assert 1 < cached.worth.batch < 2


def test_next_are_those_worth_most(pico_engine: Path) -> None:
    explanation = explain(pico_engine)
    worths = [finding.worth.largest for finding in explanation.next]
    assert worths == sorted(worths, reverse=True)
    assert min(worths) >= module.LEAST_WORTH
    names = [finding.name for finding in explanation.next]
    assert sum(name.startswith("weights in") for name in names) == 1
    assert all(finding.advice for finding in explanation.next)
    assert not [finding for finding in explanation.next if finding.status is Status.DONE]


def test_of_equal_kinds_the_best_is_advice() -> None:
    def finding(name: str, status: Status, factor: float | None, one_of: str = "") -> Finding:
        worth = None if factor is None else Worth(decode=factor)
        return Finding(name, "numbers", "", status, "", worth, "do it", one_of=one_of)

    listed = [
        finding("weights in a", Status.LOSSY, 1.5, "weights"),
        finding("weights in b", Status.LOSSY, 2.0, "weights"),
        finding("a draft", Status.OFFERED, 1.8),
        finding("done", Status.DONE, 9.0),
        finding("little", Status.LOSSY, 1.01),
        finding("unknown", Status.OFFERED, None),
        finding("lost", Status.MISSED, None),
    ]
    assert [found.name for found in what_next(listed)] == ["weights in b", "a draft", "lost"]


@pytest.mark.slow
def test_other_kinds(engine_of: Callable[[str], Path]) -> None:
    latent = rows(explain(engine_of("deepseek_v2_experts")))
    assert latent["latent attention (MLA)"].status is Status.DONE
    assert latent["latent attention (MLA)"].worth.bytes > 0
    hybrid = rows(explain(engine_of("qwen3_5_text")))
    assert hybrid["flash attention"].status is Status.DONE
    mixture = rows(explain(engine_of("qwen3_moe")))
    assert mixture["expert parallel"].status is Status.NOT_HERE
    for found in (latent, hybrid, mixture):
        assert not [name for name, finding in found.items() if finding.status is Status.MISSED]


def test_another_target(pico_engine_onnx: Path) -> None:
    explanation = explain(pico_engine_onnx)
    found = rows(explanation)
    assert explanation.seconds == {}
    assert found["flash attention"].status is Status.DONE
    assert found["flash attention"].worth is None
    assert found["prefix reuse"].status is Status.NOT_HERE
    assert found["packed weights"].status is Status.NOT_HERE


def test_heads_and_caches_that_are_there(pico_heads_engine: Path, pico_engine_int8_kv: Path) -> None:
    heads = rows(explain(pico_heads_engine))["speculation: heads (EAGLE-3, Medusa, MTP)"]
    assert heads.detail.startswith("eagle3 heads are built in")
    cache = rows(explain(pico_engine_int8_kv))
    assert cache["KV cache in int8"].status is Status.DONE
    assert cache["KV cache in int8"].worth.batch > 1
    assert cache["KV cache in int4"].status is Status.LOSSY


def test_a_miss_names_the_closest_match(pico_engine: Path) -> None:
    view = EngineView.of(open_engine(pico_engine), SLOW)
    view.graph.nodes  # noqa: B018 - the graph is parsed and kept
    found = of_the_graph._finding(
        view, "a rewrite", "about", wanted=8, got=7, why_not="", worth=None, miss="fuse_swiglu", what="MLPs"
    )
    assert found.status is Status.MISSED
    assert found.detail.startswith("7 of 8 MLPs; closest match: ")


def test_pages_exist() -> None:
    """Every page that a row names is there."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "insight" / "explain").glob("*.py"))
    pages = set(re.findall(r'"(docs/[\w-]+\.md)"', sources))
    assert pages
    assert all((ROOT / page).is_file() for page in pages)


def test_words_of_worths() -> None:
    assert worth_text(None) == ""
    assert worth_text(Worth(decode=1.5, batch=1.0, prefill=2.25)) == "decode x1.50, prompt x2.25 (roofline)"
    assert worth_text(Worth(decode=1.001, how="measured")) == "less than 1 % (measured)"
    assert worth_text(Worth(bytes=2048)) == "saves 2.0 KiB"
    assert worth_text(Worth(decode=2.0, bytes=1 << 20)) == "decode x2.00 (roofline), saves 1.0 MiB"


@pytest.mark.slow
def test_measured_worths(pico_draft_engine: Path) -> None:
    found = rows(explain(pico_draft_engine, measure=True))
    for name in ("in-flight batching", "prefix reuse", "speculation: ngram, suffix"):
        worth = found[name].worth
        assert worth.how == "measured"
        assert worth.largest > 0


def test_the_command(pico_engine: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(cli, ["explain", str(pico_engine), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.output) == json.loads(json.dumps(as_dict(explain(pico_engine))))
    shown = CliRunner().invoke(cli, ["explain", str(pico_engine)]).output
    assert "What to do next, in order of worth" in shown
    assert "flash attention" in shown
    other = json.loads(CliRunner().invoke(cli, ["explain", str(pico_engine), "--device", "h100", "--json"]).output)
    assert other["device"]["name"] == "NVIDIA H100 SXM"
    assert CliRunner().invoke(cli, ["explain", str(tmp_path)]).exit_code != 0
    with pytest.raises(EngineError):
        explain(tmp_path)
