"""TensorRT's parser and builder take our plugins: types, SMs, aliased pages, kernels inside the plan, errors."""

from __future__ import annotations

import re
import zlib
from typing import Any

import pytest

from support.plugin_builds import Built, PluginBuilds, may_keep_addresses
from support.plugin_network import Network, make_network
from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.creators import OPS

MAIN = Network(group=0)
SMS = [80, 120]
NETWORKS = {
    "bfloat16": Network("bfloat16", layers=1, bias=True),
    "float16": Network(layers=1),
    "float32": Network("float32", layers=1, group=0),
    "int8 pages and sinks": Network(layers=1, int8_kv=True, sinks=True, group=0),
    "no rotary": Network(layers=1, rotary_dim=0, group=0),
}
PREFILL, DECODE = ((1, 256, 512), (1, 4, 16)), ((1, 4, 8), (1, 4, 8))


def job(net: Network, sms: list[int], fault: str = "") -> dict[str, Any]:
    profiles = [net.profile(*PREFILL), net.profile(*DECODE)]
    return {"onnx": make_network(net), "sms": sms, "profiles": profiles, "fault": fault}


SMALL = Network(layers=1)
FAULTY = {
    "kernels": (SMALL, 80, "kernels"),
    "workspace_bytes": (SMALL, 80, "workspace_bytes"),
    "alias_of": (SMALL, 80, "alias_of"),
    "heads": (Network(layers=1, heads=3), 80, ""),
    "sm": (Network("bfloat16", layers=1), 75, ""),
    "no alias": (SMALL, 80, "no alias"),
}
"""Networks with something wrong: the network, the SM, what is broken on purpose."""


@pytest.fixture(scope="module")
def all_built(builds: PluginBuilds) -> dict[str, Built]:
    """All networks, in one process: TensorRT's start takes longer than a build. Kernels are compiled here."""
    good = [job(MAIN, SMS), *(job(net, [80]) for net in NETWORKS.values())]
    found = builds([*good, *(job(net, [sm], fault) for net, sm, fault in FAULTY.values())])
    return dict(zip(("main", *NETWORKS, *FAULTY), found, strict=True))


@pytest.fixture(scope="module")
def built(all_built: dict[str, Built]) -> dict[str, Built]:
    """The networks with nothing wrong."""
    return {name: plan for name, plan in all_built.items() if name not in FAULTY}


def layer_lines(plan: Built, name: str) -> list[str]:
    """Those of one ONNX node, in both profiles."""
    return [line for line in plan.layers if re.match(rf"Name: {re.escape(name)}( \[profile 1\])?(_myl\w+)?,", line)]


@pytest.mark.parametrize("name", ["main", *NETWORKS])
def test_every_type_builds_with_every_plugin_as_a_layer(built: dict[str, Built], name: str) -> None:
    plan, net = built[name], MAIN if name == "main" else NETWORKS[name]
    assert plan.error == ""
    assert plan.plan
    nodes = ["layers.0.norm", *(["head"] if net.group else [])]
    nodes += [f"layers.{i}.{part}" for i in range(net.layers) for part in ("write", "attention", "post")]
    for node in nodes:
        assert len(layer_lines(plan, node)) == 2, f"{node}: {layer_lines(plan, node)}"


def test_pages_are_written_in_place_and_nothing_else_touches_them(built: dict[str, Built]) -> None:
    for plan in built.values():
        table = plan.layers[: plan.layers.index("I/O Tensors:")]
        users = [line for line in table if re.search(r"Name: [kv]_(pages|scales)", line)]
        assert users
        for line in users:
            assert re.match(r"Name: layers\.\d\.(write|attention)", line), line
    # TensorRT keeps a plugin with aliases a layer of its own kind
    writers = [line for i in range(MAIN.layers) for line in layer_lines(built["main"], f"layers.{i}.write")]
    assert all("LayerType: PluginV3" in line for line in writers)
    assert len(writers) == 4


def test_the_plan_holds_the_kernels_of_all_sms_once_per_op(built: dict[str, Built]) -> None:
    plan = built["main"]
    found = bundles(plan)
    digests = {digest for _, _, digest, _, _ in plan.serialized}
    kernels = [op for op in OPS if op.collective is None]
    assert len(found) == len(digests) == len(kernels) - 1  # it has no WeightOnlyLinear
    for bundled in found.values():
        assert bundled.sms() == tuple(SMS)
        assert all(kernel.cubin[:4] == b"\x7fELF" for kernel in bundled.kernels.values())
    # one layer brings each set, the others name it
    for digest in digests:
        carriers = {layer for layer, _, of, is_carrier, _ in plan.serialized if of == digest and is_carrier}
        assert len(carriers) == 1


def bundles(plan: Built) -> dict[bytes, bundle.Bundle]:
    """Whole bundles in a plan, by their checksum. Where one ends only its own checksum knows."""
    found: dict[bytes, bundle.Bundle] = {}
    for match in re.finditer(re.escape(bundle.MAGIC), plan.plan):
        checksum = plan.plan[match.end() : match.end() + 32]
        if checksum not in found:
            found[checksum] = bundle.from_bytes(_cut(plan.plan[match.start() :]))
    return found


def _cut(data: bytes) -> bytes:
    head = len(bundle.MAGIC) + 32
    stream = zlib.decompressobj()
    stream.decompress(data[head:])
    return data[: len(data) - len(stream.unused_data)]


def test_the_workspace_is_that_of_the_profiles_largest_step(built: dict[str, Built]) -> None:
    (attention,) = (op for op in OPS if op.name == "PagedAttention")
    attrs = {"heads": 4, "kv_heads": 2, "head_dim": 32, "scale": 1.0, "window": 0, "softcap": 0.0}
    attrs |= {"has_sinks": 0, "int8_kv": 0, "block_size": 32}
    wanted = {attention.workspace_bytes(attrs, {"block_tables": (seqs[-1], 64)}) for _, seqs in (PREFILL, DECODE)}
    assert len(wanted) == 2
    assert {size for _, op, _, _, size in built["main"].serialized if op == "PagedAttention"} == wanted


def test_two_processes_build_nearly_the_same_bytes(builds: PluginBuilds, built: dict[str, Built]) -> None:
    """TensorRT numbers what it does not know at build time by addresses; so it gets the same ones. Where its
    threads meet in another order, some of these numbers are exchanged all the same."""
    if not may_keep_addresses():
        pytest.skip("personality(ADDR_NO_RANDOMIZE) is not allowed here")
    (first,), (second,) = (builds([job(MAIN, SMS)], same_addresses=True) for _ in range(2))
    assert first.error == ""
    assert len(first.plan) == len(second.plan)
    assert sum(a != b for a, b in zip(first.plan, second.plan, strict=True)) <= len(first.plan) // 100


def test_what_a_plugin_raises_reaches_the_builder(all_built: dict[str, Built]) -> None:
    errors = {name: all_built[name].error for name in FAULTY}
    for name in ("kernels", "workspace_bytes", "alias_of"):
        assert errors[name] == f"ValueError: broken on purpose in {name}"
    assert "3 heads must be a multiple" in errors["heads"]
    assert errors["sm"].startswith("KernelError: ")
    assert "SM 75 has no bfloat16" in errors["sm"]


def test_without_the_alias_a_writer_is_an_ordinary_layer(all_built: dict[str, Built]) -> None:
    """What the test of pages looks at does tell the difference."""
    plain = all_built["no alias"]
    assert plain.error == ""
    assert all("LayerType: PluginV3" not in line for line in layer_lines(plain, "layers.0.write"))
