"""A grammar that was compiled in this process, after it survived in another one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.home_process import ProcessLock
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
"""What one grammar may cost in the library's units, the same wherever and beside whomever it is followed. An object of
200 optional properties fits. mask_budget.py bounds the time of its masks."""

STACK_BYTES = 4 * compile_child.STACK_BYTES
_starting = ProcessLock()


class Grammar:
    """Shared by the requests that ask for the same; each of their completions starts a matcher of its own.

    size: about how many bytes it holds. row: the mask of the first token, as the library has it.
    """

    def __init__(self, masks: TokenMasks, matcher: LibraryMatcher, row: NDArray[np.uint32], name: str, size: int):
        self.size = size
        self._masks = masks
        self._matcher = matcher
        self._name = name
        self._lock = threading.Lock()
        self._row = row

    def first_mask(self, ignore_eos: bool) -> NDArray[np.uint32]:
        """Of the first token. InvalidRequestError if there is none."""
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
        """Whether a sampled token ends the completion, or whoever follows the grammar has to."""
        return bool(self._masks.eos) and not ignore_eos


def compile_grammar(
    compiler: CompileProcess, tokens: LibraryTokens, masks: TokenMasks, params: GuidedDecodingParams
) -> Grammar:
    """Raises what CompileProcess.compile does."""
    name = name_of(params)

    def finish(text: str, size: int, seconds: float) -> Grammar:
        row = np.zeros(masks.library_words, dtype=np.uint32)

        def work() -> LibraryMatcher:
            return compiled(tokens, text, name, LIMITS, lambda matcher: matcher.compute_mask(row))

        return Grammar(masks, on_large_stack(work, seconds > QUICK_S), row, name, size)

    return compiler.compile(params, LIMITS, finish)


def on_large_stack(work: Callable[[], Any], gives_way: bool = False) -> Any:
    """Its result. The library walks rules recursively: what fits the child's stack must fit this one. It lets go of the
    interpreter's lock. gives_way: what is computed for requests that run goes before, as before the child."""
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

    with _starting:  # the size is of all threads that start now
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="tensorwright-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors.pop()  # else it holds the list that holds it
    return results[0]
