"""Makes the requests of a simulation: when they arrive, how long they are, and which prompts begin alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.simulate.arrival_file import ArrivalFile, read_arrivals
from tensorwright.insight.simulate.tenants import Tenant, shares_of, tenants_of
from tensorwright.options.bench import AGENT, lengths_of
from tensorwright.options.simulate import MAX_REQUESTS, REQUESTS, TrafficFields
from tensorwright.runtime.serving.load_test.workload import (
    RequestLengths,
    burst_times,
    draw_lengths,
    poisson_times,
)

VARIATION = 2.0
"""The standard deviation of gaps over their mean, of gamma arrivals, unless an option says another."""
MAX_SECONDS = 100 * 365 * 86400
"""The latest arrival; runtime/core/simulation/traffic.cc has the same number."""


@dataclass(frozen=True)
class Traffic:
    """Requests in the order of their arrival. All columns are [requests].

    arrivals: int64 nanoseconds. prompts, outputs: int32 tokens. prefixes: int32, the number of the common beginning.
    prefix_tokens: int32, tokens of it; 0 is none. conversations: int32; requests with the same number have the same
    tokens behind the common beginning, as far as both go, and so the prompt of a turn begins with that of the turn
    before. tenants: int32, the places in `known`. seed: of how long single steps take, where their costs have a spread.
    known: the tenants.
    """

    arrivals: np.ndarray
    prompts: np.ndarray
    outputs: np.ndarray
    prefixes: np.ndarray
    prefix_tokens: np.ndarray
    conversations: np.ndarray
    tenants: np.ndarray
    seed: int = 0
    known: tuple[Tenant, ...] = (Tenant("1"),)

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def rate(self) -> float:
        """The mean arrivals per second; 0 if all come at once."""
        seconds = float(self.arrivals[-1]) * 1e-9
        return len(self) / seconds if seconds > 0 else 0.0


def make_traffic(asked: TrafficFields, max_seq_len: int, positions: int) -> Traffic:
    """Returns the requests that the options describe. The same options give the same requests.

    max_seq_len: of the model. positions: that the KV cache holds. Raises InvalidOptionError for options that exclude
    each other, a file that is no trace, and requests that no replica could ever end.
    """
    _check(asked)
    known = tenants_of(asked.tenant, asked.tenants)
    rng = np.random.default_rng(asked.seed)
    file = None
    if asked.arrival_file is not None:
        file = read_arrivals(asked.arrival_file, MAX_REQUESTS if asked.requests is None else asked.requests)
    count = asked.requests or (REQUESTS if file is None else len(file))
    if file is None:
        seconds = _drawn_times(asked, count, rng)
        lengths = draw_lengths(asked.profile, count, *lengths_of(asked.profile, asked.input_len, asked.output_len), rng)
        prompts, outputs, conversations = (_column(lengths, name) for name in ("prompt", "output", "conversation"))
    else:
        seconds, prompts, outputs = _repeated(file, count, asked.rate)
        conversations = np.arange(count, dtype=np.int32)
    prompts, outputs = _fitted(prompts, outputs, min(max_seq_len, positions), asked.cut)
    if asked.profile == AGENT and file is None:
        prefix_tokens = np.minimum(_column(lengths, "common"), prompts - 1)
        prefixes = np.zeros(count, np.int32)
    else:
        shared = rng.random(count) < asked.prefix_share
        prefix_tokens = np.where(shared, np.minimum(asked.prefix_len, prompts - 1), 0).astype(np.int32)
        prefixes = rng.integers(0, asked.prefixes, count, dtype=np.int32)
    tenants = rng.choice(len(known), count, p=shares_of(known)).astype(np.int32)
    if seconds[-1] > MAX_SECONDS:
        raise InvalidOptionError("the last request must arrive within a hundred years; raise --rate")
    arrivals = np.rint(seconds * 1e9).astype(np.int64)
    return Traffic(arrivals, prompts, outputs, prefixes, prefix_tokens, conversations, tenants, asked.seed, known)


def _check(asked: TrafficFields) -> None:
    drawn = ("arrival", "burst_size", "variation")
    given = [f"--{name.replace('_', '-')}" for name in drawn if getattr(asked, name) is not None]
    if asked.arrival_file is not None and given:
        raise InvalidOptionError(f"--arrival-file says when requests arrive: leave out {', '.join(given)}")
    if asked.arrival_file is not None and (asked.input_len or asked.output_len):
        raise InvalidOptionError("--arrival-file says how long requests are: leave out --input-len and --output-len")
    if asked.profile == AGENT and asked.arrival_file is None and asked.prefix_share > 0:
        raise InvalidOptionError(f"--profile {AGENT} says which prompts begin alike: leave out --prefix-share")
    if asked.burst_size is not None and (asked.arrival != "burst" or asked.rate is None):
        raise InvalidOptionError("--burst-size needs --arrival burst, and --rate, which says how often bursts come")
    if asked.arrival == "burst" and asked.rate is not None and asked.burst_size is None:
        raise InvalidOptionError("--arrival burst with --rate needs --burst-size")
    if asked.variation is not None and asked.arrival != "gamma":
        raise InvalidOptionError("--variation needs --arrival gamma")


def _drawn_times(asked: TrafficFields, count: int, rng: np.random.Generator) -> np.ndarray:
    rate = asked.rate or 1.0
    if asked.arrival == "burst":
        return np.array(burst_times(count, asked.rate, asked.burst_size))
    if asked.arrival == "gamma":
        # Gaps of a gamma distribution: its shape is the inverse square of the variation.
        shape = (VARIATION if asked.variation is None else asked.variation) ** -2.0
        return np.cumsum(rng.gamma(shape, 1.0 / (rate * shape), count))
    return np.array(poisson_times(count, rate, rng))


def _column(lengths: list[RequestLengths], name: str) -> np.ndarray:
    return np.array([getattr(one, name) for one in lengths], np.int32)


def _repeated(file: ArrivalFile, count: int, rate: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns `count` requests of a trace, which begins again when it is over. rate: the mean that is wanted."""
    rounds, places = np.divmod(np.arange(count), len(file))
    # A round lasts a mean gap longer than from its first to its last request.
    length = file.seconds[-1] * len(file) / max(1, len(file) - 1)
    seconds = file.seconds[places] + rounds * length
    if rate is not None and seconds[-1] > 0:
        seconds = seconds * (count / rate / seconds[-1])
    return seconds, file.prompts[places], file.outputs[places]


def _fitted(prompts: np.ndarray, outputs: np.ndarray, most: int, cut: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns lengths that fit `most` positions. Raises InvalidOptionError for those that do not, unless they may be
    cut."""
    if most < 2:
        raise InvalidOptionError(f"a replica must hold a prompt and an answer, its KV cache has {most} positions")
    if not cut:
        over = np.flatnonzero(prompts.astype(np.int64) + outputs > most)
        if len(over):
            longest = over[np.argmax(prompts[over].astype(np.int64) + outputs[over])]
            raise InvalidOptionError(
                f"{len(over)} of {len(prompts)} requests are longer than the {most} positions of the model or of its "
                f"KV cache, the longest has {prompts[longest]} + {outputs[longest]} tokens: lower --input-len and "
                "--output-len, raise --kv-cache-memory, or give --cut"
            )
    prompts = np.minimum(prompts, most - 1).astype(np.int32)
    return prompts, np.minimum(outputs, most - prompts).astype(np.int32)
