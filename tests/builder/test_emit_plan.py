"""plan.bin parses back, record by record, to the graph it was made from; what cannot be emitted is refused by name."""

from __future__ import annotations

import re

import pytest

from support.lowered import HIDDEN, INNER, VOCAB, lowered_graph, small_source
from support.places import ROOT
from tensorwright.builder.emit import cpu_plan
from tensorwright.builder.emit.cpu_plan import BUFFER, HEADER, INSTRUCTION, KV_LAYER, STATE, WEIGHT, emit_cpu_plan
from tensorwright.engine_format.weight_layouts import PANELS
from tensorwright.errors import BuildError, LoweringError
from tensorwright.ir.facts import KvLayer, StateLayer
from tensorwright.plugins import op_table
from tensorwright.plugins.paged_attention.op import BUDGET


def parse(data: bytes) -> dict:
    """The tables of plan.bin, read by the counts in its header."""
    fields = HEADER.unpack_from(data)
    keys = (
        "magic version header_bytes file_bytes weights_bytes vocab_size max_seq_len block_size act_dtype kv_layers "
        "cache_groups buffers weights instructions names_bytes logits_buffer states token_arena row_arena"
    )
    header = dict(zip(keys.split(), fields, strict=True))
    at = HEADER.size
    tables = {}
    records = (
        ("kv_layers", KV_LAYER), ("states", STATE), ("buffers", BUFFER), ("weights", WEIGHT),
        ("instructions", INSTRUCTION),
    )  # fmt: skip
    for name, record in records:
        end = at + header[name] * record.size
        tables[name] = list(record.iter_unpack(data[at:end]))
        at = end
    names = data[at : at + header["names_bytes"]]
    assert at + len(names) == len(data) == header["file_bytes"]
    return {"header": header, **tables, "names": names}


def name_at(plan: dict, offset: int) -> str:
    return plan["names"][offset:].split(b"\0")[0].decode()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_header(dtype):
    emitted = emit_cpu_plan(lowered_graph(dtype), small_source())
    header = parse(emitted.data)["header"]
    assert header["magic"] == b"TWCPUPLN"
    assert header["version"] == 3
    assert header["header_bytes"] == 96
    assert header["weights_bytes"] == emitted.weights.total_bytes
    assert (header["vocab_size"], header["max_seq_len"], header["block_size"]) == (VOCAB, 64, 32)
    assert header["act_dtype"] == {"float32": 0, "bfloat16": 1}[dtype]
    assert header["logits_buffer"] == 6
    assert (header["token_arena"], header["row_arena"]) == (256, 256)
    assert header["cache_groups"] == 0


def test_instructions():
    plan = parse(emit_cpu_plan(lowered_graph(), small_source()).data)
    rows = [
        {
            "op": r[0],
            "name": name_at(plan, r[1]),
            "in": r[2:6],
            "out": r[6:8],
            "w": r[8:10],
            "ints": r[10:18],
            "f": r[18:],
        }
        for r in plan["instructions"]
    ]
    assert [r["op"] for r in rows] == [1, 4, 2, 3, 3, 7, 2, 3]
    assert [r["name"] for r in rows][::4] == ["model.embed", "model.mlp"]
    assert [r["in"] for r in rows[2:5]] == [(0, -1, -1, -1), (2, -1, -1, -1), (3, 0, -1, -1)]
    assert [r["out"] for r in rows] == [(b, -1) for b in (0, 1, 2, 3, 0, 4, 5, 6)]
    # Weights are numbered by first use: table, inv_freq, norm, gate/up and bias, down and bias; the head is the table.
    assert [r["w"] for r in rows] == [(0, -1), (1, -1), (2, -1), (3, 4), (5, 6), (-1, -1), (2, -1), (0, -1)]
    assert rows[3]["ints"] == (1, INNER, 0, 0, 0, 0, 0, 0)
    assert rows[4]["ints"][:2] == (0, HIDDEN)
    assert rows[2]["f"] == pytest.approx((1e-5, 0, 0, 0), rel=1e-7)


def test_weight_records():
    plan = parse(emit_cpu_plan(lowered_graph("bfloat16"), small_source()).data)
    records = {name_at(plan, r[6]): r for r in plan["weights"]}
    assert len(records) == 7
    # (dtype, layout, n, k): 19 rows need 2 panels; 2 x 5 gate and up rows one panel each; a bias covers whole panels.
    assert records['"embed"'][:4] == (1, 1, 32, HIDDEN)
    assert records['"norm"'][:4] == (0, 0, 1, HIDDEN)
    assert records['concat(0, "gate", "up")'][:4] == (1, 1, 32, HIDDEN)
    assert records['concat(0, "gate_bias", "up_bias")'][:4] == (0, 0, 1, 32)
    assert records['"down_bias"'][:4] == (0, 0, 1, 16)
    assert records['"embed"'][5] == 2 * 16 * HIDDEN * 2
    assert records['"down"'][5] == 16 * 6 * 2  # 5 columns padded to 6
    end = 0
    for record in plan["weights"]:
        assert record[4] % 64 == 0
        assert end <= record[4] < end + 64
        end = record[4] + record[5]
    assert plan["header"]["weights_bytes"] == end


def test_caches():
    graph = lowered_graph()
    layer = KvLayer(0, 1, 2, 7, chunked=True)
    graph.facts.kv_layers = [layer, KvLayer(1, 1, 2, 9, sink_tokens=4)]
    graph.facts.state_layers = [StateLayer(64), StateLayer(128)]
    cache = graph.add("input", types=[("kv", ())], names=["kv_cache.0"], before=graph.find("gather_rows")[0]).output
    x, rope = graph.find("embedding")[0].output, graph.find("rotary_table")[0].output
    attrs = {"kv_layer": 0, "heads": 1, "rotary_dim": 2, "buffers": [3, -1]}
    kinds = [("float32", ("tokens", 2)), ("kv", ())]
    slots = graph.value("positions")
    write = graph.add("rotary_kv_write", [x, rope, slots, cache], attrs, kinds, before=graph.find("gather_rows")[0])
    attend = {
        "kv_layer": 0, "heads": 1, **dict.fromkeys(BUDGET, 0), "sparse_prefill": 0, "scale": 0.5, "softcap": 0.0,
        "buffers": [1],
    }  # fmt: skip
    operands = [write.outputs[0], write.outputs[1], slots]
    graph.add("paged_attention", operands, attend, kinds[:1], before=graph.find("gather_rows")[0])
    plan = parse(emit_cpu_plan(graph, small_source()).data)
    assert plan["kv_layers"] == [(0, 1, 2, 0, 1, 7, 0, 0), (1, 1, 2, 0, 0, 9, 0, 4)]
    assert plan["states"] == [(64,), (128,)]
    assert plan["header"]["cache_groups"] == 2
    written, attended = plan["instructions"][5:7]
    assert written[2:10] == (0, 1, -1, -1, 3, -1, -1, -1)
    assert written[10:13] == (0, 1, 2)
    assert attended[2:10] == (3, -1, -1, -1, 1, -1, -1, -1)
    assert attended[18] == 0.5


def test_the_same_bytes_twice():
    assert emit_cpu_plan(lowered_graph(), small_source()).data == emit_cpu_plan(lowered_graph(), small_source()).data


def test_the_generated_table_is_that_of_the_records():
    path = ROOT / op_table.PATH
    assert path.read_text() == op_table.render(), "run python -m tensorwright.plugins.op_table"


def test_the_records_of_the_file_are_those_of_the_header_file():
    text = (ROOT / "runtime" / "core" / "plan" / "plan_format.h").read_text()
    sizes = dict(re.findall(r"sizeof\((\w+)\) == (\d+)", text))
    structs = {
        "PlanHeader": HEADER, "KvLayerRecord": KV_LAYER, "StateRecord": STATE, "BufferRecord": BUFFER,
        "WeightRecord": WEIGHT, "Instruction": INSTRUCTION,
    }  # fmt: skip
    assert sizes == {name: str(record.size) for name, record in structs.items()}
    assert f"kPlanVersion = {cpu_plan.VERSION};" in text


def test_refusals():
    graph = lowered_graph()
    graph.stage = "cached"
    with pytest.raises(BuildError, match="needs a graph at stage lowered, got cached"):
        emit_cpu_plan(graph, small_source())
    graph = lowered_graph()
    del graph.facts.buffers, graph.facts.row_arena_bytes
    with pytest.raises(BuildError, match="lacks the facts buffers, row_arena_bytes"):
        emit_cpu_plan(graph, small_source())
    graph = lowered_graph()
    graph.add("softmax", [graph.outputs[0]], {"dim": 1}, [("float32", ("rows", VOCAB))], scope="model.odd", names=["p"])
    with pytest.raises(LoweringError, match=r"no instruction for softmax %p in model\.odd"):
        emit_cpu_plan(graph, small_source())
    graph = lowered_graph()
    del graph.find("rms_norm")[0].attrs["eps"]
    with pytest.raises(LoweringError, match="has no attribute 'eps'"):
        emit_cpu_plan(graph, small_source())
    graph = lowered_graph()
    graph.find("weight")[0].attrs["layout"] = PANELS
    with pytest.raises(LoweringError, match="has layout 'panels', its use needs 'raw'"):
        emit_cpu_plan(graph, small_source())
