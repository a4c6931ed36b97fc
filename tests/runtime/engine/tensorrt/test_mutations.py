"""Each mistake that the bookkeeping could make turns the scenario of many requests red."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.fake_tensorrt import FakePlugins
from support.made_manifest import make_manifest
from support.made_trt_engine import make_stand
from support.trt_scenario import CHECKS, run_scenario
from tensorwright.errors import TensorwrightError
from tensorwright.runtime.engine.tensorrt import executor as executor_module
from tensorwright.runtime.engine.tensorrt import kv_pool, library, profiles, step_buffers
from tensorwright.runtime.engine.tensorrt.cuda import Cuda
from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor
from tensorwright.runtime.engine.tensorrt.kv_pool import KvPool
from tensorwright.runtime.engine.tensorrt.library import LoadedEngine
from tensorwright.runtime.engine.tensorrt.profiles import BoundContext
from tensorwright.runtime.engine.tensorrt.step_buffers import StepBuffers


def nothing(old: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: None


def copied_in_one_layer(old: Callable[..., None]) -> Callable[..., None]:
    def copy_block(self: KvPool, group: int, source: int, to: int) -> None:
        name = next(name for name, pages in self.tensors.items() if pages.group == group)
        old(SimpleNamespace(**{**vars(self), "tensors": {name: self.tensors[name]}}), group, source, to)

    return copy_block


def copied_in_every_group(old: Callable[..., None]) -> Callable[..., None]:
    def copy_block(self: KvPool, group: int, source: int, to: int) -> None:
        tensors = {name: replace(pages, group=group) for name, pages in self.tensors.items()}
        old(SimpleNamespace(**{**vars(self), "tensors": tensors}), group, source, to)

    return copy_block


def groups_mixed_up(old: Callable[..., None]) -> Callable[..., None]:
    def init(self: KvPool, stack: ExitStack, cuda: Cuda, stream: Any, manifest: Any, blocks: list[int]) -> None:
        old(self, stack, cuda, stream, manifest, blocks)
        for name, pages in self.tensors.items():
            layer = int(name.partition(".")[2])
            self.tensors[name] = replace(pages, group=manifest.layers[-1 - layer].group)

    return init


def sent_to(place: Callable[[StepBuffers, int], int]) -> Callable[..., Any]:
    """Addresses of metadata that are not where it was sent."""

    def change(old: Callable[..., Any]) -> Callable[..., Any]:
        def send(self: StepBuffers, step: Any, sizes: dict[str, int]) -> dict[str, tuple[tuple[int, ...], int]]:
            return {name: (shape, place(self, address)) for name, (shape, address) in old(self, step, sizes).items()}

        return send

    return change


def of_the_first_group(old: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def metadata_of(step: Any, tensor: Any) -> np.ndarray:
        name, _, group = tensor.name.partition(".")
        return old(step, replace(tensor, name=f"{name}.0") if group else tensor)

    return metadata_of


def without_filling(place: np.ndarray, values: np.ndarray, tensor: Any) -> None:
    place[tuple(slice(0, n) for n in values.shape)] = values


def without(method: str) -> Callable[..., Any]:
    """A call in which that method of Cuda does nothing."""

    def change(old: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Cuda, method, lambda *args: None)
                return old(*args)

        return call

    return change


def shapes_set_once(old: Callable[..., None]) -> Callable[..., None]:
    return lambda self, name, shape, address: old(self, name, self._shapes.get(name, shape), address)


def addresses_set_once(old: Callable[..., None]) -> Callable[..., None]:
    return lambda self, name, address: old(self, name, self._addresses.get(name, address))


def steps_of(tokens: int) -> Callable[..., Any]:
    """Every step passes for one in which each sequence has so many tokens."""
    step = SimpleNamespace(seq_starts=np.arange(3) * tokens)
    return lambda old: lambda manifest, _, sizes: old(manifest, step, sizes)


def of_the_smallest(old: property) -> property:
    def scratch_bytes(self: LoadedEngine) -> int:
        each = range(self._engine.num_optimization_profiles)
        return min(self._engine.get_device_memory_size_for_profile_v2(index) for index in each)

    return property(scratch_bytes)


def allocating_for_itself(old: Callable[..., Any]) -> Callable[..., Any]:
    def make_context(self: LoadedEngine, profile: int, scratch: int, stream: int) -> Any:
        strategy = SimpleNamespace(USER_MANAGED=self._trt.ExecutionContextAllocationStrategy.STATIC)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_trt", SimpleNamespace(ExecutionContextAllocationStrategy=strategy))
            return old(self, profile, scratch, stream)

    return make_context


def rebound(alias: bool, place: Callable[[int], int]) -> Callable[..., Any]:
    """Outputs with an alias, or those without, are bound elsewhere afterwards."""

    def change(old: Callable[..., None]) -> Callable[..., None]:
        def bind(self: TensorRtExecutor, pool: KvPool, contexts: list[BoundContext], places: dict[str, int]) -> None:
            old(self, pool, contexts, places)
            for context in contexts:
                for output in self.manifest.outputs:
                    if bool(output.alias) == alias:
                        context.bind_address(output.name, place(context._addresses[output.name]))

        return bind

    return change


class Forgetful(ExitStack):
    """It does not give back what `kept` says."""

    def __init__(self, stack: ExitStack, kept: Callable[..., bool]):
        super().__init__()
        self.stack, self.kept = stack, kept

    def callback(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function if self.kept(function, *args) else self.stack.callback(function, *args, **kwargs)


def keeping_buffers(old: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, stack, size: old(self, Forgetful(stack, lambda call, *_: call == self._cuda.free), size)


def keeping_the_cache(old: Callable[..., None]) -> Callable[..., None]:
    return lambda self, stack, cuda, *rest: old(self, Forgetful(stack, lambda call, *_: call == cuda.free), cuda, *rest)


def keeping_scratch(old: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: TensorRtExecutor, stack: ExitStack, blocks: list[int], most: dict[str, int]) -> Any:
        sizes: dict[int, int] = {}
        allocate = self._cuda.allocate

        def noting(size: int) -> int:
            address = allocate(size)
            sizes[address] = size
            return address

        def kept(call: Any, *args: Any) -> bool:
            return call == self._cuda.free and sizes[args[0]] == self._engine.scratch_bytes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._cuda, "allocate", noting)
            return old(self, Forgetful(stack, kept), blocks, most)

    return take


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "page bytes are elements": (kv_pool, "ITEM_BYTES", dict.fromkeys(kv_pool.ITEM_BYTES, 1)),
    "page bytes are one head's": (kv_pool, "prod", lambda old: lambda shape: prod(shape[1:])),
    "a block is copied the wrong way": (
        KvPool, "copy_block", lambda old: lambda self, group, source, to: old(self, group, to, source),
    ),
    "a block is copied in one layer": (KvPool, "copy_block", copied_in_one_layer),
    "a block is copied in every group": (KvPool, "copy_block", copied_in_every_group),
    "groups are mixed up": (KvPool, "__init__", groups_mixed_up),
    "the cache keeps what was there": (Cuda, "zero", nothing),
    "arrays are not aligned": (step_buffers, "ALIGNMENT", 64),
    "arrays lie over each other": (step_buffers, "_padded", lambda old: lambda size: step_buffers.ALIGNMENT),
    "the last array is not sent": (
        Cuda, "copy_to_device",
        lambda old: lambda self, address, host, stream: old(self, address, host[: -step_buffers.ALIGNMENT], stream),
    ),
    "metadata is not sent": (Cuda, "copy_to_device", nothing),
    "metadata is sent elsewhere": (
        Cuda, "copy_to_device", lambda old: lambda self, address, *rest: old(self, address + 4, *rest),
    ),
    "addresses are the host's": (
        StepBuffers, "send", sent_to(lambda self, at: at - self._metadata[1] + self._metadata[0].ctypes.data),
    ),
    "addresses are one array on": (StepBuffers, "send", sent_to(lambda self, at: at + step_buffers.ALIGNMENT)),
    "tables are of another group": (step_buffers, "_metadata_of", of_the_first_group),
    "unused entries are block 0": (step_buffers, "UNUSED", 0),
    "unused entries keep what was there": (step_buffers, "_fill", lambda old: without_filling),
    "logits are not fetched": (Cuda, "copy_to_host", nothing),
    "nobody waits for logits": (StepBuffers, "receive", without("synchronize")),
    "logits are of the row before": (
        Cuda, "copy_to_host", lambda old: lambda self, host, address, stream: old(self, host, address - 44, stream),
    ),
    "too few bytes of logits": (step_buffers, "logits_bytes", lambda old: lambda *args: old(*args) // 2),
    "shapes are set once": (BoundContext, "bind_input", shapes_set_once),
    "addresses are set once": (BoundContext, "bind_address", addresses_set_once),
    "nothing is enqueued": (BoundContext, "enqueue", nothing),
    "the plan is read outside its plugins' context": (FakePlugins, "loading", lambda old: lambda self: nullcontext()),
    "plugins stay loaded": (FakePlugins, "close", nothing),
    "refusals are overheard": (BoundContext, "_accept", nothing),
    "every step is a decode step": (executor_module, "choose_profile", steps_of(1)),
    "no step is a decode step": (executor_module, "choose_profile", steps_of(2)),
    "rows do not grow to the profile's least": (
        profiles, "_may_grow", lambda old: lambda symbol: symbol != "rows" and old(symbol),
    ),
    "widths do not grow": (profiles, "stable_width", lambda old: lambda needed, most: needed),
    "profile 0 for both": (
        LoadedEngine, "make_context", lambda old: lambda self, profile, *rest: old(self, 0, *rest),
    ),
    "scratch of the smallest profile": (LoadedEngine, "scratch_bytes", of_the_smallest),
    "every context allocates for itself": (LoadedEngine, "make_context", allocating_for_itself),
    "outputs are not at their inputs": (
        TensorRtExecutor, "_bind_outputs", rebound(True, lambda address: address + 256),
    ),
    "logits are not bound": (TensorRtExecutor, "_bind_outputs", rebound(False, lambda address: 0)),
    "pages are bound for one profile": (
        TensorRtExecutor, "_bind_outputs",
        lambda old: lambda self, pool, contexts, places: old(self, pool, contexts[:1], places),
    ),
    "the context is not made current": (TensorRtExecutor, "run", without("activate")),
    "buffers are kept": (StepBuffers, "_take", keeping_buffers),
    "the cache is kept": (KvPool, "__init__", keeping_the_cache),
    "scratch is kept": (TensorRtExecutor, "_take", keeping_scratch),
    "the stream is kept": (Cuda, "destroy_stream", nothing),
    "the engine goes before its contexts": (BoundContext, "close", nothing),
}  # fmt: skip
"""name -> (module or class, what of it, the mistake: made of what is there, or a value in its place)"""


END = ("context freed", "engine freed", "runtime freed", "plugins closed", "cuDevicePrimaryCtxRelease")
RED = (AssertionError, TensorwrightError, ValueError, RuntimeError, pytest.fail.Exception)


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two dtypes, for a slip may suit one of them; the engine's own cache reads NaN where nobody wrote."""
    for number, changes in enumerate(({}, {"kv_dtype": "int8"})):
        stand = make_stand(tmp_path / str(number), monkeypatch, make_manifest(**changes))
        monkeypatch.setattr(library, "EnginePlugins", FakePlugins)
        executor = stand.open(TensorRtExecutor)  # alive below: what it closed is gone all the same
        run_scenario(stand, executor, max_chunk=5)
        names = stand.cuda.names()
        assert names.count("set_input_shape") < names.count("execute_async_v3") * 9
        assert {call[1] for call in stand.cuda.calls if call[0] == "execute_async_v3"} == {0, 1}
        order = [n for n in names if n in END]
        assert order == ["context freed", *END]
        assert names.index("context freed") < names.index("cuMemFree")
    for number, check in enumerate(CHECKS):
        stand = make_stand(tmp_path / f"check{number}", monkeypatch, make_manifest())
        monkeypatch.setattr(library, "EnginePlugins", FakePlugins)
        check(stand, stand.open(TensorRtExecutor))


def test_the_scenario_is_green_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(tmp_path, monkeypatch)


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_mistake_turns_it_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    owner, name, change = MUTATIONS[what]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)) if callable(change) else change)
    with pytest.raises(RED):
        play(tmp_path, monkeypatch)
