"""build-engine --target tensorrt-rtx, whole: files, manifest, layer list, report, the same bytes again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from support.tensorrt_jobs import needs_rtx
from tensorwright.builder.emit.tensorrt.layers import Layer
from tensorwright.builder.target import tensorrt
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE, KvLayer, Manifest, Range
from tensorwright.errors import BuildError, InvalidOptionError, KernelError

pytestmark = needs_rtx
LLAMA = {"AddRmsNorm": 4, "PagedAttention": 2, "RmsNorm": 1, "RotaryKvWrite": 2}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def manifest_of(result) -> Manifest:
    return Manifest.from_json((result.path / MANIFEST_FILE).read_text())


def test_an_engine_is_a_plan_and_its_manifest(engines):
    result = engines.get()
    names = sorted(str(path.relative_to(result.path)) for path in result.path.rglob("*") if path.is_file())
    assert [name for name in names if "/" in name] == [MANIFEST_FILE, ENGINE_FILE]
    assert set(result.config["sizes"]) == set(names) - {"config.json", "checksums.txt", "build-report.json"}
    assert result.config["build_options"]["sm"] == (89,)
    assert result.config["limits"]["kv_block_bytes"] == 2 * 2 * 2 * 32 * 16 * 2


def test_the_manifest_says_what_the_engine_takes(engines):
    manifest = manifest_of(engines.get())
    assert (manifest.flavour, manifest.sms, manifest.kernel_sms) == ("tensorrt-rtx", (89,), (89,))
    assert (manifest.dtype, manifest.kv_dtype, manifest.block_size) == ("bfloat16", "bfloat16", 32)
    assert manifest.layers == (KvLayer(0, 2, 16),) * 2
    assert manifest.plugins == dict.fromkeys(LLAMA, "1")
    assert manifest.profiles[0].symbols["tokens"] == Range(1, 1024, 2048)
    assert manifest.profiles[1].symbols["tokens"] == Range(1, 32, 64)
    assert {tensor.alias for tensor in manifest.outputs} == {None, "k_pages.0", "v_pages.0", "k_pages.1", "v_pages.1"}


def test_the_report_shows_plugins_and_no_copy_of_the_cache(engines):
    result = engines.get()
    notes = json.loads((result.path / "build-report.json").read_text())["tensorrt"]
    assert notes["layers"]["plugins"] == LLAMA
    assert notes["layers"]["page_copies"] == 0
    assert notes["plan_bytes"] == (result.path / ENGINE_FILE).stat().st_size
    assert 10_000 < notes["kernel_bytes"] < notes["plan_bytes"]
    assert 50e6 < notes["peak_memory_bytes"]["anonymous"] < 400e6
    assert str(result.path.parent) not in json.dumps(notes)


MAY_DIFFER = ("rank0.engine", "checksums.txt", "build-report.json")
MOST_DIFFERING = 0.01
"""Of a plan's bytes: numbers of what is unknown at build time, given out in the order in which threads meet."""


def test_a_rebuild_by_another_process_differs_in_numbers_of_unknown_sizes_alone(engines):
    """Often not even in these; docs/tensorrt.md says more. Every other file has the same bytes."""
    first, second = engines.get(), engines.get(again=1)
    assert first.path != second.path
    if not second.report["tensorrt"]["fixed_addresses"]:
        pytest.skip("this sandbox does not let a process fix its addresses, which the order in a plan depends on")
    one, other = (np.fromfile(each.path / ENGINE_FILE, np.uint8) for each in (first, second))
    assert len(one) == len(other)
    assert np.count_nonzero(one != other) <= MOST_DIFFERING * len(one)
    others = [file for file in (first.path).rglob("*") if file.is_file() and file.name not in MAY_DIFFER]
    assert len(others) > 4
    for file in others:
        assert digest(file) == digest(second.path / file.relative_to(first.path))


def test_a_rebuild_hands_over_what_a_build_does(tiny, tmp_path, monkeypatch):
    """The same job and the same bytes of the ONNX model: what differs in the plan, TensorRT's threads have done."""
    from tensorwright import build
    from tensorwright.builder.rebuild import rebuild

    handed: list[tuple] = []

    def note(job, library, advance, *, folder):
        handed.append((job.to_line(), digest(folder / "model.onnx"), digest(folder / "model.onnx.data")))
        raise BuildError("noted")

    monkeypatch.setattr(tensorrt, "run_child", note)
    keeper = build(tiny, tmp_path / "keeper", keep_weights=True, accuracy="none", dtype="bfloat16")
    options = {"target": "tensorrt-rtx", "sm": (80, 89), "quantize": "int4"}
    with pytest.raises(BuildError, match="noted"):
        build(tiny, tmp_path / "built", accuracy="none", dtype="bfloat16", **options)
    with pytest.raises(BuildError, match="noted"):
        rebuild(keeper.path, keeper.engine_config, tmp_path / "rebuilt", **options)
    assert handed[0] == handed[1]


@pytest.mark.parametrize(
    ("options", "plugins"),
    [
        ({"quantize": "int4", "max_batch_size": 2, "max_num_tokens": 16}, LLAMA),
        ({"quantize": "int4", "dtype": "float32"}, LLAMA),  # float32 scales, which are negative in many groups
        ({"quantize": "fp8"}, LLAMA),
        ({"quantize": "int4", "int4_kernel": "plugin"}, {**LLAMA, "WeightOnlyLinear": 9}),
    ],
    ids=["int4", "int4 and float32", "fp8", "int4 by our plugin"],
)
def test_quantized_weights_build(engines, options, plugins):
    result = engines.get(**options)
    assert result.report["tensorrt"]["layers"]["plugins"] == plugins
    most = {"tokens": options.get("max_num_tokens", 2048), "seqs": options.get("max_batch_size", 64)}
    assert {symbol: manifest_of(result).limit(symbol) for symbol in most} == most
    assert result.config["quantization"]["spec"].startswith(f"{options['quantize']}")
    assert ",embedding=none," in result.config["quantization"]["spec"]


def test_each_rank_has_a_plan_and_a_manifest_of_its_own(engines):
    """Two ranks in each of two stages: the library takes what ranks do together as layers of our plugins."""
    result = engines.get(tensor_parallel=2, pipeline_parallel=2, accuracy="quick")
    assert result.config["accuracy"]["measured_on"] == "graph interpreter, as one rank"
    manifests = []
    for rank in range(4):
        names = sorted(path.name for path in (result.path / f"rank{rank}").iterdir())
        assert names == ["graph.txt", "io.json", "tensorrt.engine"]
        manifests.append(Manifest.from_json((result.path / f"rank{rank}" / "io.json").read_text()))
    assert not (result.path / "tensorrt").exists()
    plugins = [rank["layers"]["plugins"] for rank in result.report["ranks"]]
    assert plugins[0] == plugins[1]
    assert plugins[2] == plugins[3]
    assert plugins[0].items() >= {"AllReduce": 3, "PagedAttention": 1, "Send": manifests[0].sends}.items()
    assert plugins[2].items() >= {"AllGather": 1, "AllReduce": 2, "Receive": manifests[0].sends}.items()
    assert [manifest.sends for manifest in manifests[2:]] == [None, None]
    assert [layer.kv_heads for manifest in manifests for layer in manifest.layers] == [1] * 4
    assert result.config["limits"]["kv_block_bytes"] == 2 * 32 * 16 * 2  # one head of K and V, of one layer
    assert result.config["build_options"]["tensor_parallel"] == result.config["build_options"]["pipeline_parallel"] == 2


def test_a_stage_without_a_layer_of_each_cache_is_refused_by_name(tmp_path):
    from support.tiny_models import make_variant
    from tensorwright import build

    model = make_variant(tmp_path / "model", "gemma3", head_dim=16)
    options = {"target": "tensorrt-rtx", "sm": [89], "accuracy": "none", "pipeline_parallel": 2}
    with pytest.raises(InvalidOptionError, match=r"the stage of rank \d has no layer with a cache of (window|full)"):
        build(model, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_sinks_stay_float32_beside_half_operands(tmp_path):
    """As the family keeps them: TensorRT takes the plugin with both types."""
    from support.tiny_models import make_tiny
    from tensorwright import build

    model = make_tiny(tmp_path / "flint", "flint", head_dim=16)
    result = build(model, tmp_path / "out", target="tensorrt-rtx", accuracy="quick", dtype="float16", sm=[75, 89])
    assert result.report["tensorrt"]["layers"]["plugins"]["PagedAttention"] == 2
    assert (
        result.config["accuracy"]["largest_logit_error"] < 0.01 * result.config["accuracy"]["largest_reference_logit"]
    )


def test_the_accuracy_record_is_the_interpreters_and_says_so(engines):
    record = engines.get(accuracy="quick", quantize="int4").config["accuracy"]
    assert record["measured_on"] == "graph interpreter"
    assert 0 < record["largest_logit_error"] < record["largest_reference_logit"]


def test_a_copy_of_the_cache_fails_the_build(engines, tiny, tmp_path, monkeypatch):
    parse = tensorrt.parse_layers

    def with_a_copy(text):
        return [*parse(text), Layer("copy", "NoOp", ("k_pages.0",), ("copied",), ())]

    monkeypatch.setattr(tensorrt, "parse_layers", with_a_copy)
    with pytest.raises(BuildError, match=r"would copy the KV cache in every step: layer 'copy' \(NoOp\)"):
        engines.get(again=2)
    assert not list(engines.folder.glob("xxx/*"))


def test_a_refusal_of_a_plugin_comes_through(tmp_path, tiny):
    from support.tiny_models import make_tiny
    from tensorwright import build

    narrow = make_tiny(tmp_path / "narrow", "llama", head_dim=8)
    with pytest.raises(KernelError, match="head_dim must be 16 to 256, got 8"):
        build(narrow, tmp_path / "out", target="tensorrt-rtx", accuracy="none", dtype="bfloat16", sm=[89])
    assert not (tmp_path / "out").exists()
