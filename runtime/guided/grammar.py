"""Compiles a grammar in this process, after the child process has compiled it without harm."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.forks import ProcessLock
from tensorwright.runtime.guided import compile_child
from tensorwright.runtime.guided.compile_process import CompileProcess
from tensorwright.runtime.guided.compile_queue import QUICK_S
from tensorwright.runtime.guided.library import LibraryMatcher, LibraryTokens
from tensorwright.runtime.guided.matcher import GrammarMatcher
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.token_masks import TokenMasks
from tensorwright.runtime.guided.translation import compiled, name_of

LIMITS: dict[str, int] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 10_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 500_000,
}
"""The costs that one grammar may have, in the library's units, which do not depend on the machine or on other requests.
An object of 200 optional properties fits. mask_budget.py bounds the time of the masks."""

STACK_BYTES = 4 * compile_child.STACK_BYTES
_starting = ProcessLock()


class Grammar:
    """A compiled grammar. All requests that ask for it share it, and each of their completions starts its own matcher.

    row: the mask of the first token, as the library computes it. name: the name of the parameter, for errors. size: the
    number of bytes that the grammar takes, approximately.
    """

    def __init__(self, masks: TokenMasks, matcher: LibraryMatcher, row: NDArray[np.uint32], name: str, size: int):
        self.size = size
        self._masks = masks
        self._matcher = matcher
        self._name = name
        self._lock = threading.Lock()
        self._row = row

    def first_mask(self, ignore_eos: bool) -> NDArray[np.uint32]:
        """Returns the mask of the first token. Raises InvalidRequestError if no token can come first."""
        mask = self._masks.trim(self._row, self._ends_by_token(ignore_eos))
        if not mask.any():
            raise InvalidRequestError(
                f"{self._name}: no token of the model begins a text that it admits; change it"
                + ("" if self._ends_by_token(ignore_eos) else ", or let the end-of-sequence token end it")
            )
        return mask

    def start(self, ignore_eos: bool) -> GrammarMatcher:
        return GrammarMatcher(self._masks, self._copy, self._ends_by_token(ignore_eos), self._name)

    def _copy(self) -> LibraryMatcher:
        with self._lock:
            return self._matcher.copy()

    def _ends_by_token(self, ignore_eos: bool) -> bool:
        """Whether a sampled end-of-sequence token ends the completion. If not, the matcher has to end it."""
        return bool(self._masks.eos) and not ignore_eos


def compile_grammar(
    compiler: CompileProcess, tokens: LibraryTokens, masks: TokenMasks, params: GuidedDecodingParams
) -> Grammar:
    """Compiles a grammar in the child, and then in this process. Raises what CompileProcess.compile raises."""
    name = name_of(params)

    def finish(text: str, size: int, seconds: float) -> Grammar:
        row = np.zeros(masks.library_words, dtype=np.uint32)

        def work() -> LibraryMatcher:
            return compiled(tokens, text, name, LIMITS, lambda matcher: matcher.compute_mask(row))

        return Grammar(masks, on_large_stack(work, seconds > QUICK_S), row, name, size)

    return compiler.compile(params, LIMITS, finish)


def on_large_stack(work: Callable[[], Any], gives_way: bool = False) -> Any:
    """Runs `work` in a thread with a large stack, and returns its result.

    The library walks rules recursively, so a grammar that fits the child's stack must fit this one. The library
    releases the interpreter's lock. gives_way: True gives the thread the low priority of the child, so that the
    computations of running requests come first.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if gives_way:
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + compile_child.NICE)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    with _starting:  # stack_size() holds for all threads that start now, so only one thread may change it
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="tensorwright-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors.pop()  # pop, because an error in the list would refer to the list through its own traceback
    return results[0]
