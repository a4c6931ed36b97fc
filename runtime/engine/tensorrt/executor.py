"""Runs the steps of the C++ scheduler on a TensorRT engine: TensorRtExecutor.

A step is one copy of metadata to the device, one enqueue, and one copy of logits back, all on one stream. The KV cache
and the buffers of the largest step are allocated once and keep their addresses.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE, MODULES, Manifest, sent_output
from tensorwright.errors import DeviceError, InvalidOptionError, OutOfMemoryError, RankError
from tensorwright.options.engine import GPU_MEMORY
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.tensorrt.communicators import Communicators
from tensorwright.runtime.engine.tensorrt.cuda import Cuda, load_driver, require_devices
from tensorwright.runtime.engine.tensorrt.kv_pool import KvPool
from tensorwright.runtime.engine.tensorrt.library import LoadedEngine, check_device, check_version, load_bindings
from tensorwright.runtime.engine.tensorrt.memory import kv_bytes
from tensorwright.runtime.engine.tensorrt.nccl import load_nccl
from tensorwright.runtime.engine.tensorrt.profiles import BoundContext, choose_profile, largest_sizes, step_sizes
from tensorwright.runtime.engine.tensorrt.runtime_config import RuntimeSettings
from tensorwright.runtime.engine.tensorrt.step_buffers import ALIGNMENT, StepBuffers

LIMITS = {"tokens": "max_num_tokens", "seqs": "max_batch_size", "rows": "max_prompt_logprob_rows"}
"""The option that sets each size of a step."""


@dataclass(frozen=True)
class TensorRtOptions:
    """The options of a TensorRtExecutor.

    device: the number of the GPU, as CUDA counts. memory_share: the share of the GPU's memory beside the engine that
    the KV cache may take. settings: how the library runs its contexts.
    """

    device: int = 0
    memory_share: float = GPU_MEMORY
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)

    def __post_init__(self) -> None:
        if self.device < 0 or not 0 < self.memory_share <= 1:
            raise InvalidOptionError(f"device must be 0 or more and memory_share above 0 and at most 1, got {self}")


def read_manifest(engine: EngineDir) -> Manifest:
    """Reads the io.json of an engine, or of the rank that is opened. Raises EngineError if it is wrong, or differs from
    config.json."""
    plan, name = plan_files(engine)
    manifest = Manifest.from_json(engine.text(name), str(engine.path / name))
    engine.file(plan)
    facts = {name: getattr(manifest, name) for name in ("dtype", "vocab_size", "max_seq_len", "block_size")}
    # Ranks may have parts of the cache of different sizes. The runtime compares the largest when all have said theirs.
    sizes = {"kv_block_bytes": sum(manifest.block_bytes)} if engine.config.ranks == 1 else {}
    engine.require_same_build(name, {"target": manifest.flavour} | facts | sizes)
    return manifest


def plan_files(engine: EngineDir) -> tuple[str, str]:
    """Returns the names of the plan and of its io.json, of a parallel engine those of the rank that is opened."""
    if engine.config.ranks == 1:
        return ENGINE_FILE, MANIFEST_FILE
    plan, manifest = engine.config.run_files(engine.rank or 0)
    return plan, manifest


def check_ranks(engine: EngineDir, devices: tuple[int, ...]) -> None:
    """Raises MissingDependencyError unless this machine has NCCL and these GPUs, one for each of its ranks."""
    flavour = read_manifest(engine).flavour
    require_devices(load_driver(flavour), devices)
    load_nccl()


def describe(engine: EngineDir) -> dict[str, Any]:
    """Returns the library that reads the plan, the SMs for which it was built, and the limits of a step.

    An empty list of SMs means the library's defaults.
    """
    manifest = read_manifest(engine)
    return {
        "library": f"{MODULES[manifest.flavour]} {manifest.library_version}",
        "sm": list(manifest.sms),
        "kernels_for_sm": list(manifest.kernel_sms),
        "max_batch_size": manifest.limit("seqs"),
        "max_num_tokens": manifest.limit("tokens"),
    }


class TensorRtExecutor:
    """The executor of a TensorRT engine, which `_runtime.Engine(executor, options)` calls.

    All steps come from one thread, which is not the thread that made the executor. group: the ranks of a parallel
    engine. bindings, driver, nccl: the modules and the library to use; None means those of the engine's flavour. Raises
    MissingDependencyError if a package, the driver or a GPU is absent, EngineError for an engine that this GPU or this
    version cannot run, and RankError where ranks cannot meet.
    """

    def __init__(
        self,
        engine: EngineDir,
        *,
        options: TensorRtOptions | None = None,
        group: RankGroup | None = None,
        bindings: Any = None,
        driver: Any = None,
        nccl: Any = None,
    ):
        self._options = options or TensorRtOptions()
        self.manifest = read_manifest(engine)
        extra, path = self.manifest.flavour, engine.path / plan_files(engine)[0]
        self._group = group
        self._communicators: Communicators | None = None
        self._options.settings.check(extra, engine.config.ranks)
        trt = bindings if bindings is not None else load_bindings(extra)
        check_version(trt, self.manifest, path)
        with ExitStack() as stack:
            driver = driver if driver is not None else load_driver(extra)
            self._cuda = Cuda(driver, self._options.device)
            stack.callback(self._cuda.close)
            check_device(self._cuda, self.manifest, path)
            self._stream = self._cuda.make_stream()
            stack.callback(self._cuda.destroy_stream, self._stream)
            if group is not None:  # before the engine: ranks take their time to read it, and NCCL its memory
                self._communicators = Communicators(nccl if nccl is not None else load_nccl(), group)
                stack.callback(self._communicators.close)
                self._communicators.connect()
            self._engine = LoadedEngine(trt, self.manifest, path, driver, self._options.settings, self._communicators)
            stack.callback(self._engine.close)
            self._held = stack.pop_all()
        self._allocated: KvPool | None = None
        self._contexts: list[BoundContext] = []
        self._closed = False

    def facts(self) -> dict[str, Any]:
        """Returns the facts about the model that the scheduler and the sampler need."""
        m = self.manifest
        return {
            "vocab_size": m.vocab_size,
            "max_seq_len": m.max_seq_len,
            "block_size": m.block_size,
            "block_bytes": list(m.block_bytes),
            "group_windows": list(m.group_windows),
            "gives_logits": self._gives_logits,
        }

    @property
    def _gives_logits(self) -> bool:
        return self._group is None or self._group.gives_logits

    def kv_cache_bytes(self, asked: int | None, *, max_batch_size: int, max_num_tokens: int, max_rows: int) -> int:
        """Returns the device's bytes for the KV cache: `asked` if it fits, or a share of the free memory if it is None.

        Raises InvalidOptionError for steps for which the engine was not built, and OutOfMemoryError if `asked` or one
        block does not fit.
        """
        most = largest_sizes(self.manifest, max_num_tokens, max_rows, max_batch_size)
        self._check_sizes(most)
        self._cuda.activate()
        free, scratch = self._cuda.free_memory(), self._engine.scratch_bytes
        return kv_bytes(self.manifest, most, free, scratch, asked, self._options.memory_share)

    def allocate(self, blocks: list[int], max_tokens: int, max_rows: int, max_seqs: int) -> None:
        """Allocates the KV cache, the buffers of a step and the contexts. If one of them fails, it keeps nothing."""
        if self._allocated is not None:
            raise RuntimeError("allocate() is called once")
        most = largest_sizes(self.manifest, max_tokens, max_rows, max_seqs)
        self._check_sizes(most)
        self._check_blocks(list(blocks))
        self._cuda.activate()
        with ExitStack() as stack:
            try:
                pool, contexts = self._take(stack, list(blocks), most)
                self._cuda.synchronize(self._stream)
            except BaseException:
                self._settle()  # no kernel or copy may use memory that is about to be freed
                raise
            self._held.push(stack.pop_all())
        self._allocated, self._contexts = pool, contexts

    def _require_pool(self) -> KvPool:
        if self._allocated is None:
            raise RuntimeError("allocate() comes first")
        return self._allocated

    def _check_sizes(self, most: dict[str, int]) -> None:
        for symbol, option in LIMITS.items():
            limit = self.manifest.limit(symbol)
            if most[symbol] > limit:
                raise InvalidOptionError(
                    f"{option} asks for steps of {most[symbol]} {symbol}, but the engine was built for at most "
                    f"{limit}: lower {option}, or build the engine again for more"
                )

    def _check_blocks(self, blocks: list[int]) -> None:
        for group, count in enumerate(blocks):
            for profile in self.manifest.profiles:
                r = profile.symbols[f"pages.{group}"]
                if not r.min <= count <= r.max:
                    raise OutOfMemoryError(
                        f"the engine takes {r.min} to {r.max} blocks in cache group {group}, and kv_cache_memory comes "
                        f"to {count}: change it"
                    )

    def _take(self, stack: ExitStack, blocks: list[int], most: dict[str, int]) -> tuple[KvPool, list[BoundContext]]:
        pool = KvPool(stack, self._cuda, self._stream, self.manifest, blocks)
        self._buffers = StepBuffers(stack, self._cuda, self._stream, self.manifest, most)
        scratch = self._cuda.allocate(self._engine.scratch_bytes)
        stack.callback(self._cuda.free, scratch)
        places = {"logits": self._buffers.logits_address}
        for message in range(self.manifest.sends or 0):  # what is sent on has no numbers of its own here
            places[sent_output(message)] = self._cuda.allocate(ALIGNMENT)
            stack.callback(self._cuda.free, places[sent_output(message)])
        contexts = []
        for index in range(len(self.manifest.profiles)):
            contexts.append(BoundContext(self._engine, index, scratch, int(self._stream)))
            stack.callback(contexts[-1].close)
        self._bind_outputs(pool, contexts, places)
        return pool, contexts

    def _settle(self) -> bool:
        """Waits for everything that runs on the stream. Returns whether the device did it. It raises no errors, because
        it runs after an earlier error that says more."""
        try:
            self._cuda.activate()
            self._cuda.synchronize(self._stream)
        except DeviceError:
            return False
        return True

    def _bind_outputs(self, pool: KvPool, contexts: list[BoundContext], places: dict[str, int]) -> None:
        """Binds the pages and the outputs. Each page tensor is an input and, as an alias, an output at the same
        address."""
        for context in contexts:
            for name, pages in pool.tensors.items():
                context.bind_input(name, pages.shape, pages.address)
            for output in self.manifest.outputs:
                place = pool.tensors[output.alias].address if output.alias else places[output.name]
                context.bind_address(output.name, place)

    def run(self, step: Any) -> np.ndarray | None:
        """Runs a `_runtime.Step` and returns its logits, [rows, vocab] float32. The next step overwrites them. Of
        ranks, only the one that gives the logits copies and returns them.

        After a failure nothing runs on the device, so the next step may use the buffers. Raises RankError if the ranks
        have failed, which is the end of all steps.
        """
        self._require_pool()
        self._cuda.activate()
        with nullcontext() if self._communicators is None else self._communicators.step():
            try:
                return self._run(step)
            except BaseException as error:
                self._tell_ranks(error)
                self._settle()
                raise

    def _tell_ranks(self, error: BaseException) -> None:
        """Ends what ranks do together: others wait for this rank, and the device may wait for them."""
        if self._communicators is not None and self._group is not None:
            rank = f"[ranks] rank {self._group.rank} failed: "
            self._communicators.fail(f"{'' if isinstance(error, RankError) else rank}{error}")

    def _run(self, step: Any) -> np.ndarray | None:
        index, sizes = choose_profile(self.manifest, step, step_sizes(step, self.manifest))
        context = self._contexts[index]
        for name, (shape, address) in self._buffers.send(step, sizes).items():
            context.bind_input(name, shape, address)
        context.enqueue(int(self._stream))
        logits = self._buffers.receive(len(step.logit_rows) if self._gives_logits else 0)
        return logits if self._gives_logits else None

    def copy_block(self, group: int, from_block: int, to_block: int) -> None:
        """Copies one block of a group in all layers of the group. The copy is done before the next step begins."""
        pool = self._require_pool()
        self._cuda.activate()
        pool.copy_block(group, from_block, to_block)

    def close(self) -> None:
        """Frees all device memory: contexts, then buffers and cache, then the engine. It may be called twice.

        A broken device frees nothing before the process ends. close() does not raise for that, because the device's
        first error was raised already.
        """
        if self._closed:
            return
        self._closed = True
        if self._settle():
            self._engine.save_kernels()
        with suppress(DeviceError):
            self._held.close()
