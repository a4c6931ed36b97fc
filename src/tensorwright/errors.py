"""Every error and warning that Tensorwright raises on purpose. A leaf: any room may import it, it imports nothing.

Each message says what must hold, what came instead, and what to do.
"""


class TensorwrightError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1
    """Of a command that it ends: 1, it failed while at work; 2, the input is wrong and nothing was begun."""


class TensorwrightWarning(UserWarning):
    """What was asked is done, but somebody will hardly want it so, or it cannot do all that one might expect. Commands
    print it on standard error, once."""


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
    """The model could not be exported, or exported to an operation without a meaning here."""


class GraphError(TensorwrightError):
    """A graph breaks a rule of its stage, or its text form does not parse."""


class PassError(GraphError):
    """A pass failed, changed the numbers under --verify, or did not fire as often as expected."""


class LoweringError(UnsupportedModelError):
    """A node is left that the target has no kernel for."""


class BuildError(TensorwrightError):
    """A build, or the writing of a model repository, could not finish (output not writable, disk full)."""


class OutputExistsError(BuildError):
    """Something is at the place of an output already, and was not to be replaced or is not of its kind."""

    exit_code = 2


class MissingDependencyError(TensorwrightError, ImportError):
    """An optional package is needed and absent; the message says what to install."""

    exit_code = 2


class EngineError(TensorwrightError):
    """An engine directory is missing, truncated, altered, of another version or of another target."""

    exit_code = 2


class KernelError(TensorwrightError):
    """A GPU kernel does not compile for an SM, has no code for it, or was to be started as it does not allow."""


class IsaError(TensorwrightError):
    """TENSORWRIGHT_ISA names an unknown instruction set or one this processor lacks, or TENSORWRIGHT_CPU_WITHOUT lists
    an unknown feature."""

    exit_code = 2


class InvalidRequestError(TensorwrightError, ValueError):
    """A request's prompt or sampling parameters are impossible; nothing was started."""

    exit_code = 2


class PromptTooLongError(InvalidRequestError):
    """Prompt plus max_tokens do not fit the engine's maximum length or the KV cache."""


class UnknownModelError(InvalidRequestError):
    """A request names a model that the server does not have."""


class QueueFullError(TensorwrightError):
    """The waiting queue is full; try again later."""


class ClientShareError(TensorwrightError):
    """A client of the server has all under way that one client may; it can come again when some of it has ended."""


class TemporarilyUnavailableError(TensorwrightError):
    """A process that the request needs beside the engine is not there at the moment. The engine runs, and so do other
    requests; try again later."""


class OutOfMemoryError(TensorwrightError, MemoryError):
    """The KV-cache budget is too small for one block per sequence, or memory could not be had."""


class DeviceError(TensorwrightError):
    """The GPU, its driver or TensorRT failed at something that this engine was made for."""


class NumericalError(TensorwrightError):
    """A request's logits came out as NaN or infinite; the checkpoint or its dtype cannot hold this input."""


class RequestAbortedError(TensorwrightError):
    """The request was aborted before it finished."""


class LibraryError(TensorwrightError):
    """A library failed at a request in a way that it does not foresee, a panic; other requests go on."""


class LoadTestError(TensorwrightError):
    """The server under a load test is not there, answers nothing usable, or has completed no request at all."""


class EngineStoppedError(TensorwrightError):
    """The engine was shut down, or its loop died; the message carries the cause."""


class ForkedEngineError(EngineStoppedError):
    """An LLM is used in a fork of the process that made it, where its engine does not run."""


def is_panic(error: BaseException) -> bool:
    """Of a library that is written in Rust (tokenizers, llguidance): pyo3 raises it as a BaseException, so that
    `except Exception` lets it through. The class has no place to be imported from: each library makes its own."""
    return type(error).__module__ == "pyo3_runtime" and not isinstance(error, Exception)


def reason(error: Exception) -> str:
    """What an error says, for a message of ours that names the place itself: of an OSError without number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
