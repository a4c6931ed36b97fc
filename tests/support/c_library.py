"""libtensorwright.so in this process, by ctypes: the structs of tensorwright.h, and calls that raise."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorwright

OK, INVALID_ARGUMENT, CLOSED = 0, 1, 2
FINISHES = ("", "stop", "length", "abort", "timeout", "error")


class Request(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t), ("tokens", POINTER(c_int32)), ("token_count", c_size_t), ("params", c_char_p),
        ("first_mask", POINTER(c_uint32)), ("first_mask_words", c_size_t),
    )  # fmt: skip


class Logprob(ctypes.Structure):
    _fields_ = (("token", c_int32), ("rank", c_int32), ("logprob", c_double))


class Logprobs(ctypes.Structure):
    _fields_ = (("entries", POINTER(Logprob)), ("count", c_size_t))


class Event(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t), ("request", c_int64), ("completion", c_int32), ("finish", c_int),
        ("tokens", POINTER(c_int32)), ("token_count", c_size_t), ("logprobs", POINTER(Logprobs)),
        ("logprob_count", c_size_t), ("prompt_logprobs", POINTER(Logprobs)), ("prompt_logprob_count", c_size_t),
        ("stop_token", c_int32), ("prompt_tokens", c_int32), ("cached_tokens", c_int32), ("error", c_int),
        ("error_type", c_char_p), ("error_message", c_char_p), ("cumulative_logprob", c_double),
        ("queue_seconds", c_double), ("first_token_seconds", c_double), ("open_completions", c_int32),
    )  # fmt: skip


class CallError(Exception):
    def __init__(self, status: int, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.status, self.kind, self.message = status, kind, message


@dataclass
class Completion:
    """What the events of a completion said, put together."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, tuple[float, int]]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, tuple[float, int]]] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Library:
    """The library that is installed with the package."""

    def __init__(self) -> None:
        folder = Path(tensorwright.get_library_dir())
        (self.path,) = folder.glob("libtensorwright.so.*")
        self.tw = ctypes.CDLL(str(self.path))
        self.tw.tw_error_type.restype = self.tw.tw_error_message.restype = self.tw.tw_version.restype = c_char_p
        self.tw.tw_events_count.restype = c_size_t
        for name in ("tw_error_type", "tw_error_message", "tw_error_free", "tw_events_count", "tw_events_free"):
            getattr(self.tw, name).argtypes = [c_void_p]
        self.tw.tw_string_free.argtypes = [c_void_p]

    def call(self, name: str, *arguments: Any) -> None:
        error = c_void_p()
        status = getattr(self.tw, name)(*arguments, ctypes.byref(error))
        if status != OK:
            kind, message = self.tw.tw_error_type(error).decode(), self.tw.tw_error_message(error).decode()
            self.tw.tw_error_free(error)
            raise CallError(status, kind, message)
        assert not error.value

    def open(self, path: Path | str, **options: Any) -> Handle:
        handle = c_void_p()
        text = json.dumps({"threads": 1, "kv_cache_memory": "1MiB", **options}).encode()
        self.call("tw_open", str(path).encode(), text, ctypes.byref(handle))
        return Handle(self, handle)


class Handle:
    """An open engine."""

    def __init__(self, library: Library, handle: c_void_p):
        self.library, self.handle = library, handle

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, drain: float = 0.0) -> None:
        self.library.call("tw_close", self.handle, c_double(drain))

    def drain(self, seconds: float = -1.0) -> None:
        self.library.call("tw_drain", self.handle, c_double(seconds))

    def submit(self, tokens: Sequence[int], params: str | None = None, **fields: Any) -> int:
        """params: JSON as it is; else the fields are written as JSON."""
        text = json.dumps(fields) if params is None else params
        array = (c_int32 * len(tokens))(*tokens)
        request = Request(ctypes.sizeof(Request), array, len(tokens), text.encode(), None, 0)
        number = c_int64()
        self.library.call("tw_submit", self.handle, ctypes.byref(request), ctypes.byref(number))
        return number.value

    def wait(self, request: int, seconds: float = 60.0) -> list[Any]:
        """Returns the events as (request, completion, open completions, what is new of it)."""
        tw, events = self.library.tw, c_void_p()
        self.library.call("tw_wait", self.handle, c_int64(request), c_double(seconds), ctypes.byref(events))
        try:
            return [self._read(events, index) for index in range(tw.tw_events_count(events))]
        finally:
            tw.tw_events_free(events)

    def _read(self, events: c_void_p, index: int) -> tuple[int, int, int, Completion]:
        event = Event(ctypes.sizeof(Event))
        self.library.call("tw_events_get", events, c_size_t(index), ctypes.byref(event))
        new = Completion(
            event.tokens[: event.token_count],
            _table(event.logprobs, event.logprob_count),
            _table(event.prompt_logprobs, event.prompt_logprob_count),
            FINISHES[event.finish],
            f"{event.error_type.decode()}: {event.error_message.decode()}" if event.error else "",
            event.prompt_tokens,
            event.cached_tokens,
        )
        return event.request, event.completion, event.open_completions, new

    def generate(self, tokens: Sequence[int], params: str | None = None, **fields: Any) -> list[Completion]:
        """Returns the completions of a request, in their order."""
        number, made, goes_on = self.submit(tokens, params, **fields), {}, 1
        while goes_on:
            news = self.wait(number)
            assert news, "the request does not end"
            goes_on = news[-1][2]
            for _, completion, _, new in news:
                one = made.setdefault(completion, Completion())
                one.tokens += new.tokens
                one.logprobs += new.logprobs
                one.prompt_logprobs += new.prompt_logprobs
                one.finish, one.error = new.finish, new.error
                one.prompt_tokens, one.cached_tokens = new.prompt_tokens, new.cached_tokens
        return [made[index] for index in sorted(made)]

    def json(self, name: str) -> dict[str, Any]:
        text = c_void_p()
        self.library.call(name, self.handle, ctypes.byref(text))
        try:
            read: dict[str, Any] = json.loads(ctypes.string_at(text.value or 0))
            return read
        finally:
            self.library.tw.tw_string_free(text)

    def cancel(self, request: int, completion: int = -1) -> bool:
        alive = c_int()
        self.library.call("tw_cancel", self.handle, c_int64(request), c_int32(completion), ctypes.byref(alive))
        return bool(alive.value)


def _table(positions: Any, count: int) -> list[dict[int, tuple[float, int]]]:
    return [
        {entry.token: (entry.logprob, entry.rank) for entry in positions[i].entries[: positions[i].count]}
        for i in range(count)
    ]
