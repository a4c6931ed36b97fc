"""Opens an engine of target cuda: chooses the plan for the GPU's SM, and sizes the KV cache by its free memory."""

from __future__ import annotations

from typing import Any

from tensorwright.engine_format.file_names import CUDA_PLAN, CUDA_WEIGHTS
from tensorwright.engine_format.gpu_code import runs_on
from tensorwright.engine_format.targets import TARGETS
from tensorwright.errors import EngineError, OutOfMemoryError
from tensorwright.options.engine import GPU_MEMORY
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine.cuda.library import cublaslt_names
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.memory import useful_bytes
from tensorwright.sizes import format_size


class CudaExecutor(_runtime.CudaExecutor):
    """The executor that `_runtime.Engine` takes over. device: the number of the GPU, as CUDA counts. threads: those
    that draw tokens. graphs: whether decode steps are replayed as CUDA graphs. draws: whether the GPU draws tokens
    where it can. ahead: whether a step may be started before the tokens of the last one are known, where the GPU draws
    them. memory_share: the share of the GPU's free memory, beside weights and activations, that the KV cache may take.

    Raises MissingDependencyError without a driver or cuBLASLt, EngineError for an engine without code for this GPU, or
    with wrong files, and OutOfMemoryError if its weights do not fit.
    """

    def __init__(
        self,
        engine: EngineDir,
        *,
        device: int = 0,
        threads: int = 1,
        graphs: bool = True,
        draws: bool = True,
        ahead: bool = True,
        memory_share: float = GPU_MEMORY,
    ):
        facts = _runtime.cuda_device(device)
        plan = CUDA_PLAN.format(choose_sm(engine, int(facts["sm"]), str(facts["name"])))
        super().__init__(
            str(engine.file(plan)), str(engine.file(CUDA_WEIGHTS)), device,
            cublaslt=cublaslt_names(), graphs=graphs, threads=threads, draws=draws, ahead=ahead,
        )  # fmt: skip
        self._memory_share = memory_share

    def kv_cache_bytes(
        self, asked: int | None, *, max_batch_size: int, max_num_tokens: int, max_rows: int, beside: int = 0
    ) -> int:
        """Returns the GPU's bytes for the KV cache: `asked` if it fits, or a share of the free memory if it is None.

        beside: the free bytes that another model is to have. The states of recurrent layers are a part of the cache
        (memory.py). The share is at most what a full batch of the longest sequences can use. Raises OutOfMemoryError if
        `asked`, or one block and one state, do not fit.
        """
        facts = self.facts()
        block, state = sum(facts["block_bytes"]), int(facts["state_bytes"])
        own = self.step_bytes(max_num_tokens, max_rows, max_batch_size)
        least = block + state
        room = max(0, self.free_memory() - own - least - beside)  # padding has a block and a state of its own
        other = f" and {format_size(beside)} of another model" if beside else ""
        room_text = (
            f"{format_size(room)} of {facts['device']} are free beside the weights and {format_size(own)} of "
            f"activations{other}"
        )
        if asked is not None:
            if asked < least:
                states = f" and the states of one completion, {state} bytes" if state else ""
                raise OutOfMemoryError(
                    f"kv_cache_memory must hold at least one block of {block} bytes{states}, got {asked}: raise it"
                )
            if asked > room:
                raise OutOfMemoryError(
                    f"kv_cache_memory is {format_size(asked)}, but {room_text}: ask for less, or leave it out"
                )
            return asked
        share = int(room * self._memory_share)
        if share < least:
            raise OutOfMemoryError(
                f"the KV cache needs at least {format_size(least)}, but {room_text}: lower max_num_tokens or "
                "max_batch_size, or end what else uses the GPU"
            )
        held = block * -(-int(facts["max_seq_len"]) // int(facts["block_size"]))
        return min(useful_bytes(held, state, max_batch_size, prefixes=True), share)

    def least_bytes(self, *, max_batch_size: int, max_num_tokens: int, max_rows: int) -> int:
        """Returns the GPU's bytes for steps of these sizes, and for a cache of one block beside that of padding."""
        facts = self.facts()
        least = sum(facts["block_bytes"]) + int(facts["state_bytes"])
        return int(self.step_bytes(max_num_tokens, max_rows, max_batch_size)) + 2 * least


def choose_sm(engine: EngineDir, sm: int, name: str) -> int:
    """Returns the SM whose code runs on this one: its own, or a lower one of its generation. Raises EngineError."""
    there = built_sms(engine)
    fits = [at for at in there if runs_on(at, sm)]
    if not fits:
        raise EngineError(
            f"{engine.path}: has code for SM {', '.join(map(str, there))}, and {name} has SM {sm}; build the model "
            f"with --sm {sm}"
        )
    return max(fits)


def built_sms(engine: EngineDir) -> tuple[int, ...]:
    """Returns the SMs for which the engine has code."""
    return engine.config.sms


def read_limits(engine: EngineDir) -> dict[str, int]:
    """Returns the largest step for which the engine was built."""
    usual, asked = TARGETS[engine.target].default_step, engine.config.build_options
    assert usual is not None
    return {
        "max_batch_size": asked.get("max_batch_size") or usual.seqs,
        "max_num_tokens": asked.get("max_num_tokens") or usual.tokens,
    }


def describe(engine: EngineDir) -> dict[str, Any]:
    """Returns the SMs for which the engine was built, and the limits of a step."""
    return {"sm": list(built_sms(engine)), **read_limits(engine)}
