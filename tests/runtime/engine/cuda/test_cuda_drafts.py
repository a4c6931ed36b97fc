"""A draft model beside an engine of target cuda: how both are opened, and how they share a GPU's memory; and an engine
with heads. Their kernels are what the stand-in of the driver loads, and compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.cuda_model import uncompiled
from support.fake_libcuda import FakeDevice
from support.made_heads import make_heads
from support.tiny_models import make_tiny
from tensorwright import LLM, build
from tensorwright.builder.emit.cuda import plan_calls
from tensorwright.errors import InvalidOptionError, OutOfMemoryError
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import KernelSpec


def loadable(spec: KernelSpec, sm: int) -> CompiledKernel:
    """A kernel whose code the stand-in loads."""
    kernel = uncompiled(spec, sm)
    return replace(kernel, cubin=f"kernel 0 {len(kernel.parameters)}\0".encode())


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An engine, one that proposes to it, one that was built for smaller steps, and one with heads for some tokens."""
    folder = tmp_path_factory.mktemp("drafts")
    model = make_tiny(folder / "model", "llama", num_hidden_layers=1, head_dim=16)
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 0, 1], "head_dim": 16, "draft_vocab": 40}
    options: dict[str, dict[str, Any]] = {
        "target": {},
        "draft": {},
        "small": {"max_num_tokens": 32},
        "heads": {"heads": make_heads(folder / "made", model, **layers)},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_calls, "compile_kernel", loadable)
        for name, more in options.items():
            sizes = {"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 100, **more}
            build(model, folder / name, target="cuda", sm=[90], accuracy="none", **sizes)
    return {name: folder / name for name in options}


@pytest.fixture
def device(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    for name in ("TENSORWRIGHT_LIBCUDA", "TENSORWRIGHT_CUBLASLT"):
        monkeypatch.setenv(name, str(library))
    device = FakeDevice(library)
    yield device
    assert device.faults == []
    assert device.live == 0, "memory is not freed"


def test_both_have_memory_and_give_it_back(device: FakeDevice, engines: dict[str, Path]) -> None:
    with LLM(engines["target"]):
        alone = len(device.pieces())
    assert device.live == 0
    with LLM(engines["target"], speculative={"method": "draft", "model": engines["draft"], "tokens": 2}) as llm:
        assert len(device.pieces()) == 2 * alone
        assert llm.get_stats()["draft_tokens"] == 0
    del llm
    assert device.live == 0
    with LLM(engines["target"], speculative="ngram,tokens=2"):
        assert len(device.pieces()) == alone


def test_an_engine_with_heads(device: FakeDevice, engines: dict[str, Path]) -> None:
    """Steps are measured when it is opened: those of the model, and passes of the heads."""
    with LLM(engines["heads"]):
        started = len(device.started)
    assert started == 0
    with LLM(engines["heads"], speculative="heads,tokens=2"):
        assert len(device.started) > 0


def test_the_cache_of_the_draft_is_what_is_asked_for(device: FakeDevice, engines: dict[str, Path]) -> None:
    draft = {"method": "draft", "model": engines["draft"], "kv_cache_memory": "32KiB"}
    block = 2 * 2 * 32 * 16 * 2  # K and V, two heads, positions, columns, bytes
    with LLM(engines["target"], speculative=draft):
        sizes = list(device.pieces().values())
    assert sizes.count(((32 << 10) // block + 1) * block // 2) == 2, "K and V, with a block of padding"
    with pytest.raises(OutOfMemoryError, match=r"speculative: for the draft model .*draft, kv_cache_memory must hold"):
        LLM(engines["target"], speculative={**draft, "kv_cache_memory": "1KiB"})


def test_what_does_not_go_together_is_refused(device: FakeDevice, engines: dict[str, Path]) -> None:
    small = {"method": "draft", "model": engines["small"]}
    with pytest.raises(InvalidOptionError, match=r"small was built for max_num_tokens of at most 32, .* runs with 64"):
        LLM(engines["target"], speculative=small)
    with LLM(engines["target"], speculative=small, max_num_tokens=32):
        pass
    with pytest.raises(InvalidOptionError, match="was built without heads; build it with --heads"):
        LLM(engines["target"], speculative="heads")


def test_memory_that_does_not_suffice_for_both(device: FakeDevice, engines: dict[str, Path]) -> None:
    draft = {"method": "draft", "model": engines["draft"], "kv_cache_memory": "1GiB"}
    with pytest.raises(OutOfMemoryError, match="of another model"):
        LLM(engines["target"], speculative=draft)
