"""Calls llguidance through its C interface.

llguidance's Python classes keep the interpreter's lock while they read a vocabulary, which takes seconds for a large
one. Calls through `ctypes.CDLL` release the lock, so other threads go on. Calls that take microseconds go through
`PyDLL`, which keeps the lock, because to get the lock back from a busy thread would take longer than the call.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

from tensorwright.errors import MissingDependencyError
from tensorwright.installing import install

if TYPE_CHECKING:  # the process that compiles grammars does not import numpy
    from numpy import uint32
    from numpy.typing import NDArray

ERROR_BYTES = 4096  # the most bytes of an error message, the terminating zero included
TOKENIZED_BYTES = 512
"""The bytes that are tokenized of a text that a grammar forces. A mask needs only the first token of such a text, and
the library asks again for each mask."""
Tokenize = Callable[[str], Sequence[int]]
_TOKENIZE = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_size_t, POINTER(c_uint32), c_size_t)


class _TokenizerInit(ctypes.Structure):
    """The structure LlgTokenizerInitV2 of llguidance.h."""

    _fields_ = (
        ("struct_size", c_size_t), ("vocab_size", c_uint32), ("tok_eos", c_uint32), ("token_lens", c_void_p),
        ("token_bytes", c_char_p), ("tokenizer_json", c_char_p), ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", _TOKENIZE), ("use_approximate_greedy_tokenize_fn", c_bool), ("tokenize_user_data", c_void_p),
        ("slices", c_void_p), ("tok_eos_extra", c_void_p), ("tok_eos_extra_count", c_uint32),
    )  # fmt: skip


class _Limits(ctypes.Structure):
    """The structure LlgParserLimits of llguidance.h."""

    _fields_ = (
        ("max_items_in_row", c_size_t), ("initial_lexer_fuel", c_uint64), ("step_lexer_fuel", c_uint64),
        ("step_max_items", c_size_t), ("max_lexer_states", c_size_t), ("max_grammar_size", c_size_t),
        ("precompute_large_lexemes", c_bool), ("verbose_errors", c_bool),
    )  # fmt: skip


class _ConstraintInit(ctypes.Structure):
    """The structure LlgConstraintInit of llguidance.h."""

    _fields_ = (
        ("tokenizer", c_void_p), ("log_buffer_level", c_uint32), ("log_stderr_level", c_uint32),
        ("ff_tokens_ok", c_bool), ("backtrack_ok", c_bool), ("limits", _Limits),
    )  # fmt: skip


SLOW: dict[str, tuple[Any, list[Any]]] = {
    "llg_new_tokenizer_v2": (c_void_p, [POINTER(_TokenizerInit), c_char_p, c_size_t]),
    "llg_new_matcher": (c_void_p, [POINTER(_ConstraintInit), c_char_p, c_char_p]),
    "llg_clone_matcher": (c_void_p, [c_void_p]),
    "llg_matcher_consume_tokens": (c_int32, [c_void_p, POINTER(c_uint32), c_size_t]),
    "llg_matcher_compute_mask_into": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "llg_free_tokenizer": (None, [c_void_p]),
    "llg_free_matcher": (None, [c_void_p]),
}
"""The types of result and arguments of the functions that release the interpreter's lock."""

QUICK: dict[str, tuple[Any, list[Any]]] = {
    "llg_constraint_init_set_defaults": (None, [c_void_p, c_void_p]),
    "llg_matcher_get_cancellation_handle": (c_void_p, [c_void_p]),
    "llg_cancel": (None, [c_void_p]),
    "llg_free_cancellation_handle": (None, [c_void_p]),
    "llg_matcher_is_error": (c_bool, [c_void_p]),
    "llg_matcher_is_accepting": (c_bool, [c_void_p]),
    "llg_matcher_get_error": (c_char_p, [c_void_p]),
}
"""The types of result and arguments of the functions that keep the interpreter's lock."""


@cache
def load_library() -> Library:
    """Loads llguidance. Raises MissingDependencyError, which says what to install."""
    return Library()


class Library:
    """The loaded library. It has the functions of SLOW and QUICK as attributes, and the Python module as `python`."""

    def __init__(self) -> None:
        try:
            import llguidance
            from llguidance import _lib
        except ImportError as error:
            raise MissingDependencyError(f"guided decoding needs llguidance ({error}): {install('guided')}") from error
        self.python: Any = llguidance
        try:
            for table, load in ((SLOW, ctypes.CDLL), (QUICK, ctypes.PyDLL)):
                functions = load(_lib.__file__)
                for name, (result, arguments) in table.items():
                    function = getattr(functions, name)
                    function.restype, function.argtypes = result, arguments
                    setattr(self, name, function)
        except (AttributeError, OSError) as error:
            raise _unknown_interface(str(error)) from error
        self._check_layout()

    def __getattr__(self, name: str) -> Any:  # tells type checkers that attributes exist; __init__ sets all of them
        raise AttributeError(name)

    def _check_layout(self) -> None:
        """Checks the layout of the structures: the defaults that the library writes must equal those of its Python
        module.

        Raises MissingDependencyError if they differ.
        """
        untouched = 0xAA
        room = (ctypes.c_ubyte * 1024)(*[untouched] * 1024)
        self.llg_constraint_init_set_defaults(room, None)
        found = _ConstraintInit.from_buffer(room)
        expected = self.python.LLParserLimits()
        same = all(getattr(found.limits, name) == getattr(expected, name, None) for name, _ in _Limits._fields_)
        known = {name for name, _ in _Limits._fields_}
        if not same or found.tokenizer or {name for name in dir(expected) if name[0] != "_"} != known:
            raise _unknown_interface("its structures are others")


def _unknown_interface(why: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"guided decoding does not know the C interface of the llguidance that is installed ({why}): "
        f"{install('guided')}"
    )


class LibraryTokens:
    """A vocabulary in the library's form. The library reads it without the interpreter's lock.

    lengths: the length of each token in bytes, as uint32; a token of no bytes is never allowed.
    spelled: the bytes of all tokens.
    ends: the tokens that end a text.
    tokenize: turns text into token ids, as the model's own tokenizer does.
    Raises ValueError in the library's words.
    """

    def __init__(self, lengths: array[int], spelled: bytes, ends: Sequence[int], tokenize: Tokenize):
        self.library = load_library()
        self.vocab_size = len(lengths)
        self._tokenize = _callback(tokenize)  # this reference keeps the callback alive; the library holds none
        others = (c_uint32 * len(ends[1:]))(*ends[1:])
        settings = _TokenizerInit(
            struct_size=ctypes.sizeof(_TokenizerInit),
            vocab_size=len(lengths),
            tok_eos=ends[0],
            token_lens=lengths.buffer_info()[0],
            token_bytes=spelled,
            tokenize_assumes_string=True,
            tokenize_fn=self._tokenize,
            tok_eos_extra=ctypes.addressof(others) if len(others) else None,
            tok_eos_extra_count=len(others),
        )
        message = ctypes.create_string_buffer(ERROR_BYTES)
        self.address = self.library.llg_new_tokenizer_v2(settings, message, ERROR_BYTES)
        if not self.address:
            raise ValueError(message.value.decode("utf-8", "replace"))
        weakref.finalize(self, self.library.llg_free_tokenizer, self.address).atexit = False


def _callback(tokenize: Tokenize) -> Any:
    @_TOKENIZE
    def run(_: Any, text: int, size: int, out: Any, room: int) -> int:
        cut = size > TOKENIZED_BYTES  # the cut may split a character
        ids = tokenize(ctypes.string_at(text, min(size, TOKENIZED_BYTES)).decode(errors="ignore" if cut else "strict"))
        for at, token in enumerate(ids[:room]):
            out[at] = token
        return len(ids)

    return run


class Canceller:
    """Stops the computation of one matcher from any thread, within some 2 ms. The matcher is in error afterwards."""

    def __init__(self, library: Library, address: int):
        self._library = library
        self._address = address
        weakref.finalize(self, library.llg_free_cancellation_handle, address).atexit = False

    def cancel(self) -> None:
        self._library.llg_cancel(self._address)


class LibraryMatcher:
    """A position in a grammar. Only one thread at a time may use it."""

    def __init__(self, tokens: LibraryTokens, address: int):
        """address: the address of the library's object, which this object frees."""
        self._tokens = tokens  # this reference keeps the tokenize function alive, which the library calls
        self._library = tokens.library
        self._address = address
        weakref.finalize(self, self._library.llg_free_matcher, address).atexit = False

    @classmethod
    def compile(cls, tokens: LibraryTokens, grammar: str, limits: dict[str, int]) -> LibraryMatcher:
        """Compiles a grammar. The result may be in error; its `error` then says why.

        grammar: a list of grammars in the library's JSON form.
        """
        settings = _ConstraintInit()
        tokens.library.llg_constraint_init_set_defaults(ctypes.byref(settings), tokens.address)
        settings.log_buffer_level = settings.log_stderr_level = 0
        settings.limits.verbose_errors = False
        for name, value in limits.items():
            setattr(settings.limits, name, value)
        return cls(tokens, tokens.library.llg_new_matcher(settings, b"llguidance", grammar.encode()))

    def copy(self) -> LibraryMatcher:
        return LibraryMatcher(self._tokens, self._library.llg_clone_matcher(self._address))

    def consume(self, tokens: Sequence[int]) -> bool:
        """Moves forward over the tokens. Returns False if the grammar does not admit them; then the matcher is in
        error."""
        return (
            self._library.llg_matcher_consume_tokens(self._address, (c_uint32 * len(tokens))(*tokens), len(tokens)) == 0
        )

    def compute_mask(self, row: NDArray[uint32]) -> bool:
        """Writes the mask of the next token. Returns False if the matcher is in error.

        row: uint32, with one bit for each token of the vocabulary.
        """
        return self._library.llg_matcher_compute_mask_into(self._address, row.ctypes.data, row.nbytes) == 0

    def has_mask(self) -> bool:
        """Whether the next token has a mask, for a caller that does not need the mask."""
        row = (c_uint32 * ((self._tokens.vocab_size + 31) // 32))()
        return self._library.llg_matcher_compute_mask_into(self._address, row, ctypes.sizeof(row)) == 0

    def canceller(self) -> Canceller:
        """Returns a canceller of this matcher. It must be made while the matcher computes nothing."""
        return Canceller(self._library, self._library.llg_matcher_get_cancellation_handle(self._address))

    @property
    def is_error(self) -> bool:
        return self._library.llg_matcher_is_error(self._address)

    @property
    def is_accepting(self) -> bool:
        return self._library.llg_matcher_is_accepting(self._address)

    @property
    def error(self) -> str:
        """The reason why the matcher is in error, "" if it is not."""
        return (self._library.llg_matcher_get_error(self._address) or b"").decode("utf-8", "replace")
