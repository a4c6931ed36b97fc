"""Defines the facts of a graph: what is true of the model as a whole, which later stages need.

A fact is declared here once, with its type. The text form of a graph holds the facts that were set, in the order of
their declaration; the parser makes typed values of them. A fact without a default cannot be read before it is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, Self, TypeVar, overload

from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS
from tensorwright.engine_format.weight_formats import QuantizeSpec, parse_spec
from tensorwright.errors import GraphError, InvalidOptionError

T = TypeVar("T")
LOGITS, HIDDEN = "logits", "hidden"


@dataclass(frozen=True)
class KvLayer:
    """The KV cache of one attention layer.

    group: the number of the cache group, whose layers share block tables. window: the positions that attention sees; 0
    means all. dtype: the element type; "" means that of the activations. v_dim: 0 if V has rows of its own; else V is
    the first v_dim columns of K, which is a row of a latent and one head for all of q. chunked: whether the window
    begins at a multiple of its length, where others slide. sink_tokens: how many first positions of a sequence every
    position sees besides its window, which slides.
    """

    group: int
    kv_heads: int
    head_dim: int
    window: int
    dtype: str = ""
    v_dim: int = 0
    chunked: bool = False
    sink_tokens: int = 0

    def dtype_or(self, activations: str) -> str:
        """Returns the element type of the cache, for activations of the given type."""
        return self.dtype or activations


@dataclass(frozen=True)
class StateLayer:
    """The state of one recurrent layer: so many bytes for each sequence, a multiple of 64."""

    bytes: int


@dataclass(frozen=True)
class Buffer:
    """One place in an arena of target cpu.

    kind: "tokens" or "rows", the arena. cols: the elements of one token or row. stride: the bytes from one token or row
    to the next. offset: the bytes of the arena before it, for each token or row.
    """

    kind: str
    dtype: str
    cols: int
    stride: int
    offset: int


class _Required:
    """Stands for the default of a fact that has none."""


class Fact(Generic[T]):
    """The declaration of one fact, an attribute of Facts.

    read: makes the value from a literal of the text form; it raises ValueError, TypeError or KeyError for a literal
    that is none. write: makes the literal from the value. default: the value while the fact is not set.
    """

    def __init__(
        self, read: Callable[[Any], T], write: Callable[[T], Any] = lambda value: value, default: T | type = _Required
    ):
        self.read, self.write, self.default = read, write, default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, facts: None, owner: type) -> Self: ...
    @overload
    def __get__(self, facts: Facts, owner: type) -> T: ...
    def __get__(self, facts: Facts | None, owner: type) -> Self | T:
        if facts is None:
            return self
        value: Any = facts.set_facts.get(self.name, self.default)
        if value is _Required:
            raise GraphError(f"the graph lacks the fact {self.name}")
        return value  # type: ignore[no-any-return]

    def __set__(self, facts: Facts, value: T) -> None:
        """Sets the fact. A value that equals the default takes the fact away."""
        if self.default is not _Required and value == self.default:
            facts.set_facts.pop(self.name, None)
        else:
            facts.set_facts[self.name] = value

    def __delete__(self, facts: Facts) -> None:
        facts.set_facts.pop(self.name, None)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("it must be a whole number")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("it must be true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("it must be a text")
    return value


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _wholes(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise TypeError("it must be a list of whole numbers")
    return [_whole(each) for each in value]


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise TypeError("it must be a list of texts")
    return [_text(each) for each in value]


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("it must be a dict")
    return value


def _texts_by_name(value: Any) -> dict[str, str]:
    return {name: _text(text) for name, text in _mapping(value).items()}


def _numbers_by_name(value: Any) -> dict[str, list[int]]:
    return {name: _wholes(numbers) for name, numbers in _mapping(value).items()}


def _spec(value: Any) -> QuantizeSpec:
    return parse_spec(_text(value))


def _kv_layers(value: Any) -> list[KvLayer]:
    names = [part.name for part in fields(KvLayer)]
    if not isinstance(value, list) or not all(isinstance(each, dict) and set(each) <= set(names) for each in value):
        raise TypeError(f"it must be a list of dicts with the keys {', '.join(names)}")
    read: dict[str, Callable[[Any], Any]] = {**dict.fromkeys(names, _whole), "dtype": _text, "chunked": _truth}
    return [KvLayer(**{key: read[key](item) for key, item in each.items()}) for each in value]


_LEFT_OUT = (("dtype", ""), ("v_dim", 0), ("chunked", False), ("sink_tokens", 0))
"""The fields of KvLayer that its literal leaves out, by name and value."""


def _kv_literals(layers: list[KvLayer]) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(layer).items() if (key, value) not in _LEFT_OUT} for layer in layers]


def _state_layers(value: Any) -> list[StateLayer]:
    if not isinstance(value, list) or not all(isinstance(each, dict) and set(each) == {"bytes"} for each in value):
        raise TypeError("it must be a list of dicts with the key bytes")
    return [StateLayer(_whole(each["bytes"])) for each in value]


def _buffers(value: Any) -> list[Buffer]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 5 for each in value):
        raise TypeError(f"it must be a list of lists [{', '.join(part.name for part in fields(Buffer))}]")
    return [Buffer(_text(each[0]), _text(each[1]), *map(_whole, each[2:])) for each in value]


def _buffer_literals(buffers: list[Buffer]) -> list[list[Any]]:
    return [[b.kind, b.dtype, b.cols, b.stride, b.offset] for b in buffers]


class Facts:
    """The facts of one graph. Reading one that is not set raises GraphError, which names it."""

    model_type = Fact(_text)
    dtype = Fact(_text)
    """The element type of activations."""
    max_seq_len = Fact(_whole)
    vocab_size = Fact(_whole)
    hidden_size = Fact(_whole)
    rows = Fact(_text, default=LOGITS)
    """What the result of the model holds: LOGITS, or HIDDEN, the hidden states after the final norm."""
    layers = Fact(_whole)
    heads = Fact(_whole)
    kv_heads = Fact(_whole)
    head_dim = Fact(_whole)
    max_position_embeddings = Fact(_whole)
    bos_token_id = Fact(_whole_or_none)
    eos_token_ids = Fact(_wholes)
    longrope: Fact[dict[str, Any]] = Fact(_mapping, default={})
    """What fix_longrope chose; {} for a model without longrope."""
    left_out: Fact[dict[str, Any]] = Fact(_mapping, default={})
    """The parts of the checkpoint that the graph leaves out, each as LeftOut of engine_format/engine_config.py."""
    block_size = Fact(_whole)
    """The positions in one block of the KV cache."""
    kv_cache_dtype = Fact(_text, default=AS_ACTIVATIONS)
    """The type that the KV cache is to have, of KV_CACHE_DTYPES."""
    attention_window = Fact(_whole, default=0)
    """How many last positions layers of full attention are to see; 0 asks for all."""
    sink_tokens = Fact(_whole, default=0)
    """How many first positions they are to see besides; with kv_budget, how many first ones stay."""
    kv_budget = Fact(_whole, default=0)
    """How many positions a sequence is to keep in the cache of layers of full attention; 0 asks for all."""
    recent_tokens = Fact(_whole, default=0)
    """How many of the last positions stay whatever their scores, where kv_budget makes a sequence forget some."""
    kv_interval = Fact(_whole, default=0)
    """How many positions lie between two decisions about which stay."""
    sparse_prefill = Fact(_whole, default=0)
    """How many positions a block of a prompt's queries is to choose in layers of full attention; 0 asks for all."""
    activations = Fact(_text, default="auto")
    """"int8" asks for activations that are rounded, on a target where that is a choice."""
    quantize: Fact[QuantizeSpec | None] = Fact(_spec, str, default=None)
    """The formats that the matrices are to have; None asks for no quantization."""
    channel_scales = Fact(_text, default="")
    """The method that chooses scales for the input channels of quantized matrices; "" asks for none."""
    column_orders: Fact[dict[str, str]] = Fact(_texts_by_name, default={})
    """The matrices of the checkpoint in whose order of columns products read their inputs, by the text of each
    quantized matrix."""
    outlier_columns: Fact[dict[str, list[int]]] = Fact(_numbers_by_name, default={})
    """The input columns that products keep in the type of activations, by the text of each quantized matrix."""
    wide: Fact[list[str]] = Fact(_texts, default=[])
    """The stored matrices that the family keeps in float32, whatever the narrower type of activations."""
    expanded_kv_elements = Fact(_whole, default=0)
    """The elements of K and V of one position over all layers of latent rows, if every head had its own."""
    kv_layers = Fact(_kv_layers, _kv_literals)
    """From stage "cached" on: the cache of each attention layer."""
    state_layers: Fact[list[StateLayer]] = Fact(
        _state_layers, lambda layers: [asdict(layer) for layer in layers], default=[]
    )
    """From stage "cached" on: the state of each recurrent layer, by the number that operations name as `state`."""
    tensor_parallel = Fact(_whole, default=1)
    """How many ranks share each layer."""
    tensor_rank = Fact(_whole, default=0)
    """Which of them this graph is of."""
    pipeline_parallel = Fact(_whole, default=1)
    """How many stages share the layers."""
    pipeline_rank = Fact(_whole, default=0)
    """Which of them this graph is of."""
    expert_parallel = Fact(_truth, default=False)
    """Whether each rank of a stage has some of the experts whole, and not a part of every expert."""
    left_whole: Fact[list[str]] = Fact(_texts, default=[])
    """The products that every rank of a stage computes whole, each with the reason."""
    buffers = Fact(_buffers, _buffer_literals)
    """This and the next ones from plan_memory on: the places of all results."""
    token_arena_bytes = Fact(_whole)
    row_arena_bytes = Fact(_whole)
    logits_buffer = Fact(_whole)

    def __init__(self, **facts: Any) -> None:
        self.set_facts: dict[str, Any] = {}
        """The facts that are set, by name."""
        self.update(**facts)

    def update(self, **facts: Any) -> None:
        """Sets facts by name. Raises GraphError for a name that no fact has."""
        for name, value in facts.items():
            declared(name)
            setattr(self, name, value)

    def require(self, *names: str) -> None:
        """Raises GraphError unless all these facts are set."""
        for name in names:
            getattr(self, name)

    def clear(self, *names: str) -> None:
        """Takes these facts away."""
        for name in names:
            delattr(self, name)

    def copy(self) -> Facts:
        """Returns facts of their own; the values of facts are never changed in place."""
        return Facts(**self.set_facts)

    def read(self, name: str, literal: Any) -> None:
        """Sets a fact from a literal of the text form. Raises GraphError for one that it cannot read."""
        try:
            setattr(self, name, declared(name).read(literal))
        except (ValueError, TypeError, InvalidOptionError) as error:
            raise GraphError(f"fact {name} cannot be read: {error}") from error

    def literals(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and the literal of each fact that is set, in the order of declaration."""
        for name, fact in DECLARED.items():
            if name in self.set_facts:
                yield name, fact.write(self.set_facts[name])

    def __contains__(self, name: str) -> bool:
        """Returns whether the fact is set."""
        return name in self.set_facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self.set_facts == other.set_facts

    def __repr__(self) -> str:
        return f"Facts({', '.join(f'{name}={value!r}' for name, value in self.set_facts.items())})"


QUANTIZATION = (
    "kv_cache_dtype", "attention_window", "sink_tokens", "kv_budget", "recent_tokens", "kv_interval", "sparse_prefill",
    "activations", "quantize", "channel_scales", "column_orders", "outlier_columns",
)  # fmt: skip
"""The facts that ask the passes for quantization, and for attention to fewer positions."""
DECLARED: Mapping[str, Fact[Any]] = {name: fact for name, fact in vars(Facts).items() if isinstance(fact, Fact)}


def declared(name: str) -> Fact[Any]:
    """Returns the declaration of a fact. Raises GraphError for a name that no fact has."""
    if name not in DECLARED:
        raise GraphError(f"no fact of a graph is called {name!r}; there are {', '.join(DECLARED)}")
    return DECLARED[name]
