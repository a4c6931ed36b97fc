"""Defines every error and warning that Tensorwright raises on purpose.

Any room may import this file; it imports nothing. Each message says what must hold, what came instead, and what to do.
"""


class TensorwrightError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1
    """The exit code of a command that this error ends. 1: the command failed while it worked. 2: the input is wrong,
    and the command began nothing."""


class TensorwrightWarning(UserWarning):
    """The request was carried out, but the user hardly wants the result, or the result cannot do all that one expects.

    Commands print such a warning once, on standard error.
    """


class InvalidOptionError(TensorwrightError, ValueError):
    """A build or runtime option has an impossible value, or no such option exists."""

    exit_code = 2


class CheckpointError(TensorwrightError):
    """A checkpoint is missing, truncated, mis-shaped, or contradicts its config."""

    exit_code = 2


class UnsupportedModelError(TensorwrightError):
    """The model uses something that Tensorwright refuses by name."""

    exit_code = 2


class TraceError(UnsupportedModelError):
    """The model could not be exported, or its export has an operation that Tensorwright does not know."""


class GraphError(TensorwrightError):
    """A graph breaks a rule of its stage, or its text form does not parse."""


class PassError(GraphError):
    """A pass failed, changed the numbers under --verify, or did not fire as often as expected."""


class LoweringError(UnsupportedModelError):
    """The lowered graph still has a node for which the target has no kernel."""


class BuildError(TensorwrightError):
    """A build, or the writing of a model repository, could not finish (output not writable, disk full)."""


class OutputExistsError(BuildError):
    """Something exists at the place of an output already, and it must not be replaced or is of another kind."""

    exit_code = 2


class MissingDependencyError(TensorwrightError, ImportError):
    """An optional package is needed and absent; the message says what to install."""

    exit_code = 2


class EngineError(TensorwrightError):
    """An engine directory is missing, truncated, altered, of another version or of another target."""

    exit_code = 2


class KernelError(TensorwrightError):
    """A GPU kernel does not compile for an SM, has no code for that SM, or was started in a way that it forbids."""


class IsaError(TensorwrightError):
    """TENSORWRIGHT_ISA names an unknown instruction set or one this processor lacks, or TENSORWRIGHT_CPU_WITHOUT lists
    an unknown feature."""

    exit_code = 2


class InvalidRequestError(TensorwrightError, ValueError):
    """A request's prompt or sampling parameters are impossible; nothing was started."""

    exit_code = 2


class PromptTooLongError(InvalidRequestError):
    """Prompt plus max_tokens do not fit the engine's maximum length or the KV cache."""


class TaskError(InvalidRequestError):
    """A request asks for what the engine was not built for: tokens of one that embeds, or an embedding of one that
    generates."""


class UnknownModelError(InvalidRequestError):
    """A request names a model that the server does not have, or an adapter that the engine does not have."""


class UnknownResponseError(InvalidRequestError):
    """A request names a response that the server does not store, or not for this key."""


class UnknownPrefixError(InvalidRequestError):
    """A request names a pinned prefix that there is not, or not for this key."""


class AdapterError(TensorwrightError):
    """A LoRA adapter is damaged, belongs to another model, is of a kind that is not supported, or finds no room.
    Nothing has changed."""

    exit_code = 2


class QueueFullError(TensorwrightError):
    """The waiting queue is full; try again later."""


class ClientShareError(TensorwrightError):
    """A client of the server has as many requests under way as one client may have. It can try again when some have
    ended."""


class TemporarilyUnavailableError(TensorwrightError):
    """A process that the request needs beside the engine does not run at the moment. The engine and other requests go
    on; the client can try again later."""


class EngineRestartedError(TemporarilyUnavailableError):
    """The engine died, or hung in a step, while it computed the request, and another engine takes its place. The client
    can send the request again."""


class DeadlineError(TensorwrightError):
    """The request cannot end by its deadline any more, so that nothing more of it is computed."""


class RateLimitError(TensorwrightError):
    """A client of the server has used the tokens that it has in a minute. retry_after: the seconds until there are
    some again."""

    def __init__(self, message: str, retry_after: float = 1.0):
        super().__init__(message)
        self.retry_after = retry_after


class TransferError(TensorwrightError):
    """A prefix of the KV cache could not be taken over from another engine: the connection broke, bytes were altered,
    the engines differ, or requests needed the room. Nothing of the prefix is remembered; it can be computed instead."""


class OutOfMemoryError(TensorwrightError, MemoryError):
    """The KV-cache budget is too small for one block per sequence, or the system refused memory."""


class DeviceError(TensorwrightError):
    """The GPU, its driver or TensorRT failed at an operation that this engine needs."""


class LogitsProcessorError(TensorwrightError):
    """A logits processor of a request raised, returned no logits, or forbade every token. The message names it; its
    request ended, and others go on."""


class NumericalError(TensorwrightError):
    """A request's logits came out as NaN or infinite; the checkpoint or its dtype cannot hold this input."""


class RequestAbortedError(TensorwrightError):
    """The request was aborted before it finished."""


class ReplicaLostError(TensorwrightError):
    """The replica that computed the request is gone, and the request could not go on elsewhere. Nothing of the request
    runs any more; the client can send it again."""


class LibraryError(TensorwrightError):
    """A library failed at a request in a way that it does not foresee, such as a panic. Other requests go on."""


class LoadTestError(TensorwrightError):
    """The server under a load test cannot be reached, gives no usable answer, or has completed no request."""


class EngineStoppedError(TensorwrightError):
    """The engine was shut down, or its loop died; the message carries the cause."""


class RankError(EngineStoppedError):
    """A rank of a parallel engine ended, does not answer, or does not compute what the others do. All ranks stop."""


class ForkedEngineError(EngineStoppedError):
    """An LLM is used in a fork of the process that made it, where its engine does not run."""


def is_panic(error: BaseException) -> bool:
    """Whether the error is a panic of a library that is written in Rust (tokenizers, llguidance).

    pyo3 raises a panic as a BaseException, so `except Exception` does not catch it. The class of panics cannot be
    imported, because each library makes a class of its own.
    """
    return type(error).__module__ == "pyo3_runtime" and not isinstance(error, Exception)


def reason(error: Exception) -> str:
    """Returns the text of an error, of an OSError without number and path. The caller's message names the place."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
