"""TensorRtExecutor over stand-ins for CUDA and TensorRT: tokens, and every address, shape, copy and order of calls."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fake_gpu import CUresult
from support.made_manifest import make_manifest, make_profiles
from support.made_trt_engine import Stand, make_stand
from support.trt_scenario import CHECKS, expected, made_step, run_scenario
from tensorwright.engine_format.tensorrt_manifest import KvLayer
from tensorwright.errors import DeviceError, EngineError, InvalidRequestError

ONE_GROUP = {"layers": (KvLayer(0, 2, 8), KvLayer(0, 3, 4)), "group_windows": (0,)}


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return make_stand(tmp_path, monkeypatch, make_manifest())


@pytest.mark.parametrize(
    ("manifest", "options"),
    [
        ({}, {}),
        ({"kv_dtype": "int8"}, {"debug_preempt_every": 3, "debug_seed": 4}),
        ({"kv_dtype": "fp8"}, {}),
        ({"dtype": "float32", "kv_dtype": "float32", **ONE_GROUP}, {"prefix_cache": False, "max_chunk": 5}),
        ({"flavour": "tensorrt", "library_version": "10.15.1", "sms": (80,)}, {"blocks": 18}),
    ],
)
def test_the_scheduler_drives_it_to_the_right_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: dict[str, Any], options: dict[str, Any]
) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest(**manifest))
    stats = run_scenario(stand, stand.open(), **options)
    assert (stats["preemptions"] > 0) == ("debug_preempt_every" in options or "blocks" in options)
    assert stats["used_blocks"] == 0
    assert (stats["prefix_hit_tokens"] > 0) == options.get("prefix_cache", True)
    # The fork copies a block before it writes; one that was preempted meanwhile, for want of blocks, computes its own.
    assert "cuMemcpyDtoDAsync" in stand.cuda.names() or "blocks" in options
    profiles = {call[1] for call in stand.cuda.calls if call[0] == "execute_async_v3"}
    assert profiles == {0, 1}


def test_facts_are_those_of_the_manifest(stand: Stand) -> None:
    executor = stand.open()
    facts = {"vocab_size": 11, "max_seq_len": 64, "block_size": 4, "block_bytes": [256, 256], "group_windows": [0, 8]}
    assert executor.facts() == {**facts, "gives_logits": True}
    executor.close()


def test_a_step_is_one_copy_one_enqueue_and_one_copy_back(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    step = made_step([0, 3, 4], [3, 6], [[[5, -1], [2, 7]], [[0, -1], [3, 1]]])
    del stand.cuda.calls[:]
    executor.copy_block(0, 5, 9)
    logits = executor.run(step)
    work = [n for n in stand.cuda.names() if n.startswith(("cuMem", "execute", "cuStream"))]
    layer = ["cuMemcpyDtoDAsync"] * 2
    assert work == [*layer, "cuMemcpyHtoDAsync", "execute_async_v3", "cuMemcpyDtoHAsync", "cuStreamSynchronize"]
    assert logits.shape == (2, 11)
    assert logits.dtype == np.float32
    executor.close()


def test_shapes_and_addresses_are_set_when_they_change_and_not_before(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    first = made_step([0, 1, 2], [1, 2], [[[5], [2]]] * 2)
    executor.run(first)
    told = _told(stand)
    # Pages and outputs of both profiles when allocated, metadata of one with the first step.
    assert {name for _, name in told["set_input_shape"]} >= {"token_ids", "seq_starts", "k_pages.1"}
    assert len(told["set_input_shape"]) == 2 * 4 + 9
    assert len(told["set_tensor_address"]) == 2 * (4 + 5) + 9
    longer = made_step([0, 1, 2], [3, 4], [[[5], [2]]] * 2)  # the same sizes
    executor.run(longer)
    assert _told(stand) == {}
    three = made_step([0, 1, 2, 3], [3, 4, 1], [[[5], [2], [8]]] * 2)
    executor.run(three)
    changed = {name for _, name in _told(stand)["set_input_shape"]}
    assert changed == {n for n in stand.trt.network.steps[-1] if "_pages" not in n}  # all depend on seqs here
    executor.close()


def _told(stand: Stand) -> dict[str, list[tuple[int, str]]]:
    """(profile, tensor) of each setting since the last time."""
    found: dict[str, list[tuple[int, str]]] = {}
    for call in stand.cuda.calls:
        if call[0].startswith("set_input") or call[0] == "set_tensor_address":
            found.setdefault(call[0], []).append((call[1], call[2]))
    del stand.cuda.calls[:]
    return found


def test_a_growing_context_seldom_changes_the_width_of_its_table(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    widths = []
    for length in range(1, 64):
        table = [list(range(-(-length // 4)))]
        executor.run(made_step([0, 1], [length], [table, table]))
        widths.append(stand.trt.network.steps[-1]["block_tables.0"][1])
    assert sorted(set(widths)) == [8, 16]
    assert widths == sorted(widths)
    executor.close()


def test_a_table_as_wide_as_the_profile_is_not_made_wider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = make_manifest(max_seq_len=20, profiles=make_profiles(2, max_blocks=5))
    stand = make_stand(tmp_path, monkeypatch, manifest)
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    executor.run(made_step([0, 1], [18], [[[4, 3, 2, 1, 0]]] * 2))
    assert stand.trt.network.steps[-1]["block_tables.1"] == (1, 5)
    executor.close()


def test_the_profile_is_that_of_the_step(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    tables = [[[5, 9], [3, 4]]] * 2
    for starts, lens, profile in [
        ([0, 1, 2], [1, 2], 1),
        ([0, 2, 3], [2, 3], 0),
        ([0, 2, 2], [3, 4], 0),  # as many tokens as sequences, but no decode step
        ([0, 1, 2], [4, 5], 1),
    ]:
        executor.run(made_step(starts, lens, tables))
        assert [c[1] for c in stand.cuda.calls if c[0] == "execute_async_v3"][-1] == profile, starts
    executor.close()


def test_what_no_profile_takes_is_refused_and_the_next_step_runs(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 32, 8, 8)
    wide = made_step([0, 1], [1], [[[5] + [-1] * 16]] * 2)
    with pytest.raises(InvalidRequestError, match=r"none of the engine's profiles takes .*'max_blocks.0': 17"):
        executor.run(wide)
    good = made_step([0, 1], [1], [[[5]]] * 2)
    assert executor.run(good).argmax(1).tolist() == expected(good, stand.manifest)
    executor.close()


def test_what_a_plugin_raised_is_the_error_of_its_step(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    step = made_step([0, 1], [1], [[[5]]] * 2)
    stand.trt.refuse = {"execute_async_v3": 1}
    stand.trt.plugin_errors.append(EngineError("PagedAttention layers.0: no kernel for SM 91"))
    with pytest.raises(EngineError, match="no kernel for SM 91"):
        executor.run(step)
    assert executor.run(step).argmax(1).tolist() == expected(step, stand.manifest)
    executor.close()


def test_an_error_of_the_driver_leaves_an_executor_that_works(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    step = made_step([0, 1], [1], [[[5]]] * 2)
    stand.cuda.fail["cuMemcpyDtoHAsync"] = (1, CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    with pytest.raises(DeviceError, match="cuMemcpyDtoHAsync: the CUDA driver says CUDA_ERROR_ILLEGAL_ADDRESS"):
        executor.run(step)
    assert executor.run(step).argmax(1).tolist() == expected(step, stand.manifest)
    executor.close()


@pytest.mark.parametrize("check", CHECKS)
def test_what_a_scenario_does_not_see(stand: Stand, check: Any) -> None:
    check(stand, stand.open())


def test_a_block_that_there_is_not_is_not_copied(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    for group, source, to in [(2, 0, 0), (0, 20, 1), (0, 1, -1)]:
        with pytest.raises(InvalidRequestError, match="copy_block"):
            executor.copy_block(group, source, to)
    executor.close()


def test_it_may_be_used_from_another_thread_than_it_was_made_in(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    step = made_step([0, 1], [1], [[[5]]] * 2)
    found: list[Any] = []

    def use() -> None:
        executor.copy_block(0, 1, 2)
        found.append(executor.run(step).argmax(1).tolist())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [expected(step, stand.manifest)]
    executor.close()


def test_metadata_that_the_engine_has_no_use_for_is_not_bound(stand: Stand) -> None:
    stand.trt.dropped = {"context_lens"}
    stand.trt.network = lambda inputs, outputs: outputs["logits"].fill(len(inputs))
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    assert executor.run(made_step([0, 1], [1], [[[5]]] * 2)).max() == 12
    assert not any(call[2] == "context_lens" for call in stand.cuda.calls if call[0] == "set_tensor_address")
    executor.close()
