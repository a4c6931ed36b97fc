"""From a node's attributes over the fields in a plan to the launches of a step, without TensorRT's builder or a GPU."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx as trt

from support.places import TESTS
from support.recording_driver import RecordingDriver
from support.tensorrt_step import (
    Module,
    Step,
    attend,
    bounds,
    make_fields,
    make_plugin,
    norm,
    ranks_together,
    steps,
    write,
)
from tensorwright.errors import BuildError, EngineError, GraphError, KernelError
from tensorwright.plugins.gpu.build_context import building_for, running_with
from tensorwright.plugins.gpu.collective_call import CollectiveCall
from tensorwright.plugins.gpu.creators import OPS, make_creator, register
from tensorwright.plugins.gpu.launch import Launch
from tensorwright.plugins.gpu.prepared_calls import KEPT, Recent
from tensorwright.plugins.gpu.tensorrt_op import PluginOp

STREAM = 0x5EED
STEPS = steps()
TOGETHER = ranks_together()
TILED_BY_SM = next(step for step in STEPS if step.name == "int8 and sinks")
"""A call whose kernel has other tiles on SM 90."""
IDS = [step.name for step in STEPS]


def op_of(step: Step) -> PluginOp:
    (op,) = (op for op in OPS if op.name == step.op)
    return op


def written(step: Step, layer: str = "layers.0") -> list[tuple[str, str, bytes]]:
    """The fields that a plugin of this step puts into a plan: (name, type, bytes)."""
    with building_for([80]):
        return read(make_plugin(trt, op_of(step), step, layer))


def read(plugin: Any) -> list[tuple[str, str, bytes]]:
    """The fields point into the plugin's memory."""
    return [(f.name, f.type.name, np.asarray(f.data).tobytes()) for f in plugin.get_fields_to_serialize()]


def restore(step: Step, fields: list[tuple[str, str, bytes]]) -> Any:
    """What TensorRT does with the fields when it deserializes the plan."""
    with make_fields(trt, fields) as collection:
        return make_creator(trt, op_of(step)).create_plugin("layers.0", collection, trt.TensorRTPhase.RUNTIME)


def wanted(step: Step, sm: int) -> list[Launch]:
    """What the op's launch.py says: the list that the interpreter's tests run."""
    attrs: Mapping[str, Any] = {**step.attrs, **step.kernel_sizes}
    return op_of(step).launches(attrs, step.inputs, step.outputs, step.workspace, sm)


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_a_plugin_from_a_plan_starts_the_launches_of_its_op(step: Step) -> None:
    driver = RecordingDriver(80)
    with running_with(driver) as context:
        plugin = restore(step, written(step))
        plugin = plugin.attach_to_context(None)  # as for an execution context
    plugin.enqueue(*step.arguments(trt), STREAM)
    context.raise_first()
    assert driver.launches == wanted(step, 80)
    assert bool(driver.launches) == step.starts
    assert set(driver.streams) <= {STREAM}


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_an_output_shares_the_memory_of_the_input_of_its_name(step: Step) -> None:
    with building_for([80]):
        plugin = make_plugin(trt, op_of(step), step, "layers.0")
        aliases = [plugin.get_aliased_input(index) for index in range(plugin.num_outputs)]
    names = list(step.inputs)
    assert [names[index] if index >= 0 else "" for index in aliases] == [n if n in names else "" for n in step.outputs]
    assert any(index >= 0 for index in aliases) == (step.op == "RotaryKvWrite")


def test_a_step_is_prepared_once_and_filled_for_other_addresses_and_shapes() -> None:
    step = STEPS[0]
    driver = RecordingDriver(80)
    with running_with(driver):
        plugin = restore(step, written(step))
    plugin.enqueue(*step.arguments(trt), STREAM)
    count = len(driver.launches)
    assert driver.prepared == count
    plugin.enqueue(*step.arguments(trt), STREAM + 1)
    assert driver.prepared == count
    assert driver.launches == wanted(step, 80) * 2
    assert driver.streams == [STREAM] * count + [STREAM + 1] * count
    moved = step.moved(0x1000)
    plugin.enqueue(*moved.arguments(trt), STREAM)
    assert driver.prepared == count, "other addresses need no other launches"
    assert driver.launches[2 * count :] == wanted(moved, 80)
    assert driver.launches[2 * count :] != wanted(step, 80)


def test_calls_of_several_shapes_take_turns_with_the_same_kernels() -> None:
    """A call that starts more kernels than the one before, or fewer, leaves nothing of it."""
    mixed, decode, prompt = attend("mixed", 9, 3, 4), attend("decode", 3, 3, 4), attend("prompt", 9, 1, 4)
    driver = RecordingDriver(80)
    with running_with(driver):
        plugin = restore(mixed, written(mixed))
    for step in (decode, mixed, prompt, mixed, decode):
        before = len(driver.launches)
        plugin.enqueue(*step.arguments(trt), STREAM)
        assert driver.launches[before:] == wanted(step, 80)
    assert driver.prepared == len({(launch.kernel, launch.variant) for launch in driver.launches}) + 1, (
        "decode stands first in one call, and behind prefill in another"
    )


def test_layers_that_are_alike_share_their_launches_and_not_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    step = attend("decode", 3, 3, 4)
    driver, made = RecordingDriver(80), []
    launches = op_of(step).launches
    with running_with(driver):
        layers = [restore(step, written(step)) for _ in range(2)]
    watched = dataclasses.replace(op_of(step), launches=lambda *args: made.append(1) or launches(*args))
    for layer in layers:
        monkeypatch.setattr(layer, "op", watched)
    moved = step.moved(0x1000)
    for layer, call in zip(layers * 2, (step, moved) * 2, strict=True):
        layer.enqueue(*call.arguments(trt), STREAM)
    assert driver.launches == [*wanted(step, 80), *wanted(moved, 80)] * 2
    assert len(made) == 1


def test_calls_are_forgotten_when_there_are_many_shapes() -> None:
    recent, made, rows = Recent[int](), [], (*range(1, KEPT + 1), 1, KEPT + 1, 1, 2)
    for row in rows:
        recent.find(row, lambda row=row: made.append(row) or row)
    assert made == [*range(1, KEPT + 2), 2], "1 was used again before another came, 2 had to go"
    assert len(recent) == KEPT
    driver, first = RecordingDriver(80), norm("norm", 1, False)
    with running_with(driver):
        plugin = restore(first, written(first))
    for row in rows:
        plugin.enqueue(*norm("norm", row, False).arguments(trt), STREAM)
    assert driver.launches == [launch for row in rows for launch in wanted(norm("norm", row, False), 80)]
    assert driver.prepared == 1


def test_addresses_that_the_kernels_cannot_take_are_refused() -> None:
    step = write("write", 7)
    with running_with(RecordingDriver(80)):
        plugin = restore(step, written(step))
    descs, out_descs, inputs, outputs, workspace = step.arguments(trt)
    plugin.enqueue(descs, out_descs, inputs, outputs, workspace, STREAM)
    elsewhere = [outputs[0], outputs[1] + 0x1000, *outputs[2:]]
    with pytest.raises(KernelError, match=r"operands 3 and 6 must share their memory"):
        plugin.enqueue(descs, out_descs, inputs, elsewhere, workspace, STREAM)
    with pytest.raises(KernelError, match=r"rotary_kv_write_kernel: operand 0 must be at a multiple of 16"):
        plugin.enqueue(descs, out_descs, [inputs[0] + 2, *inputs[1:]], outputs, workspace, STREAM)
    plugin.enqueue(descs, out_descs, inputs, outputs, workspace, STREAM)


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_a_build_that_times_its_layers_starts_nothing(step: Step) -> None:
    """Full TensorRT builds on a GPU, and what it fills slots and block tables with there is no page's number."""
    driver = RecordingDriver(80)
    with building_for([80], driver):
        plugin = make_plugin(trt, op_of(step), step, "layers.0").attach_to_context(None)
        plugin.enqueue(*step.arguments(trt), STREAM)
    assert (driver.prepared, driver.launches) == (0, [])


def test_other_layers_use_the_kernels_that_one_brings() -> None:
    step = STEPS[0]
    with building_for([80]):
        both = [read(make_plugin(trt, op_of(step), step, f"layers.{i}")) for i in (0, 1)]
    assert ["kernels" in [name for name, _, _ in fields] for fields in both] == [True, False]
    driver = RecordingDriver(80)
    with running_with(driver):
        second, _ = restore(step, both[1]), restore(step, both[0])
    second.enqueue(*step.arguments(trt), STREAM)
    assert driver.launches == wanted(step, 80)
    with running_with(driver) as context:
        alone = restore(step, both[1])
    with pytest.raises(EngineError, match="no layer of it brings them: rebuild"):
        alone.enqueue(*step.arguments(trt), STREAM)
    with pytest.raises(EngineError, match="no layer of it brings them"):
        context.raise_first()


@pytest.mark.parametrize(("sm", "uses_ptx"), [(80, False), (86, False), (89, False), (90, True), (120, True)])
@pytest.mark.parametrize("step", [STEPS[0], TILED_BY_SM], ids=lambda step: step.name)
def test_code_of_sm_80_serves_later_gpus(step: Step, sm: int, uses_ptx: bool) -> None:
    """The launches are those of the code, whose tiles another SM's may not have."""
    driver = RecordingDriver(sm)
    with running_with(driver):
        plugin = restore(step, written(step))
    plugin.enqueue(*step.arguments(trt), STREAM)
    assert driver.launches == wanted(step, 80)
    assert [image[:4] != b"\x7fELF" for image in driver.images] == [uses_ptx] * len(driver.images)


def test_a_running_engine_needs_no_triton(tmp_path: Path) -> None:
    step = STEPS[0]
    (tmp_path / "fields").write_bytes(pickle.dumps((step, written(step))))
    code = (
        "import sys; sys.modules['triton'] = sys.modules['torch'] = None; from support.tensorrt_step import replay; "
        f"print(replay({str(tmp_path / 'fields')!r}))"
    )
    environment = {"PYTHONPATH": str(TESTS), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(len(wanted(step, 80))), done.stderr


class RecordingRanks:
    """Collectives that keep what they were asked."""

    def __init__(self) -> None:
        self.prepared: list[CollectiveCall] = []
        self.started: list[tuple[CollectiveCall, int]] = []

    def prepare(self, call: CollectiveCall) -> CollectiveCall:
        self.prepared.append(call)
        return call

    def start(self, prepared: CollectiveCall, stream: int) -> None:
        self.started.append((prepared, stream))


@pytest.mark.parametrize("step", TOGETHER, ids=lambda step: step.name)
def test_what_ranks_do_together_is_handed_to_them(step: Step) -> None:
    """Each operand with its address, shape and type; once, as long as these stay."""
    driver, ranks = RecordingDriver(80), RecordingRanks()
    with running_with(driver, ranks) as context:
        plugin = restore(step, written(step)).attach_to_context(None)
    for _ in range(2):
        plugin.enqueue(*step.arguments(trt), STREAM)
    context.raise_first()
    kinds = {"AllReduce": "all_reduce", "AllGather": "all_gather", "Send": "send", "Receive": "receive"}
    source, target = step.inputs.get("x"), step.outputs.get("y")
    call = CollectiveCall(kinds[step.op], source, target)
    assert ranks.prepared == [call]
    assert ranks.started == [(call, STREAM)] * 2
    assert (driver.prepared, driver.launches) == (0, [])
    moved = step.moved(0x1000)
    plugin.enqueue(*moved.arguments(trt), STREAM)
    assert ranks.prepared[1:] == [CollectiveCall(kinds[step.op], moved.inputs.get("x"), moved.outputs.get("y"))]


def test_an_engine_that_runs_alone_has_nobody_to_do_it_with() -> None:
    step = TOGETHER[0]
    with running_with(RecordingDriver(80)):
        plugin = restore(step, written(step))
    with pytest.raises(EngineError, match="layers that ranks compute together, and this one runs alone"):
        plugin.enqueue(*step.arguments(trt), STREAM)


class BrokenDriver(RecordingDriver):
    def start(self, prepared: Any, stream: int) -> None:
        raise KernelError("CUDA: starting failed")


def test_a_failure_of_a_step_is_raised_noted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """TensorRT makes a failed step of the exception, and its caller learns the cause from the context."""
    step = STEPS[0]
    with running_with(BrokenDriver(80)) as context:
        plugin = restore(step, written(step))
    with pytest.raises(KernelError, match="CUDA: starting failed"):
        plugin.enqueue(*step.arguments(trt), STREAM)
    assert f"TensorRT plugin {step.op} layers.0, enqueue: CUDA: starting failed" in caplog.text
    with pytest.raises(KernelError, match="CUDA: starting failed"):
        context.raise_first()
    context.raise_first()  # nothing new


def test_a_step_of_other_types_or_sizes_is_refused() -> None:
    step = STEPS[0]
    with running_with(RecordingDriver(80)):
        plugin = restore(step, written(step))
    input_desc, output_desc, *rest = step.arguments(trt)
    input_desc[0].type = trt.DataType.BF16
    with pytest.raises(KernelError, match=r"it was built for .*float16.*, TensorRT gives it .*bfloat16"):
        plugin.enqueue(input_desc, output_desc, *rest, STREAM)
    input_desc[0].type = trt.DataType.HALF
    input_desc[1].dims = (1, 2)
    with pytest.raises(GraphError, match=f"{step.op}: .* must be .*, got .1, 2."):
        plugin.enqueue(input_desc, output_desc, *rest, STREAM)


def test_spoilt_fields_are_refused() -> None:
    step = STEPS[0]
    fields = written(step)
    for name in ("dtypes", "kernels_digest", "workspace_bytes", *step.attrs):
        with pytest.raises(EngineError, match=f"the plan lacks its {name}: rebuild"):
            restore(step, [field for field in fields if field[0] != name])
    spoilt = [(name, kind, data[::-1] if name == "kernels" else data) for name, kind, data in fields]
    with pytest.raises(EngineError, match="GPU kernels in the plan were altered"):
        restore(step, spoilt)


def test_a_node_is_checked_when_it_is_parsed() -> None:
    step = STEPS[0]
    op = op_of(step)
    creator = make_creator(trt, op)
    with pytest.raises(BuildError, match="outside `building_for"):
        creator.create_plugin("n", trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD)
    with pytest.raises(GraphError, match="must have the attributes"), building_for([80]):
        creator.create_plugin("n", trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD)
    with pytest.raises(GraphError, match="must be float16, got float32"):
        op.dtypes(step.attrs, ["float16", "float32", "int32", "float32", "float16"])
    with pytest.raises(GraphError, match="its inputs must be"):
        op.dtypes(step.attrs, ["float16"])
    with pytest.raises(GraphError, match=r"qkv must be .*, got uint8"):
        op.dtypes(step.attrs, ["uint8", *["float32"] * 4])
    with pytest.raises(BuildError, match="one TensorRT build at a time"), building_for([80]), building_for([80]):
        pass


def test_a_profile_that_does_not_fit_is_an_error_of_the_build() -> None:
    step = STEPS[0]
    with pytest.raises(GraphError, match=r"slots must be \[7\], got \[6\]"), building_for([80]):  # noqa: PT012
        plugin = make_plugin(trt, op_of(step), step, "layers.0")
        ranges = [bounds(trt, tensor) for tensor in (*step.inputs.values(), *step.outputs.values())]
        ranges[2].min = trt.Dims((6,))
        assert plugin.configure_plugin(ranges[:5], ranges[5:]) is None  # raising might end the process


def test_a_size_that_kernels_are_compiled_for_must_be_known() -> None:
    (norm,) = (step for step in STEPS if step.name == "norm")
    op = op_of(norm)
    assert op.full_attrs(norm.attrs, op.sizes(norm.attrs, [(-1, 128), (128,)])) == {**norm.attrs, "channels": 128}
    with pytest.raises(GraphError, match="channels must be a number in the graph"):
        op.full_attrs(norm.attrs, op.sizes(norm.attrs, [(-1, -1), (-1,)]))


class Occupied(Module):
    """A TensorRT in which somebody else has registered a plugin of our name."""

    __name__ = "occupied"

    def get_plugin_registry(self) -> Any:
        return SimpleNamespace(register_creator=lambda creator, namespace: False)


def test_plugins_are_registered_once_and_never_over_anothers() -> None:
    register(trt)
    register(trt)
    creator = trt.get_plugin_registry().get_creator("PagedAttention", "1", "tensorwright")
    assert creator.name == "PagedAttention"
    with pytest.raises(
        EngineError, match="has a plugin tensorwright::RotaryKvWrite version 1 already, which is not ours"
    ):
        register(Occupied(trt))


def test_the_first_error_of_a_build_is_the_one_that_is_raised() -> None:
    with pytest.raises(KernelError, match="first") as caught, building_for([80]) as context:  # noqa: PT012
        context.note("a", KernelError("first"))
        context.note("b", KernelError("second"))
        raise RuntimeError("TensorRT: no plan")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(KernelError, match="quiet"), building_for([80]) as context:
        context.note("a", KernelError("quiet"))


@pytest.fixture(autouse=True)
def _no_context_is_left() -> Iterator[None]:
    yield
    with building_for([80]):
        pass
