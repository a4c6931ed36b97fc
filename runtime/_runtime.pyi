"""The C++ runtime: executor and engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, overload

import numpy
from numpy.typing import NDArray


def cpu_features() -> dict[str, bool]:
    """
    What the processor and the operating system offer, by name, less what TENSORWRIGHT_CPU_WITHOUT lists.
    """

def topology() -> dict[str, int]:
    """The NUMA "nodes" and physical "cores" that this process may use."""

def processors_of_rank(numa: str, rank: int, ranks: int, threads: int) -> list[int]:
    """
    The processors of a rank of this machine, each with so many threads; empty: the system places it. Raises InvalidOptionError.
    """

def isa() -> str:
    """
    The selected instruction-set level; IsaError if TENSORWRIGHT_ISA is wrong.
    """

def explain_dispatch() -> list[tuple[str, str, list[str]]]:
    """[(family, kernel taken, ["kernel: why refused"])]"""

def ceiling(what: str, threads: int = 1, repeats: int = 3) -> float:
    """
    Best measured rate per second: "read" (bytes), "float32", "bfloat16" or "int8" (operations), or that of a set of instructions: "float32 avx2", "int8 avx2", "int8 avx512", "bfloat16 avx512".
    """

def quantize_panels(dtype: int, group: int, source: Annotated[NDArray, dict(shape=(None, None), device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], first: int = 0, step: int = 1) -> tuple[float, float, bool]:
    """
    Quantizes source [rows, k] (float32, or uint16 for bfloat16) into panels of out (uint8); panel i goes to place first + i * step. dtype: as in engine_format/dtypes.py. group: weights per scale, 0 for one scale per row. Returns (sum of squared errors, sum of squared weights, whether all were finite). Raises InvalidOptionError.
    """

class QuantizedRows:
    """
    Rows that are quantized as the engine quantizes the activations before a product.
    """

    def __init__(self, dtype: int, group: int, x: Annotated[NDArray, dict(shape=(None, None), device='cpu', writable=False)]) -> None:
        """
        x [rows, k] is float32, or uint16 for bfloat16; dtype and group are those of the weights, as in quantize_panels. Raises InvalidOptionError.
        """

    def product(self, w: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], y: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu')]) -> None:
        """
        Writes the product of x and the first n rows of a matrix into y [rows, n]; w holds the panels of these rows. Any thread may call it. Raises InvalidOptionError.
        """

class FloatRows:
    """Rows for products with weights that leave activations as they are."""

    def __init__(self, x: Annotated[NDArray, dict(shape=(None, None), device='cpu', writable=False)]) -> None:
        """
        x [rows, k] is float32, or uint16 for bfloat16. It is copied. Raises InvalidOptionError.
        """

    def product(self, dtype: int, group: int, w: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], y: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu')]) -> None:
        """
        Writes the product of x and the first n rows of a matrix into y [rows, n]; w holds the panels of these rows, of this dtype and group. Any thread may call it. Raises InvalidOptionError.
        """

class CpuExecutor:
    """Runs the plan of a cpu engine, one step of a ragged batch at a time."""

    def __init__(self, plan_path: str, weights_path: str, threads: int = 0, load: str = 'map', ranks: RankOptions | None = None) -> None:
        """
        threads: 0 is one per usable processor; load: 'map' or 'copy'; ranks: the others of a parallel engine, whose rank 0 this is. Raises EngineError, RankError.
        """

    def facts(self) -> dict[str, Any]:
        """vocab_size, max_seq_len, block_size, block_bytes and more."""

    def gone_blocks(self, group: int, slot: int) -> list[int]:
        """
        Of a group with a budget: 1 for each block that the sequence of a state slot has forgotten.
        """

    def allocate(self, blocks: Sequence[int], max_tokens: int, max_rows: int, max_seqs: int, state_slots: int = 0) -> None:
        """
        Makes room, once: blocks is a list with one count per cache group; state_slots is 0 unless facts() has state_bytes.
        """

    def step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], state_slots: object = (), prompt_lens: object = ()) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Runs a step; arguments are int32 arrays or lists, groups is [(block_tables int32 [seqs, max_blocks], slots [tokens])], state_slots is [seqs] if the model has states, prompt_lens is [seqs] if facts() has sparse_prefill; without it no row chooses what it sees. Returns float32 [rows, vocab]. Raises InvalidRequestError, with nothing done, if the step is malformed.
        """

    def step_with_features(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], state_slots: object = ()) -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        Runs a step as step does. Returns its result, and the features of all tokens, float32 [tokens, draft_width].
        """

    def draft_step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], features: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        Runs a step of the engine's heads, each token with the feature of the position before it, float32 [tokens, draft_width]. Returns float32 [rows, draft_vocab], and their own features [rows, draft_width]. Raises InvalidRequestError as step does.
        """

    def score(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], targets: object, state_slots: object = (), prompt_lens: object = ()) -> list[float]:
        """
        Runs a step and returns, for each logit row, the natural logarithm of the probability of its target, a list of floats. Raises InvalidRequestError as step does, NumericalError if a row holds no distribution.
        """

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copies one KV block in all layers of a cache group."""

    def copy_state(self, source: int, target: int) -> None:
        """Copies the states of all recurrent layers from one slot to another."""

    def set_work_cut(self, values: Mapping[str, int]) -> None:
        """
        Cuts the products of the next steps by these sizes, by name; see base/work_cut.h. Results are the same. Raises InvalidOptionError.
        """

    def profile(self, enable: bool) -> None:
        """Turns profiling on, from zero, or off."""

    def profile_table(self, phase: str = '') -> list[dict[str, Any]]:
        """
        Per instruction: name, op, arithmetic, calls, ns, bytes (moved at least), ops (arithmetic), and with experts expert_rows, how many rows took each. phase: of steps in which sequences have several tokens (prefill), one (decode), or some of either (mixed).
        """

    def profile_steps(self) -> dict[str, dict[str, int]]:
        """Per phase: steps, tokens, sequences, rows, ns."""

    def weight_reads(self) -> dict[str, Any]:
        """
        Of a step of one token: bytes of weights that it reads; and mixtures, for each layer of experts its module, experts, taken (by a token) and bytes_of_one.
        """

    def dispatch(self) -> list[dict[str, Any]]:
        """Per kernel family: the kernel taken, and why better ones were not."""

def cuda_device(device: int) -> dict[str, Any]:
    """
    name, sm, multiprocessors and memory (bytes) of a GPU. Raises MissingDependencyError without a driver, InvalidOptionError without such a GPU.
    """

class CudaExecutor:
    """
    Opens an engine of target cuda on a GPU. An Engine takes it, or it runs a step at a time.
    """

    def __init__(self, plan_path: str, weights_path: str, device: int, cublaslt: Sequence[str], graphs: bool = True, threads: int = 1, draws: bool = True, ahead: bool = True) -> None:
        """
        cublaslt: names of the library, of which the first that is there is taken. graphs: whether decode steps are replayed as CUDA graphs. draws: whether tokens are drawn on the GPU where that can be. ahead: whether a step may be started before the tokens of the last one are known, where the GPU draws them. threads: that draw tokens, 0 is one per usable processor. Raises EngineError, MissingDependencyError, OutOfMemoryError.
        """

    def facts(self) -> dict[str, Any]:
        """Facts of the model, the limits of a step, and the GPU's name and sm."""

    def free_memory(self) -> int:
        """The bytes of the GPU that are free."""

    def step_bytes(self, max_tokens: int, max_rows: int, max_seqs: int) -> int:
        """The bytes of the GPU that steps of these sizes take beside the cache."""

    def allocate(self, blocks: Sequence[int], max_tokens: int, max_rows: int, max_seqs: int, state_slots: int = 0) -> None:
        """
        Makes room, once: blocks is a list with one count per cache group, state_slots how many sequences have states.
        """

    def step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], state_slots: object = ()) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Runs a step as CpuExecutor.step does. Returns float32 [rows, vocab]. One thread at a time.
        """

    def step_seconds(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], repeats: int, draws: Sequence[tuple[float, int, float, float, float] | None] = []) -> list[float]:
        """
        Runs a step so many times, as step does, or draw_step with draws. Returns the seconds of each, its logits and tokens in the host's memory.
        """

    def counters(self) -> dict[str, Any]:
        """
        How many steps ran without a graph (eager), were captured, and were replayed; of how many rows the tokens were drawn on the GPU (drawn), and left to the host after all (undecided); how many of the steps were of heads (head_steps), and were started while another one was underway (ahead).
        """

    def draw_step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], draws: Sequence[tuple[float, int, float, float, float] | None], state_slots: object = ()) -> tuple[list[int], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        Runs a step as step does, and draws tokens. draws: for each row of logits None, or (temperature, top_k, top_p, min_p, number in [0, 1)). Returns (int32 tokens, -1 for a row of logits; float32 [rows, vocab], whose rows with a token mean nothing).
        """

    def want_features(self, wanted: bool) -> None:
        """
        Whether the next steps write features for the heads into the slots of their tokens.
        """

    def draft_step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], draws: Sequence[tuple[float, int, float, float, float] | None] = []) -> tuple[list[int], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        Runs a step of the engine's heads: each token is the one behind its position, whose feature lies in its slot. Returns tokens and float32 [rows, draft_vocab], as draw_step does. Raises InvalidRequestError as step does.
        """

    def copy_block(self, group: int, source: int, target: int) -> None:
        """Copies one KV block in all layers of a cache group."""

    def copy_state(self, source: int, target: int) -> None:
        """Copies the states of all recurrent layers from one slot to another."""

    def close(self) -> None:
        """Frees the GPU's memory, unless an engine has taken the executor."""

class PlanCosts:
    """What the steps of a plan of target cpu cost, without its weights."""

    def __init__(self, plan: bytes) -> None:
        """plan: the bytes of plan.bin. Raises EngineError."""

    def step(self, sequences: Sequence[tuple[int, int]], rows: int) -> list[dict[str, Any]]:
        """
        Per instruction of a step: name, op, arithmetic (the type whose peak bounds it), bytes (moved at least), ops (arithmetic), weight_bytes, weight_dtype (-1: no matrix), weight_group, size (rows, or the context). sequences: (tokens of the step, positions after it) of each; rows: how many tokens get logits. Raises InvalidRequestError.
        """

    def facts(self) -> dict[str, Any]:
        """
        weights_bytes; block_size; per cache group block_bytes and group_windows; state_bytes; max_seq_len.
        """

    def buffers(self) -> list[dict[str, Any]]:
        """
        Per buffer: maker (op and module), of_rows (of logits, else of tokens), offset and bytes for one of them, first and last (instructions that use it).
        """

    def memory(self, tokens: int, rows: int, sequences: int, threads: int) -> dict[str, Any]:
        """The bytes that steps up to these limits take: activations, scratch."""

class Adapter:
    """The weights of an adapter in the form of the engine that made it."""

    @property
    def key(self) -> str:
        """A text that is equal for adapters of equal content only."""

class DryBreakers:
    """The sequence breakers of DRY, which many requests may share."""

    def __init__(self, spellings: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """
        (tail, heads): each of the tokens `heads` with the tokens `tail` behind it
        """

class Sampling:
    """How one request is sampled, and when it ends."""

    def __init__(self) -> None: ...

    @property
    def n(self) -> int:
        """completions; number i draws with completion_seed(seed, i)"""

    @n.setter
    def n(self, arg: int, /) -> None: ...

    @property
    def beam_width(self) -> int:
        """above 1: the completions are the best of a beam search"""

    @beam_width.setter
    def beam_width(self, arg: int, /) -> None: ...

    @property
    def length_penalty(self) -> float:
        """a beam's score is its sum / length ^ this"""

    @length_penalty.setter
    def length_penalty(self, arg: float, /) -> None: ...

    @property
    def early_stopping(self) -> str:
        """
        when a beam search with enough answers ends: 'no': when the best beam scores no better at its length, 'yes': at once, 'never': when no beam can come to score better
        """

    @early_stopping.setter
    def early_stopping(self, arg: str, /) -> None: ...

    @property
    def max_tokens(self) -> int: ...

    @max_tokens.setter
    def max_tokens(self, arg: int, /) -> None: ...

    @property
    def temperature(self) -> float:
        """0: greedy"""

    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...

    @property
    def top_k(self) -> int:
        """0 or -1: off"""

    @top_k.setter
    def top_k(self, arg: int, /) -> None: ...

    @property
    def top_p(self) -> float:
        """1: off"""

    @top_p.setter
    def top_p(self, arg: float, /) -> None: ...

    @property
    def min_p(self) -> float:
        """0: off"""

    @min_p.setter
    def min_p(self, arg: float, /) -> None: ...

    @property
    def typical_p(self) -> float:
        """1: off"""

    @typical_p.setter
    def typical_p(self, arg: float, /) -> None: ...

    @property
    def xtc_threshold(self) -> float:
        """of the tokens at least so likely one is left"""

    @xtc_threshold.setter
    def xtc_threshold(self, arg: float, /) -> None: ...

    @property
    def xtc_probability(self) -> float:
        """0: off; how often"""

    @xtc_probability.setter
    def xtc_probability(self, arg: float, /) -> None: ...

    @property
    def dry_multiplier(self) -> float:
        """0: off"""

    @dry_multiplier.setter
    def dry_multiplier(self, arg: float, /) -> None: ...

    @property
    def dry_base(self) -> float: ...

    @dry_base.setter
    def dry_base(self, arg: float, /) -> None: ...

    @property
    def dry_allowed_length(self) -> int:
        """the longest repetition that is free"""

    @dry_allowed_length.setter
    def dry_allowed_length(self, arg: int, /) -> None: ...

    @property
    def dry_penalty_last_n(self) -> int:
        """tokens to look back; -1: all, 0: off"""

    @dry_penalty_last_n.setter
    def dry_penalty_last_n(self, arg: int, /) -> None: ...

    @property
    def dry_breakers(self) -> DryBreakers:
        """across which nothing repeats; None: there are none"""

    @dry_breakers.setter
    def dry_breakers(self, breakers: DryBreakers | None) -> None: ...

    @property
    def no_repeat_ngram_size(self) -> int:
        """0: off"""

    @no_repeat_ngram_size.setter
    def no_repeat_ngram_size(self, arg: int, /) -> None: ...

    @property
    def min_tokens(self) -> int:
        """no end-of-sequence or stop token before so many"""

    @min_tokens.setter
    def min_tokens(self, arg: int, /) -> None: ...

    @property
    def repetition_penalty(self) -> float:
        """1: off; over prompt and output"""

    @repetition_penalty.setter
    def repetition_penalty(self, arg: float, /) -> None: ...

    @property
    def presence_penalty(self) -> float:
        """0: off; over the output"""

    @presence_penalty.setter
    def presence_penalty(self, arg: float, /) -> None: ...

    @property
    def frequency_penalty(self) -> float:
        """0: off; over the output"""

    @frequency_penalty.setter
    def frequency_penalty(self, arg: float, /) -> None: ...

    @property
    def logit_bias(self) -> list[tuple[int, float]]:
        """(token, bias) pairs"""

    @logit_bias.setter
    def logit_bias(self, arg: Sequence[tuple[int, float]], /) -> None: ...

    @property
    def bad_words(self) -> list[list[int]]:
        """lists of tokens that must not occur"""

    @bad_words.setter
    def bad_words(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def seed(self) -> int | None:
        """None: drawn once per request"""

    @seed.setter
    def seed(self, seed: object | None) -> None: ...

    @property
    def stop_token_ids(self) -> list[int]:
        """ascending; end the request even with ignore_eos"""

    @stop_token_ids.setter
    def stop_token_ids(self, arg: Sequence[int], /) -> None: ...

    @property
    def eos_token_ids(self) -> list[int]:
        """ascending"""

    @eos_token_ids.setter
    def eos_token_ids(self, arg: Sequence[int], /) -> None: ...

    @property
    def timeout_s(self) -> float:
        """from arrival to the end, negative: none"""

    @timeout_s.setter
    def timeout_s(self, arg: float, /) -> None: ...

    @property
    def priority(self) -> int:
        """higher ones start first"""

    @priority.setter
    def priority(self, arg: int, /) -> None: ...

    @property
    def tenant(self) -> int:
        """
        of equal priorities, those of the tenant start first that has had the least for its weight
        """

    @tenant.setter
    def tenant(self, arg: int, /) -> None: ...

    @property
    def tenant_weight(self) -> float:
        """0.001 to 1000"""

    @tenant_weight.setter
    def tenant_weight(self, arg: float, /) -> None: ...

    @property
    def deadline_s(self) -> float:
        """
        from arrival to the end, negative: none; what cannot end by then ends with DeadlineError
        """

    @deadline_s.setter
    def deadline_s(self, arg: float, /) -> None: ...

    @property
    def ignore_eos(self) -> bool: ...

    @ignore_eos.setter
    def ignore_eos(self, arg: bool, /) -> None: ...

    @property
    def logprobs(self) -> int:
        """-1: none, 0: of the sampled token, n: of the n likeliest as well"""

    @logprobs.setter
    def logprobs(self, arg: int, /) -> None: ...

    @property
    def prompt_logprobs(self) -> int:
        """the same of each prompt token but the first"""

    @prompt_logprobs.setter
    def prompt_logprobs(self, arg: int, /) -> None: ...

    @property
    def cache_salt(self) -> str:
        """
        what the prefix cache remembers of it is found by requests with the same alone
        """

    @cache_salt.setter
    def cache_salt(self, arg: str, /) -> None: ...

    @property
    def adapter(self) -> Adapter | None:
        """an adapter that the engine has made; None: the model alone"""

    @adapter.setter
    def adapter(self, adapter: Adapter | None) -> None: ...

    @property
    def processor(self) -> object:
        """
        called with int32 [tokens] and float32 [vocab] before each draw, it changes the latter in place
        """

    @processor.setter
    def processor(self, chain: object | None) -> None: ...

    @property
    def pooling(self) -> str:
        """
        'none': tokens are wanted; 'last' or 'mean': the row of the last position, or the mean of all
        """

    @pooling.setter
    def pooling(self, arg: str, /) -> None: ...

    @property
    def pooled_columns(self) -> list[int]:
        """of the pooled row, in this order; []: all"""

    @pooled_columns.setter
    def pooled_columns(self, arg: Sequence[int], /) -> None: ...

    @property
    def guided(self) -> bool:
        """no token is sampled before its mask was set"""

    @guided.setter
    def guided(self, arg: bool, /) -> None: ...

class Ranks:
    """The other ranks of a parallel engine, as one of them sees them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    OPENING: Final[int] = ...
    """
    how many times as long as in a step a rank waits for others that open their files
    """

    @property
    def failure(self) -> str:
        """why the ranks can go on no more; empty while they can"""

    def fail(self, why: str) -> None:
        """Ends what all ranks do with a RankError of this text."""

    def share(self, data: bytes, size: int) -> bytes:
        """
        Returns the bytes that rank 0 gives, on every rank; the others give b''. All ranks must call it. Raises RankError.
        """

class RankOptions:
    """The ranks of an engine, and how they share it."""

    @overload
    def __init__(self) -> None: ...

    @overload
    def __init__(self, ranks: Ranks, tensor: int, stages: int, fingerprint: int) -> None:
        """
        fingerprint: a number of 64 bits that says what engine is open. Raises InvalidOptionError.
        """

def create_rank_memory(path: str, ranks: int) -> None:
    """
    Makes a file of shared memory for the ranks of one machine. Raises InvalidOptionError, OutOfMemoryError, EngineError.
    """

def shared_ranks(path: str, rank: int, timeout_s: float, spins: int) -> Ranks:
    """
    The ranks that talk through such a file. timeout_s: how long a rank waits for another in a step. spins: how often a rank looks before it sleeps.
    """

def mpi_ranks(library: str, timeout_s: float) -> Ranks:
    """
    The ranks that MPI has started. Raises MissingDependencyError, EngineError.
    """

def exchange_seconds(path: str, bytes: int, rounds: int) -> list[float]:
    """
    The times of exchanges between two ranks, which are threads, through a new file of shared memory. Raises InvalidOptionError, OutOfMemoryError, EngineError, RankError.
    """

def follow_with(executor: object, options: RankOptions) -> None:
    """
    The same as follow, with an executor that is written in Python. It closes the executor at the end.
    """

def follow(plan_path: str, weights_path: str, options: RankOptions, threads: int = 0, load: str = 'map') -> None:
    """
    Does a rank's part of what rank 0 computes, until that ends. Raises RankError, EngineError, IsaError.
    """

class PrefixTransfers:
    """
    Prefixes of an engine's cache, to give to other engines, to take from them, and to pin. Each call runs between two steps and waits for that at most timeout_s.
    """

    def layout(self) -> dict[str, Any]:
        """block_size, block_bytes and windows by cache group, and state_bytes."""

    def extent(self, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], salt: str, timeout_s: float) -> tuple[int, bool]:
        """
        (blocks, state): the full blocks that a sequence can go on behind, and whether states are behind.
        """

    def read(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], salt: str, pieces: Annotated[NDArray[numpy.int32], dict(shape=(None, 2), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], timeout_s: float) -> None:
        """
        Fills out, uint8, with pieces, int32 [n, 2] of (group, block), one behind the other.
        """

    def read_state(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], salt: str, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], timeout_s: float) -> None:
        """Fills out, uint8, with the states behind all of tokens."""

    def begin(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], salt: str, timeout_s: float) -> tuple[int, Annotated[NDArray[numpy.int32], dict(shape=(None, None))], bool]:
        """(import, pieces, state): begins an import, and says what it needs."""

    def write(self, import_: int, pieces: Annotated[NDArray[numpy.int32], dict(shape=(None, 2), order='C', device='cpu', writable=False)], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], timeout_s: float) -> None:
        """Puts pieces into free blocks. A failure drops the import."""

    def finish(self, import_: int, states: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], timeout_s: float) -> None:
        """
        Remembers the prefix; states are empty if none were needed. A failure drops the import.
        """

    def drop(self, import_: int, timeout_s: float) -> None:
        """Forgets an import, if it is there."""

    def imports(self, timeout_s: float) -> int:
        """The number of imports under way."""

    def pin(self, number: int, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], salt: str, timeout_s: float) -> int:
        """
        Keeps the full blocks of tokens from being evicted, and returns how many of them the cache has; if it lacks some, nothing is pinned.
        """

    def unpin(self, number: int, timeout_s: float) -> None:
        """Ends a pin, if it is there."""

class CacheFeed:
    """
    The events of an engine's prefix cache, and its content. An event is a tuple: number, stored, tier (0 KV cache, 1 memory, 2 disk), group, block, parent, salt, adapter, token ids; names are 32 hexadecimal digits, and None stands for what there is not.
    """

    @property
    def epoch(self) -> int:
        """What the numbers of this engine's events belong to."""

    def begin(self) -> int:
        """The number of the last event; those behind it are kept from now on."""

    def read(self, after: int, limit: int, timeout_s: float) -> tuple[list[tuple], int, int]:
        """
        (events, next, lost): at most limit events behind number after, for the first of which it waits, and the number to go on behind. If some of them are gone, none are returned, lost says how many there were, and the content is to be read again.
        """

    def content(self, place: tuple[int, int, int, int], limit: int, timeout_s: float) -> tuple[list[tuple], tuple[int, int, int, int]]:
        """
        (events, place): the next page of what is stored, and where the one after it begins: (0, 0, 0, 0) at first, stage 4 at the end.
        """

    def salt_name(self, salt: str) -> str:
        """What events call a cache_salt."""

    def adapter_name(self, key: str) -> str:
        """What events call an adapter with this key."""

class EngineOptions:
    """
    How an engine runs. kv_cache_bytes must be set: it is shared by all cache groups.
    """

    def __init__(self) -> None: ...

    @property
    def kv_cache_bytes(self) -> int:
        """bytes"""

    @kv_cache_bytes.setter
    def kv_cache_bytes(self, arg: int, /) -> None: ...

    @property
    def max_batch_size(self) -> int:
        """sequences running at once"""

    @max_batch_size.setter
    def max_batch_size(self, arg: int, /) -> None: ...

    @property
    def max_num_tokens(self) -> int:
        """tokens in a step, at least max_batch_size"""

    @max_num_tokens.setter
    def max_num_tokens(self, arg: int, /) -> None: ...

    @property
    def max_queue(self) -> int:
        """
        requests alive beyond max_batch_size, before submit raises QueueFullError
        """

    @max_queue.setter
    def max_queue(self, arg: int, /) -> None: ...

    @property
    def max_prompt_rows(self) -> int:
        """
        prompt positions in a step whose logits are wanted, for prompt_logprobs
        """

    @max_prompt_rows.setter
    def max_prompt_rows(self, arg: int, /) -> None: ...

    @property
    def threads(self) -> int:
        """0: one per usable processor"""

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def load(self) -> str:
        """'map' or 'copy'"""

    @load.setter
    def load(self, arg: str, /) -> None: ...

    @property
    def processors(self) -> list[int]:
        """
        the processors of this rank where ranks share the machine; empty: all that the process may use
        """

    @processors.setter
    def processors(self, arg: Sequence[int], /) -> None: ...

    @property
    def numa(self) -> str:
        """'auto', 'off', 'split' or 'interleave'; see executor/numa.h"""

    @numa.setter
    def numa(self, arg: str, /) -> None: ...

    @property
    def work_cut(self) -> dict[str, int]:
        """
        How products are cut into tasks, by name; see base/work_cut.h. Raises InvalidOptionError.
        """

    @work_cut.setter
    def work_cut(self, arg: Mapping[str, int], /) -> None: ...

    @property
    def populate_bytes(self) -> int:
        """memory whose page faults are taken before the first request"""

    @populate_bytes.setter
    def populate_bytes(self, arg: int, /) -> None: ...

    @property
    def ranks(self) -> RankOptions:
        """the ranks of a parallel engine"""

    @ranks.setter
    def ranks(self, arg: RankOptions, /) -> None: ...

    @property
    def max_adapters(self) -> int:
        """adapters that may live at once"""

    @max_adapters.setter
    def max_adapters(self, arg: int, /) -> None: ...

    @property
    def max_adapter_rank(self) -> int:
        """
        the most rows of the first matrix of one product of an adapter, of all its parts together
        """

    @max_adapter_rank.setter
    def max_adapter_rank(self, arg: int, /) -> None: ...

    @property
    def trace(self) -> bool:
        """whether the spans of steps, instructions and threads are kept"""

    @trace.setter
    def trace(self, arg: bool, /) -> None: ...

    @property
    def trace_steps(self) -> bool:
        """
        whether the spans of steps and requests are kept, without those of instructions and threads
        """

    @trace_steps.setter
    def trace_steps(self, arg: bool, /) -> None: ...

    @property
    def prefix_cache(self) -> bool: ...

    @prefix_cache.setter
    def prefix_cache(self, arg: bool, /) -> None: ...

    @property
    def jump_forward(self) -> bool:
        """
        whether tokens that a grammar forces are computed with the token before them; only target cpu
        """

    @jump_forward.setter
    def jump_forward(self, arg: bool, /) -> None: ...

    @property
    def state_snapshots(self) -> int:
        """
        states of recurrent layers that the prefix cache keeps, besides those of max_batch_size sequences
        """

    @state_snapshots.setter
    def state_snapshots(self, arg: int, /) -> None: ...

    @property
    def pinned_bytes(self) -> int:
        """of kv_cache_bytes, what pinned prefixes may hold, 0: none"""

    @pinned_bytes.setter
    def pinned_bytes(self, arg: int, /) -> None: ...

    @property
    def cache_events(self) -> int:
        """
        events of the prefix cache that are kept for those who read them, 0: none; needs tier_secret
        """

    @cache_events.setter
    def cache_events(self, arg: int, /) -> None: ...

    @property
    def tier_memory_bytes(self) -> int:
        """memory for blocks that the prefix cache forgets, 0: none"""

    @tier_memory_bytes.setter
    def tier_memory_bytes(self, arg: int, /) -> None: ...

    @property
    def tier_disk(self) -> str:
        """the directory for such blocks, '': none"""

    @tier_disk.setter
    def tier_disk(self, arg: str, /) -> None: ...

    @property
    def tier_disk_bytes(self) -> int:
        """the most bytes there"""

    @tier_disk_bytes.setter
    def tier_disk_bytes(self, arg: int, /) -> None: ...

    @property
    def tier_ttl(self) -> float:
        """seconds for which a block is kept after its last use, 0: no limit"""

    @tier_ttl.setter
    def tier_ttl(self, arg: float, /) -> None: ...

    @property
    def tier_secret(self) -> bytes:
        """32 bytes that the names of blocks are made with"""

    @tier_secret.setter
    def tier_secret(self, arg: bytes, /) -> None: ...

    @property
    def tier_identity(self) -> str:
        """what engines that compute the same bits have in common"""

    @tier_identity.setter
    def tier_identity(self, arg: str, /) -> None: ...

    @property
    def draft_tokens(self) -> int:
        """tokens proposed for a sequence in a step, 0: as many as pay"""

    @draft_tokens.setter
    def draft_tokens(self, arg: int, /) -> None: ...

    @property
    def draft_rows(self) -> int:
        """proposed tokens of all sequences in a step"""

    @draft_rows.setter
    def draft_rows(self, arg: int, /) -> None: ...

    @property
    def proposer(self) -> str:
        """'': nothing is proposed, 'ngram', 'suffix', 'draft' or 'heads'"""

    @proposer.setter
    def proposer(self, arg: str, /) -> None: ...

    @property
    def draft_token_ids(self) -> list[int]:
        """the target's token for each that heads propose, []: the same tokens"""

    @draft_token_ids.setter
    def draft_token_ids(self, arg: Sequence[int], /) -> None: ...

    @property
    def draft_remembered(self) -> int:
        """tokens of outputs, of proposer 'suffix'"""

    @draft_remembered.setter
    def draft_remembered(self, arg: int, /) -> None: ...

    @property
    def draft_plan(self) -> str:
        """the plan of the draft model"""

    @draft_plan.setter
    def draft_plan(self, arg: str, /) -> None: ...

    @property
    def draft_weights(self) -> str:
        """the weights of the draft model"""

    @draft_weights.setter
    def draft_weights(self, arg: str, /) -> None: ...

    @property
    def draft_kv_bytes(self) -> int:
        """bytes of the draft model's KV cache"""

    @draft_kv_bytes.setter
    def draft_kv_bytes(self, arg: int, /) -> None: ...

    @property
    def draft_least(self) -> int:
        """tokens that must be equal, at least 2"""

    @draft_least.setter
    def draft_least(self, arg: int, /) -> None: ...

    @property
    def max_chunk(self) -> int:
        """tokens of one prefill in a step, 0: no cap"""

    @max_chunk.setter
    def max_chunk(self, arg: int, /) -> None: ...

    @property
    def itl_goal_s(self) -> float:
        """
        seconds between two tokens of a completion, 0: none; see scheduler/step_pace.h
        """

    @itl_goal_s.setter
    def itl_goal_s(self, arg: float, /) -> None: ...

    @property
    def ageing_s(self) -> float:
        """
        seconds of waiting that are worth one priority, 0: none; see scheduler/scheduler.h
        """

    @ageing_s.setter
    def ageing_s(self, arg: float, /) -> None: ...

    @property
    def debug_preempt_every(self) -> int:
        """for tests: steps between forced preemptions, 0: none"""

    @debug_preempt_every.setter
    def debug_preempt_every(self, arg: int, /) -> None: ...

    @property
    def debug_seed(self) -> int:
        """for tests: decides who is preempted"""

    @debug_seed.setter
    def debug_seed(self, arg: int, /) -> None: ...

    @property
    def debug_stepped(self) -> bool:
        """for tests: no thread of its own, Engine.turn() does what that would do"""

    @debug_stepped.setter
    def debug_stepped(self, arg: bool, /) -> None: ...

    @property
    def debug_lose_block(self) -> int:
        """for tests: the step after which a block is lost, 0: none"""

    @debug_lose_block.setter
    def debug_lose_block(self, arg: int, /) -> None: ...

class Event:
    """News of one request."""

    @property
    def request_id(self) -> int: ...

    @property
    def completion(self) -> int:
        """which of the n; each has a last event"""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def logprobs(self) -> list[list[tuple[int, float, int]]]:
        """
        parallel to tokens, or empty: (token, logprob, rank) of the sampled token, then of the others asked for
        """

    @property
    def prompt_logprobs(self) -> list[list[tuple[int, float, int]]]:
        """
        of the next prompt tokens, from the second on, if asked for: (token, logprob, rank) of the token, then of the others
        """

    @property
    def pooled(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C')] | None:
        """
        float32 [columns] of a request that pools, in its last event; None in all others
        """

    @property
    def finish(self) -> str:
        """
        '', 'stop', 'length', 'abort', 'timeout' or 'error'; not '' in the last event
        """

    @property
    def stop_token(self) -> int:
        """what ended the request, -1: nothing did; it is in tokens too"""

    @property
    def error_type(self) -> str:
        """a class of tensorwright.errors"""

    @property
    def error(self) -> str: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int:
        """prompt tokens the prefix cache had at the start"""

    @property
    def draft_tokens(self) -> int:
        """tokens that were proposed for the completion"""

    @property
    def accepted_tokens(self) -> int:
        """those of them that were right"""

    @property
    def cumulative_logprob(self) -> float:
        """of a beam's tokens, in its last event"""

    @property
    def queue_s(self) -> float:
        """arrival to the first step, -1: not started"""

    @property
    def first_token_s(self) -> float:
        """arrival to the first token, -1: none yet"""

class Step:
    """
    What a Python executor's run() is given: a ragged batch. Read-only int32 views, valid as long as anybody holds them.
    """

    @property
    def token_ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """[tokens]"""

    @property
    def positions(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """[tokens]"""

    @property
    def seq_starts(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """[seqs + 1]: first token of each sequence, then the number of tokens"""

    @property
    def context_lens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """[seqs]: positions in the cache once the step has written its own"""

    @property
    def logit_rows(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """[rows]: tokens whose logits are wanted"""

    @property
    def groups(self) -> int:
        """number of cache groups"""

    def block_tables(self, group: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None, None), writable=False)]:
        """[seqs, max_blocks], unused entries -1"""

    def slots(self, group: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """[tokens]: block * block_size + offset"""

class Engine:
    """
    The served engine: in-flight batching on a thread of its own. Thread-safe.
    """

    @overload
    def __init__(self, plan_path: str, weights_path: str, options: EngineOptions) -> None:
        """Raises EngineError, InvalidOptionError, OutOfMemoryError."""

    @overload
    def __init__(self, executor: CudaExecutor, options: EngineOptions, draft: CudaExecutor | None = None) -> None:
        """
        An executor of target cuda, which the engine takes over; so it does that of the draft model.
        """

    @overload
    def __init__(self, executor: object, options: EngineOptions) -> None:
        """
        An executor written in Python: facts, allocate, run, copy_block and close, called by the engine's thread.
        """

    def submit(self, request_id: int, prompt: object, sampling: Sampling, first_mask: object | None = None) -> None:
        """
        prompt: list of ints or int32 [tokens]. first_mask: as set_mask's bits, of token 0 of every completion, for guided requests only. Raises InvalidRequestError, PromptTooLongError, QueueFullError, EngineStoppedError, before anything starts.
        """

    def set_mask(self, request_id: int, completion: int, generated: int, bits: object) -> bool:
        """
        Which tokens a guided completion may have as token number `generated`, from 0: uint32 [ceil(vocab_size / 32)], bit t % 32 of word t / 32 for token t. Until it comes the completion sits out steps. False if the completion is not alive. Raises InvalidRequestError.
        """

    def abort(self, request_id: int, completion: int = -1) -> bool:
        """
        False if it is not alive; else its last event follows. completion: one that has tokens, -1: all.
        """

    def wait_events(self, timeout_s: float) -> list[Event]:
        """
        All news, waiting for some if there is none; empty at once after the end.
        """

    def stats(self) -> dict[str, Any]:
        """
        Counts as of the last step; blocks are those of the cache group with the widest window, `groups` has all.
        """

    def facts(self) -> dict[str, Any]:
        """vocab_size, max_seq_len, block_size, blocks and more."""

    def profile(self, enable: bool) -> None:
        """Turns profiling on, from zero, or off; at any time."""

    def profile_table(self, phase: str = '') -> list[dict[str, Any]]:
        """As CpuExecutor's."""

    def profile_steps(self) -> dict[str, dict[str, int]]:
        """As CpuExecutor's."""

    def timeline(self) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None, None))], int]:
        """
        With the option trace or trace_steps: int64 [spans, 9], each with kind, begin and end in nanoseconds of the steady clock, id, track, a, b, c, d (base/timeline.h), and how many there was no room for.
        """

    def shutdown(self, drain: bool = True, timeout_s: float = -1.0) -> None:
        """
        Refuses new requests; lets the others finish (drain, at most timeout_s, negative: no limit) or aborts.
        """

    def begin_shutdown(self, drain: bool) -> None:
        """What shutdown begins with; it does not wait."""

    def turn(self) -> bool:
        """
        For tests, with debug_stepped: one round of the loop. False: nothing to do, or it has ended.
        """

    def make_adapter(self, key: str, products: Sequence[tuple[int, Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], Sequence[tuple[int, int, Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)]]], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]]) -> Adapter:
        """
        Copies the weights of an adapter. key: a text of its content. products: (instruction, a [rank, k], parts) with parts (first row of a, first column, b [columns, rank]), matrices of float32: the columns of the instruction's sums get (x a^T) b^T, as runtime/core/executor/adapters.h says. Raises InvalidOptionError, AdapterError, OutOfMemoryError.
        """

    def live_adapters(self) -> int:
        """
        How many adapters there are, those counted that only requests still use.
        """

    def take_notices(self) -> list[str]:
        """
        What the tiers of the prefix cache have to tell people since the last call.
        """

    def prefix_transfers(self) -> PrefixTransfers:
        """What gives prefixes of the cache to other engines and takes theirs."""

    def cache_feed(self) -> CacheFeed:
        """What tells which blocks the prefix cache stores and removes."""

    @property
    def stopped(self) -> bool: ...

    @property
    def cause(self) -> str:
        """Why it stopped; empty while it has not."""

    @property
    def called_here(self) -> bool:
        """
        Whether the caller is inside this engine's executor, and so may not wait for the engine.
        """

def hold_clock(seconds: float) -> None:
    """For tests: the time of all engines of the process stands still there."""

def release_clock() -> None:
    """After hold_clock."""

class FleetOptions:
    """
    A fleet to simulate: its replicas, which are alike, and what a step costs.
    """

    def __init__(self) -> None: ...

    def attention(self, sequences: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """
        Of a step of these sequences, (tokens of the step, positions after it) of each: the pairs of a token and a position that it attends to, and the positions that are read. Layers with windows count with the share of their cache groups.
        """

    @property
    def replicas(self) -> int:
        """engines, at most 1000"""

    @replicas.setter
    def replicas(self, arg: int, /) -> None: ...

    @property
    def gap_percentile(self) -> float:
        """
        the percentile of the times between a request's tokens that is kept of it
        """

    @gap_percentile.setter
    def gap_percentile(self, arg: float, /) -> None: ...

    @property
    def seed(self) -> int:
        """of the draws from spread"""

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    @property
    def keep_steps(self) -> bool:
        """whether the steps of the only replica are kept"""

    @keep_steps.setter
    def keep_steps(self, arg: bool, /) -> None: ...

    @property
    def max_seq_len(self) -> int:
        """positions of the model"""

    @max_seq_len.setter
    def max_seq_len(self, arg: int, /) -> None: ...

    @property
    def block_size(self) -> int:
        """positions of a KV block"""

    @block_size.setter
    def block_size(self, arg: int, /) -> None: ...

    @property
    def block_bytes(self) -> list[int]:
        """per cache group: bytes of a block over its layers"""

    @block_bytes.setter
    def block_bytes(self, arg: Sequence[int], /) -> None: ...

    @property
    def group_windows(self) -> list[int]:
        """per cache group: its window, 0 if none"""

    @group_windows.setter
    def group_windows(self, arg: Sequence[int], /) -> None: ...

    @property
    def group_chunked(self) -> list[int]:
        """
        per cache group: 1 if its window is chunked, 0 if it slides; []: all slide
        """

    @group_chunked.setter
    def group_chunked(self, arg: Sequence[int], /) -> None: ...

    @property
    def group_sink_tokens(self) -> list[int]:
        """
        per cache group: first positions that are seen besides its window; []: none
        """

    @group_sink_tokens.setter
    def group_sink_tokens(self, arg: Sequence[int], /) -> None: ...

    @property
    def state_bytes(self) -> int:
        """states of a sequence, 0 without recurrent layers"""

    @state_bytes.setter
    def state_bytes(self, arg: int, /) -> None: ...

    @property
    def sparse_prefill(self) -> int:
        """
        the most positions that a row of a prompt sees where rows choose; 0: all
        """

    @sparse_prefill.setter
    def sparse_prefill(self, arg: int, /) -> None: ...

    @property
    def chunk_multiple(self) -> int:
        """the positions at whose multiples chunks of prompts end; 0: anywhere"""

    @chunk_multiple.setter
    def chunk_multiple(self, arg: int, /) -> None: ...

    @property
    def kv_cache_bytes(self) -> int:
        """as EngineOptions', of each replica"""

    @kv_cache_bytes.setter
    def kv_cache_bytes(self, arg: int, /) -> None: ...

    @property
    def max_batch_size(self) -> int:
        """as EngineOptions'"""

    @max_batch_size.setter
    def max_batch_size(self, arg: int, /) -> None: ...

    @property
    def max_num_tokens(self) -> int:
        """as EngineOptions'"""

    @max_num_tokens.setter
    def max_num_tokens(self, arg: int, /) -> None: ...

    @property
    def max_chunk(self) -> int:
        """as EngineOptions'"""

    @max_chunk.setter
    def max_chunk(self, arg: int, /) -> None: ...

    @property
    def itl_goal_s(self) -> float:
        """as EngineOptions'"""

    @itl_goal_s.setter
    def itl_goal_s(self, arg: float, /) -> None: ...

    @property
    def ageing_s(self) -> float:
        """as EngineOptions'"""

    @ageing_s.setter
    def ageing_s(self, arg: float, /) -> None: ...

    @property
    def max_queue(self) -> int:
        """as EngineOptions'"""

    @max_queue.setter
    def max_queue(self, arg: int, /) -> None: ...

    @property
    def prefix_cache(self) -> bool:
        """as EngineOptions'"""

    @prefix_cache.setter
    def prefix_cache(self, arg: bool, /) -> None: ...

    @property
    def state_snapshots(self) -> int:
        """as EngineOptions'"""

    @state_snapshots.setter
    def state_snapshots(self, arg: int, /) -> None: ...

    @property
    def sizes(self) -> list[int]:
        """tokens of steps, ascending, from 1 on"""

    @sizes.setter
    def sizes(self, arg: Sequence[int], /) -> None: ...

    @property
    def seconds(self) -> list[float]:
        """per size: seconds of a step without what follows"""

    @seconds.setter
    def seconds(self, arg: Sequence[float], /) -> None: ...

    @property
    def pair_seconds(self) -> float:
        """of a token and a position that it attends to"""

    @pair_seconds.setter
    def pair_seconds(self, arg: float, /) -> None: ...

    @property
    def context_seconds(self) -> float:
        """of a position that a sequence reads"""

    @context_seconds.setter
    def context_seconds(self, arg: float, /) -> None: ...

    @property
    def spread(self) -> list[float]:
        """factors of a step's time, one of which is drawn for each step; []: 1"""

    @spread.setter
    def spread(self, arg: Sequence[float], /) -> None: ...

    @property
    def row_seconds(self) -> float:
        """of a row of logits"""

    @row_seconds.setter
    def row_seconds(self, arg: float, /) -> None: ...

    @property
    def sequence_seconds(self) -> float:
        """of a sequence"""

    @sequence_seconds.setter
    def sequence_seconds(self, arg: float, /) -> None: ...

class SimulatedTenants:
    """What tenants have, by their numbers."""

    def __init__(self, weights: Sequence[float], priorities: Sequence[int], deadlines: Sequence[float]) -> None:
        """deadlines: seconds from a request's arrival, -1 for none."""

class SimulatedFleet:
    """Engines on a virtual clock, whose steps only cost time."""

    def __init__(self, options: FleetOptions) -> None:
        """Raises InvalidOptionError, OutOfMemoryError."""

    def run(self, arrivals: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], prompts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], outputs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefixes: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix_tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], conversations: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tenants: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], table: SimulatedTenants, choose: Callable, finished: Callable) -> None:
        """
        Runs the requests to their ends, once. Columns [requests]: int64 nanoseconds, ascending; int32 tokens of prompts and of outputs; int32 numbers of common beginnings and how many tokens of the prompt they are; int32 numbers of conversations, whose prompts have the same tokens behind that; int32 numbers of tenants, which are in the table unless that is empty. choose(request) returns the number of a replica; finished(request) hears of its end. Raises InvalidOptionError, PromptTooLongError, and what the functions raise.
        """

    def outcomes(self) -> dict[str, Any]:
        """
        Columns [requests]: replica (-1: refused), started, first, ended (nanoseconds, -1: never), cached (tokens), generated, gap (seconds), late (1: it ended because it could not meet its deadline).
        """

    def gaps(self) -> dict[str, Any]:
        """
        The times between tokens of all requests: seconds and counts of bins that are 0.5 % wide, count, sum, max.
        """

    def replicas(self) -> list[dict[str, Any]]:
        """Per replica: sums, and means over the time in which it computed."""

    def steps(self) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None, None))], int]:
        """With keep_steps: as Engine.timeline."""
