"""The C++ runtime: executor and engine."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray


def cpu_features() -> dict[str, bool]:
    """
    What the processor and the operating system offer, by name, less what TENSORWRIGHT_CPU_WITHOUT lists.
    """

def topology() -> dict[str, int]:
    """The NUMA "nodes" and physical "cores" that this process may use."""

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

    def __init__(self, plan_path: str, weights_path: str, threads: int = 0, load: str = 'map') -> None:
        """
        threads: 0 is one per usable processor; load: 'map' or 'copy'. Raises EngineError.
        """

    def facts(self) -> dict[str, Any]:
        """vocab_size, max_seq_len, block_size, block_bytes and more."""

    def allocate(self, blocks: Sequence[int], max_tokens: int, max_rows: int, max_seqs: int, state_slots: int = 0) -> None:
        """
        Makes room, once: blocks is a list with one count per cache group; state_slots is 0 unless facts() has state_bytes.
        """

    def step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], state_slots: object = ()) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Runs a step; arguments are int32 arrays or lists, groups is [(block_tables int32 [seqs, max_blocks], slots [tokens])], state_slots is [seqs] if the model has states. Returns float32 [rows, vocab]. Raises InvalidRequestError, with nothing done, if the step is malformed.
        """

    def step_with_features(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], state_slots: object = ()) -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        Runs a step as step does. Returns its result, and the features of all tokens, float32 [tokens, draft_width].
        """

    def draft_step(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], features: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        Runs a step of the engine's heads, each token with the feature of the position before it, float32 [tokens, draft_width]. Returns float32 [rows, draft_vocab], and their own features [rows, draft_width]. Raises InvalidRequestError as step does.
        """

    def score(self, token_ids: object, positions: object, seq_starts: object, context_lens: object, logit_rows: object, groups: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], object]], targets: object, state_slots: object = ()) -> list[float]:
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
        Per instruction: name, op, calls, ns, bytes (moved at least), ops (arithmetic), and with experts expert_rows, how many rows took each. phase: of steps in which sequences have several tokens (prefill), one (decode), or some of either (mixed).
        """

    def profile_steps(self) -> dict[str, dict[str, int]]:
        """Per phase: steps, tokens, sequences, rows, ns."""

    def weight_reads(self) -> dict[str, Any]:
        """
        Of a step of one token: bytes of weights that it reads; and mixtures, for each layer of experts its module, experts, taken (by a token) and bytes_of_one.
        """

    def dispatch(self) -> list[dict[str, Any]]:
        """Per kernel family: the kernel taken, and why better ones were not."""

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
    def guided(self) -> bool:
        """no token is sampled before its mask was set"""

    @guided.setter
    def guided(self, arg: bool, /) -> None: ...

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
    def prefix_cache(self) -> bool: ...

    @prefix_cache.setter
    def prefix_cache(self, arg: bool, /) -> None: ...

    @property
    def state_snapshots(self) -> int:
        """
        states of recurrent layers that the prefix cache keeps, besides those of max_batch_size sequences
        """

    @state_snapshots.setter
    def state_snapshots(self, arg: int, /) -> None: ...

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
