"""What TensorRtExecutor takes of the device and gives back: sizes refused, failures half way, order, a broken GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fake_gpu import CUresult
from support.made_manifest import make_manifest
from support.made_trt_engine import Stand, make_stand
from support.trt_scenario import expected, made_step
from tensorwright.errors import DeviceError, InvalidOptionError, OutOfMemoryError


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return make_stand(tmp_path, monkeypatch, make_manifest())


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((33, 8, 4), "max_num_tokens asks for steps of 33 tokens, but the engine was built for at most 32"),
        ((16, 33, 4), "max_prompt_logprob_rows asks for steps of 33 rows"),
        ((16, 8, 9), "max_batch_size asks for steps of 9 seqs"),
    ],
)
def test_more_than_the_engine_was_built_for_is_refused_by_option(
    stand: Stand, sizes: tuple[int, int, int], says: str
) -> None:
    executor = stand.open()
    with pytest.raises(InvalidOptionError, match=says):
        executor.allocate([20, 20], *sizes)
    tokens, rows, seqs = sizes
    with pytest.raises(InvalidOptionError, match=says):  # before a size is made up for it
        executor.kv_cache_bytes(None, max_batch_size=seqs, max_num_tokens=tokens, max_rows=rows)
    executor.close()
    assert stand.cuda.is_clean()


def test_more_blocks_than_the_profiles_take_are_refused(stand: Stand) -> None:
    executor = stand.open()
    with pytest.raises(OutOfMemoryError, match="1 to 1000 blocks in cache group 1, and kv_cache_memory comes to 1001"):
        executor.allocate([20, 1001], 16, 8, 4)
    executor.close()


def test_every_failure_while_allocating_gives_back_what_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest())
    executor = stand.open()
    before = len(stand.cuda.calls)
    executor.allocate([20, 20], 16, 8, 4)
    counts = {n: stand.cuda.names()[before:].count(n) for n in ("cuMemAlloc", "cuMemHostAlloc", "cuMemsetD8Async")}
    executor.close()
    assert counts == {"cuMemAlloc": 4 + 2 + 1, "cuMemHostAlloc": 2, "cuMemsetD8Async": 4}
    for function, count in counts.items():
        for which in range(1, count + 1):
            stand = make_stand(tmp_path / function / str(which), monkeypatch, make_manifest())
            executor = stand.open()
            stand.cuda.fail[function] = (which, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
            with pytest.raises(OutOfMemoryError, match=function):
                executor.allocate([20, 20], 16, 8, 4)
            assert not stand.cuda.device_memory
            assert not stand.cuda.host_memory
            executor.allocate([20, 20], 16, 8, 4)  # there is room again
            good = made_step([0, 1], [1], [[[5]]] * 2)
            assert executor.run(good).argmax(1).tolist() == expected(good, stand.manifest)
            executor.close()
            assert stand.cuda.is_clean()


@pytest.mark.parametrize("method", ["set_optimization_profile_async", "set_input_shape", "set_tensor_address"])
@pytest.mark.parametrize("which", [1, 2])
def test_a_context_that_refuses_ends_allocate_cleanly(stand: Stand, method: str, which: int) -> None:
    executor = stand.open()
    stand.trt.refuse[method] = which
    with pytest.raises(DeviceError, match="told to refuse"):
        executor.allocate([20, 20], 16, 8, 4)
    assert not stand.cuda.device_memory
    executor.close()
    assert stand.cuda.is_clean()
    assert not stand.cuda.faults


def test_all_is_given_back_in_order_and_once(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    del stand.cuda.calls[:]
    executor.close()
    executor.close()
    names = [n for n in stand.cuda.names() if n != "cuCtxSetCurrent"]
    contexts, frees = ["context freed"] * 2, ["cuMemFree", "cuMemFreeHost"] * 2
    libs = ["engine freed", "runtime freed", "plugins closed", "cuStreamDestroy", "cuDevicePrimaryCtxRelease"]
    assert names == ["cuStreamSynchronize", *contexts, "cuMemFree", *frees, *["cuMemFree"] * 4, *libs]
    assert stand.cuda.is_clean()
    assert not stand.cuda.faults


def test_a_broken_device_is_an_error_of_each_step_and_none_of_close(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    stand.cuda.broken = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    for _ in range(2):
        with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS on Fake GPU"):
            executor.run(made_step([0, 1], [1], [[[5]]] * 2))
    executor.close()
    names = stand.cuda.names()
    assert [n for n in names if n in ("context freed", "engine freed")] == ["context freed"] * 2 + ["engine freed"]
    assert names.count("cuMemFree") == 4 + 2 + 1, "it stopped at the first that failed"


def test_contexts_share_one_scratch_of_the_largest_profile(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    memory = [call[1:] for call in stand.cuda.calls if call[0] == "set_device_memory"]
    assert memory == [memory[0]] * 2
    assert memory[0][1] == 5000
    strategies = [call[1].strategy for call in stand.cuda.calls if call[0] == "create_execution_context"]
    assert strategies == [stand.trt.ExecutionContextAllocationStrategy.USER_MANAGED] * 2
    executor.close()
