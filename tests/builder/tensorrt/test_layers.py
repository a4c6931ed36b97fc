"""TensorRT's list of layers: read, and what it must show of pages and plugins. The lines are TensorRT for RTX 1.7's."""

from __future__ import annotations

import pytest

from tensorwright.builder.emit.tensorrt.layers import Layer, check_pages, check_plugins, count_kinds, parse_layers
from tensorwright.errors import BuildError


def tensor(name: str, *, brief: bool = False) -> str:
    if brief:
        return (
            f"{{ Name: {name}, Location: Device, Dimensions: [-1,16], Datatype: Half, Format: Format not available }}"
        )
    form = "Strides: [16,1], StrideOrder: [1,0], Datatype: Half, Format: (Linear) Row major linear format"
    return f"{{ Name: {name}, Dimensions: [-1,16], {form} }}"


def line(name: str, kind: str, inputs=(), outputs=(), nodes=()) -> str:
    metadata = "".join(f"[ONNX Layer: {node}]" for node in nodes)
    tail = f"StreamId: 0, Metadata: {metadata}"
    if kind in ("PluginV3", "NoOp"):
        ins, outs = (", ".join(tensor(n, brief=True) for n in names) for names in (inputs, outputs))
        return f"Name: {name}, LayerType: {kind}, Inputs: [ {ins}], Outputs: [ {outs}], TacticValue: 0x0, {tail}"
    ins, outs = (", ".join(map(tensor, names)) for names in (inputs, outputs))
    weights = tensor("w_constantHalf_myl0")
    constants = f"Constants: [ {weights}]"
    return f"Name: {name}, LayerType: {kind}, Inputs: [ {ins}], {constants}, Outputs: [ {outs}], TacticName: , {tail}"


WRITE = ("l0/write", "PluginV3", ("qkv", "k_pages.0"), ("q", "k_pages_out.0"), ("l0/write",))
ATTEND = ("l0/attn_myl4_1", "custom_layer", ("q", "k_pages_out.0"), ("attended",), ("l0/attn",))
GEMM = ("l0/qkv_myl4_2", "gemm", ("x",), ("qkv",), ("l0/qkv", "l0/cast"))


def in_profile_1(layer):
    name, kind, inputs, outputs, nodes = layer
    marked = [tuple(f"{n} [profile 1]" for n in names) for names in (inputs, outputs)]
    return (f"{name} [profile 1]", kind, *marked, nodes)


def text(*layers) -> str:
    lines = [line(*layer) for layer in (*layers, *map(in_profile_1, layers))]
    return "\n".join(["Layers:", *lines, "", "I/O Tensors:", " Name: k_pages.0, IOMode: Input"])


def layers_of(*layers) -> list[Layer]:
    return parse_layers(text(*layers))


def test_every_field_is_read():
    first, *others = layers_of(WRITE, ATTEND, GEMM)
    assert first == Layer(*WRITE)
    assert others[:2] == [Layer(*ATTEND), Layer(*GEMM)]
    assert len(others) == 5
    assert others[2].inputs == ("qkv [profile 1]", "k_pages.0 [profile 1]")
    assert count_kinds([first, *others]) == {"PluginV3": 2, "custom_layer": 2, "gemm": 2}


def test_layers_without_tensors_are_read():
    assert parse_layers(
        "Layers:\nName: a, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: ,"
    ) == [Layer("a", "shape_call", (), (), ())]


@pytest.mark.parametrize(
    ("given", "message"), [("Layers:\n", "is empty"), ("Layers:\nName: a, Type: b", "not understood: N")]
)
def test_a_list_that_cannot_be_read_proves_nothing(given, message):
    with pytest.raises(BuildError, match=message):
        parse_layers(given)


PAGES = {"k_pages.0": "k_pages_out.0"}


def test_pages_that_only_plugins_touch_are_in_place():
    check_pages(layers_of(WRITE, ATTEND, GEMM), PAGES, 2)


@pytest.mark.parametrize(
    "copy",
    [
        ("copy of k_pages.0", "NoOp", ("k_pages.0",), ("Reformatted k_pages.0",), ()),
        ("out", "kgen", ("cache",), ("k_pages_out.0",), ()),
        ("between", "runtime_fusion", ("k_pages_out.0",), ("pages as float",), ()),
    ],
)
def test_a_layer_between_the_pages_is_a_build_error(copy):
    with pytest.raises(BuildError, match=r"would copy the KV cache in every step: layer .* touches k_pages"):
        check_pages(layers_of(WRITE, copy, ATTEND), PAGES, 2)


@pytest.mark.parametrize(
    "layers", [(ATTEND, GEMM), (("write", "PluginV3", ("copied",), ("k_pages_out.0",), ()), ATTEND)]
)
def test_pages_that_no_plugin_updates_are_a_build_error(layers):
    with pytest.raises(BuildError, match="none does: k_pages_out"):
        check_pages(layers_of(*layers), PAGES, 2)


def test_pages_updated_in_one_profile_only_are_a_build_error():
    with pytest.raises(BuildError, match="in each of the 2 profiles"):
        check_pages(parse_layers("\n".join(line(*one) for one in (WRITE, ATTEND))), PAGES, 2)


NODES = {"l0/write": "RotaryKvWrite", "l0/attn": "PagedAttention"}


def test_every_plugin_node_is_one_layer():
    assert check_plugins(layers_of(WRITE, ATTEND, GEMM), NODES, 2) == {"PagedAttention": 1, "RotaryKvWrite": 1}


@pytest.mark.parametrize("layers", [(WRITE, GEMM), (WRITE, ATTEND, ATTEND)])
def test_a_plugin_that_is_missing_or_twice_there_is_a_build_error(layers):
    with pytest.raises(BuildError, match="l0/attn is"):
        check_plugins(layers_of(*layers), NODES, 2)
