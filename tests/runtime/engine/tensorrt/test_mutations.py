"""Each mistake that the bookkeeping could make turns the scenario of many requests red."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.fake_tensorrt import FakePlugins
from support.made_manifest import make_manifest
from support.made_trt_engine import make_stand
from support.trt_scenario import CHECKS, run_scenario
from tensorwright.errors import TensorwrightError

PACKAGE = "tensorwright.runtime.engine.tensorrt"
MODULES = ("cuda", "library", "kv_pool", "step_buffers", "memory", "profiles", "executor")  # each after what it imports

MUTATIONS = {
    "page bytes are elements": ("kv_pool", "prod(shape[1:]) * ITEM_BYTES[tensor.dtype]", "prod(shape[1:])"),
    "page bytes are one head's": ("kv_pool", "prod(shape[1:]) *", "prod(shape[2:]) *"),
    "a block is copied the wrong way": ("kv_pool", "for block in (to, source))", "for block in (source, to))"),
    "a block is copied in one layer": ("kv_pool", "pages.page_bytes, self._stream)\n", "pages.page_bytes, 0); break\n"),
    "a block is copied in every group": ("kv_pool", "if pages.group == group:", "if True:"),
    "groups are mixed up": ("kv_pool", "manifest.layers[int(", "manifest.layers[-1 - int("),
    "the cache keeps what was there": ("kv_pool", "cuda.zero(address, size, stream)", "pass"),
    "arrays are not aligned": ("step_buffers", "ALIGNMENT = 256", "ALIGNMENT = 64"),
    "arrays lie over each other": ("step_buffers", "at += _padded(size)", "at += ALIGNMENT"),
    "the last array is not sent": (
        "step_buffers",
        "host[:at], self._stream",
        "host[:at - _padded(size)], self._stream",
    ),
    "metadata is not sent": (
        "step_buffers",
        "        self._cuda.copy_to_device(address, host[:at], self._stream)\n",
        "",
    ),
    "metadata is sent elsewhere": ("step_buffers", "copy_to_device(address,", "copy_to_device(address + 4,"),
    "addresses are the host's": ("step_buffers", "(shape, address + at)", "(shape, host.ctypes.data + at)"),
    "addresses are one array on": ("step_buffers", "(shape, address + at)", "(shape, address + at + 256)"),
    "tables are of another group": ("step_buffers", "(int(group)) if", "(0) if"),
    "unused entries are block 0": ("step_buffers", "UNUSED = -1", "UNUSED = 0"),
    "unused entries keep what was there": ("step_buffers", "place.fill(", "bool("),
    "logits are not fetched": ("step_buffers", "if rows:", "if not rows:"),
    "nobody waits for logits": ("step_buffers", "        self._cuda.synchronize(self._stream)\n", ""),
    "logits are of the row before": ("step_buffers", "copy_to_host(part, address,", "copy_to_host(part, address - 44,"),
    "too few bytes of logits": ("step_buffers", "return 4 * rows * manifest", "return 2 * rows * manifest"),
    "shapes are set once": ("profiles", "self._shapes.get(name) != shape", "name not in self._shapes"),
    "addresses are set once": ("profiles", "self._addresses.get(name) != address", "name not in self._addresses"),
    "nothing is enqueued": ("profiles", "self._context.execute_async_v3(stream)", "True"),
    "the plan is read outside its plugins' context": ("library", "            self._plugins.loading(),\n", ""),
    "plugins stay loaded": ("library", "        self._plugins.close()\n", ""),
    "refusals are overheard": ("profiles", "if not done:", "if False:"),
    "every step is a decode step": ("profiles", "bool(np.all(np.diff(step.seq_starts) == 1))", "True"),
    "no step is a decode step": ("profiles", "order = [DECODE] if decodes else []", "order = [0]"),
    "rows do not grow to the profile's least": ("profiles", 'symbol == "rows" or', ""),
    "widths do not grow": ("profiles", "return max(needed, min(", "return min(needed, min("),
    "profile 0 for both": ("library", "(profile, stream):", "(0, stream):"),
    "scratch of the smallest profile": ("library", "return max(self._engine.device", "return min(self._engine.device"),
    "every context allocates for itself": ("library", "Strategy.USER_MANAGED", "Strategy.STATIC"),
    "outputs are not at their inputs": ("executor", ".address if output.alias", ".address + 256 if output.alias"),
    "logits are not bound": ("executor", "else self._buffers.logits_address", "else 0"),
    "pages are bound for one profile": ("executor", "for context in contexts:", "for context in contexts[:1]:"),
    "the context is not made current": ("executor", "        self._cuda.activate()\n        index", "        index"),
    "buffers are kept": ("step_buffers", "        stack.callback(self._cuda.free, address)\n", ""),
    "the cache is kept": ("kv_pool", "            stack.callback(cuda.free, address)\n", ""),
    "scratch is kept": ("executor", "        stack.callback(self._cuda.free, scratch)\n", ""),
    "the stream is kept": ("executor", "            stack.callback(self._cuda.destroy_stream, self._stream)\n", ""),
    "the engine goes before its contexts": ("executor", "stack.callback(contexts[-1].close)", "pass"),
}
"""name -> (module, text of it, what stands there instead)"""


END = ("context freed", "engine freed", "runtime freed", "plugins closed", "cuDevicePrimaryCtxRelease")
RED = (AssertionError, TensorwrightError, ValueError, TypeError, RuntimeError, pytest.fail.Exception)


def mutate(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> ModuleType:
    """The executor's module, made anew from sources of which one is changed in one place."""
    for part in MODULES:
        original = importlib.import_module(f"{PACKAGE}.{part}")
        assert original.__file__ is not None
        text = Path(original.__file__).read_text(encoding="utf-8")
        if part == name:
            assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {part}"
            text = text.replace(old, new)
        module = ModuleType(original.__name__)
        monkeypatch.setitem(sys.modules, original.__name__, module)
        exec(compile(text, original.__file__, "exec"), module.__dict__)
    return sys.modules[f"{PACKAGE}.executor"]


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """In two dtypes, for a slip may suit one of them; the engine's own cache reads NaN where nobody wrote."""
    for number, changes in enumerate(({}, {"kv_dtype": "int8"})):
        stand = make_stand(tmp_path / str(number), monkeypatch, make_manifest(**changes))
        library = sys.modules[f"{PACKAGE}.library"]
        monkeypatch.setattr(library, "EnginePlugins", FakePlugins)
        executor = stand.open(module.TensorRtExecutor)  # alive below: what it closed is gone all the same
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
        check(stand, stand.open(module.TensorRtExecutor))


def test_the_scenario_is_green_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(tmp_path, monkeypatch, mutate(monkeypatch, "", "", ""))


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_mistake_turns_it_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    module = mutate(monkeypatch, *MUTATIONS[what])
    with pytest.raises(RED):
        play(tmp_path, monkeypatch, module)
