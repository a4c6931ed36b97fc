"""Draws the jobs of a soak: what a client sends, how it behaves, and which ends the job may have.

A job is a function of the seed and its number, so that it can be asked again of a quiet server.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.agents import ROOM
from support.chat_samples import TOOLS

KEYS = ("soak-a", "soak-b weight=4 priority=2", "soak-c tokens_per_minute=3000", "soak-d")
"""Lines of a key file. A job belongs to one of them."""
ADAPTERS = ("first", "second", "third")
WORDS = ("def ", "class Node:", "import os\n", "é🙂 ", "return self.", "    for i in range(", "# ", "x = [1, 2, 3]\n")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, **ROOM["properties"]},
          "required": ["city", "unit"], "additionalProperties": False}  # fmt: skip
FINISHED, REFUSED, LIMITED, UNAVAILABLE, LATE, LEFT, MISSING = (
    "finished", "refused", "limited", "unavailable", "late", "left", "missing",
)  # fmt: skip
"""The ends of a job. refused: the request can never be served (400, 408, 413). limited: queue or share of the key were
full (429). unavailable: the engine was replaced meanwhile (503). late: its deadline passed (504). left: the client
left. missing: the adapter or the earlier response is not there (404)."""
MAX_BODY = 64 << 10


@dataclass(frozen=True)
class Job:
    """One client's work.

    kind: the name under which it is counted. key: the number of its line in KEYS. steps: pairs of path and body, sent
    one after the other; a body with previous_response_id None gets the id of the step before. raw: bytes to send in
    place of bodies. manner: "takes" all, "slow" to read, "leaves" after `pieces` pieces or at once, "stops" reading.
    ends: the ends that are right, beside those of every job (limited).
    """

    number: int
    kind: str
    key: int
    steps: tuple[tuple[str, dict[str, Any]], ...]
    ends: frozenset[str]
    raw: bytes | None = None
    manner: str = "takes"
    pieces: int = 0

    @property
    def compares(self) -> bool:
        """Whether a quiet server must give the same bits."""
        return self.manner in ("takes", "slow") and FINISHED in self.ends and self.raw is None


class Drawer:
    """Draws jobs. adapters: whether the server has them. A stem is a beginning that many prompts have."""

    def __init__(self, seed: int, vocabulary: int):
        self._seed, self._vocabulary = seed, vocabulary
        rng = random.Random(seed)
        self._stems = [[rng.randrange(100, vocabulary) for _ in range(rng.choice((64, 96, 160)))] for _ in range(24)]
        self._texts = ["".join(rng.choice(WORDS) for _ in range(60)) for _ in range(12)]

    def draw(self, number: int, adapters: bool, replaced: bool) -> Job:
        """Returns job `number`. replaced: whether the server's engine may be replaced while the job runs."""
        rng = random.Random(self._seed * 1_000_003 + number)
        kinds = [kind for kind in _KINDS if adapters or kind is not _adapter]
        kind = rng.choices(kinds, [_KINDS[kind] for kind in kinds])[0]
        key = rng.choices(range(len(KEYS)), (4, 3, 1, 2))[0]
        name, steps, ends, raw = kind(self, rng)
        ends |= {LIMITED} | ({UNAVAILABLE} if replaced else set())
        job = Job(number, name, key, tuple(steps), frozenset(ends), raw)
        return job if raw is not None or REFUSED in ends else _mannered(job, rng)

    def ids(self, rng: random.Random) -> list[int]:
        stem = rng.choice(self._stems) if rng.random() < 0.7 else []
        return stem + [rng.randrange(100, self._vocabulary) for _ in range(rng.randrange(1, 60))]

    def text(self, rng: random.Random) -> str:
        return rng.choice(self._texts)[: rng.randrange(20, 400)] + str(rng.randrange(1000))


def _mannered(job: Job, rng: random.Random) -> Job:
    manner = rng.choices(("takes", "slow", "leaves", "stops"), (80, 4, 14, 2))[0]
    ends = job.ends | ({LEFT} if manner in ("leaves", "stops") else set())
    return Job(job.number, job.kind, job.key, job.steps, ends, None, manner, rng.choice((0, 0, 1, 2, 5, 20)))


Drawn = tuple[str, list[tuple[str, dict[str, Any]]], set[str], bytes | None]


def _common(rng: random.Random, most: str = "max_tokens", longest: int = 32, guided: bool = False) -> dict[str, Any]:
    """Fields that every API has. guided: whether a grammar admits few tokens, of which these fields forbid none."""
    fields: dict[str, Any] = {most: rng.randrange(1, longest), "seed": rng.randrange(1 << 31)}
    if rng.random() < 0.5:
        fields["temperature"] = rng.choice((0.5, 1.0, 1.7))
        fields |= rng.choice(({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}, {"typical_p": 0.8}))
    else:
        fields["temperature"] = 0
    if rng.random() < 0.3:
        fields |= rng.choice(_SHAPING[: 4 if guided else None])
    if rng.random() < 0.2:
        fields["priority"] = rng.choice((-2, 0, 1))
    if rng.random() < 0.3:
        fields["ignore_eos"] = True
    if rng.random() < 0.1:
        fields["cache_salt"] = rng.choice(("left", "right"))
    return fields


_SHAPING: tuple[dict[str, Any], ...] = (
    {"presence_penalty": 0.4, "frequency_penalty": -0.2},
    {"repetition_penalty": 1.2},
    {"dry_multiplier": 0.8, "dry_allowed_length": 2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1, "temperature": 1.0},
    {"logit_bias": {"300": 5.0, "301": -100.0}},
    {"no_repeat_ngram_size": 3},
    {"min_tokens": 1},
)
"""Changes of the logits. Those behind the fourth forbid tokens, and beside a grammar they may leave none."""


def _streamed(rng: random.Random) -> dict[str, Any]:
    return {"stream": True} if rng.random() < 0.5 else {}


def _completion(drawer: Drawer, rng: random.Random) -> Drawn:
    body = {**_common(rng), **_streamed(rng), "prompt": drawer.ids(rng) if rng.random() < 0.7 else drawer.text(rng)}
    if rng.random() < 0.6:
        body["logprobs"] = rng.choice((0, 1, 5))
    if rng.random() < 0.2:
        body["stop"] = rng.choice((["e", "import"], "\n"))
    if rng.random() < 0.15:
        body["echo"] = True
    if rng.random() < 0.2:
        body["n"] = rng.choice((2, 3))
    if rng.random() < 0.05:
        body["prompt"] = [drawer.ids(rng), drawer.ids(rng)]
    return "completion", [("/v1/completions", body)], {FINISHED}, None


def _long(drawer: Drawer, rng: random.Random) -> Drawn:
    """A long output, so that sequences grow until one must give its blocks to others."""
    body = {"prompt": drawer.ids(rng), "max_tokens": rng.randrange(100, 160), "ignore_eos": True, "logprobs": 0,
            "temperature": 0, "seed": 1, **_streamed(rng)}  # fmt: skip
    return "long", [("/v1/completions", body)], {FINISHED}, None


def _beams(drawer: Drawer, rng: random.Random) -> Drawn:
    body = {"prompt": drawer.ids(rng), "max_tokens": rng.randrange(2, 12), "use_beam_search": True, "n": 2,
            "best_of": rng.choice((2, 3)), "length_penalty": rng.choice((0.5, 1.0)), "seed": 1}  # fmt: skip
    return "beams", [("/v1/completions", body)], {FINISHED}, None


def _guided(drawer: Drawer, rng: random.Random) -> Drawn:
    form = rng.choice(
        (
            {"guided_regex": r"[a-z]{2,8}(-[0-9]{1,3})?"},
            {"guided_choice": ["yes", "no", "perhaps later"]},
            {"guided_json": SCHEMA},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
            {"guided_grammar": 'start: "(" word ")"\nword: /[a-f]{1,6}/'},
        )
    )
    body = {
        **_common(rng, longest=50, guided=True),
        **_streamed(rng),
        "prompt": drawer.text(rng),
        "logprobs": 0,
        **form,
    }
    return "guided", [("/v1/completions", body)], {FINISHED}, None


def _messages_of(drawer: Drawer, rng: random.Random) -> list[dict[str, Any]]:
    turns = [{"role": "user", "content": drawer.text(rng)}]
    for _ in range(rng.choice((0, 0, 1, 2))):
        turns += [{"role": "assistant", "content": drawer.text(rng)[:60]}, {"role": "user", "content": "And then?"}]
    return turns


def _chat(drawer: Drawer, rng: random.Random) -> Drawn:
    talk = [{"role": "system", "content": "Be short."}, *_messages_of(drawer, rng)]
    body = {**_common(rng), **_streamed(rng), "messages": talk, "reasoning_effort": "none"}
    if rng.random() < 0.6:
        body |= {"logprobs": True, "top_logprobs": rng.choice((0, 3))}
    if rng.random() < 0.2:
        body["n"] = 2
    return "chat", [("/v1/chat/completions", body)], {FINISHED}, None


def _tools(drawer: Drawer, rng: random.Random) -> Drawn:
    choice = rng.choice(("required", "auto", "none", {"type": "function", "function": {"name": "now"}}))
    body = {**_common(rng, longest=60, guided=True), **_streamed(rng), "messages": _messages_of(drawer, rng),
            "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": rng.random() < 0.5,
            "thinking_token_budget": 4}  # fmt: skip
    return "tools", [("/v1/chat/completions", body)], {FINISHED}, None


def _thinking(drawer: Drawer, rng: random.Random) -> Drawn:
    body = {**_common(rng), **_streamed(rng), "messages": _messages_of(drawer, rng),
            "thinking_token_budget": rng.choice((0, 1, 7, 30))}  # fmt: skip
    return "thinking", [("/v1/chat/completions", body)], {FINISHED}, None


def _responses(drawer: Drawer, rng: random.Random) -> Drawn:
    first = {**_common(rng, "max_output_tokens", 24), **_streamed(rng), "input": drawer.text(rng),
             "instructions": "Be short.", "thinking_token_budget": 3}  # fmt: skip
    later = [
        {**_common(rng, "max_output_tokens", 24), **_streamed(rng), "input": "Go on.", "previous_response_id": None}
        for _ in range(rng.choice((0, 1, 2)))
    ]
    # An earlier response is forgotten where the store is full, and with the server that had it.
    ends = {FINISHED, MISSING} if later else {FINISHED}
    return "responses", [("/v1/responses", body) for body in (first, *later)], ends, None


def _messages(drawer: Drawer, rng: random.Random) -> Drawn:
    body = {**_common(rng, guided=True), **_streamed(rng), "messages": _messages_of(drawer, rng), "system": "Be short."}
    if rng.random() < 0.4:
        body |= {"tools": [{"name": "get_weather", "input_schema": ROOM}], "tool_choice": {"type": "any"}}
        body["max_tokens"] += 40
    if rng.random() < 0.4:
        body["thinking"] = {"type": "enabled", "budget_tokens": 5}
        body["max_tokens"] += 5  # The budget must be less.
    return "messages", [("/v1/messages", body)], {FINISHED}, None


def _adapter(drawer: Drawer, rng: random.Random) -> Drawn:
    body = {**_common(rng), **_streamed(rng), "prompt": drawer.ids(rng), "logprobs": 1, "model": rng.choice(ADAPTERS)}
    return "adapter", [("/v1/completions", body)], {FINISHED, MISSING}, None


def _deadline(drawer: Drawer, rng: random.Random) -> Drawn:
    body = {**_common(rng, longest=120), **_streamed(rng), "prompt": drawer.ids(rng), "logprobs": 0,
            "deadline": rng.choice((0, 0.05, 0.3, 2.0))}  # fmt: skip
    return "deadline", [("/v1/completions", body)], {FINISHED, LATE}, None


def _over_limits(drawer: Drawer, rng: random.Random) -> Drawn:
    wrong = rng.choice(
        (
            {"prompt": [7] * 3000},
            {"prompt": "x", "max_tokens": 100_000},
            {"prompt": "x", "n": 4000},
            {"prompt": "x", "logprobs": 2000},
            {"prompt": "x", "temperature": -1},
            {"prompt": "x" * (2 * MAX_BODY)},
            {"prompt": "x", "no_such_field_at_all": 1, "priority": 99},
            {"prompt": "x", "guided_regex": "[a-"},
            {"prompt": "x", "guided_regex": "a", "guided_choice": ["b"]},
            {"prompt": []},
        )
    )
    return "over limits", [("/v1/completions", wrong)], {REFUSED}, None


def _malformed(drawer: Drawer, rng: random.Random) -> Drawn:
    raw = rng.choice((b'{"prompt": "x"', b"\xff\xfe{}", b"[" * 2000, b'{"prompt": 1e999}', b"null", b'"text"'))
    return "malformed", [(rng.choice(("/v1/completions", "/v1/chat/completions", "/v1/messages")), {})], {REFUSED}, raw


def _half_sent(drawer: Drawer, rng: random.Random) -> Drawn:
    """The body ends before its length says, and the client waits or leaves."""
    return "half sent", [("/v1/completions", {})], {REFUSED, LEFT}, b'{"prompt": "half of'


_KINDS: dict[Callable[[Drawer, random.Random], Drawn], int] = {
    _completion: 30, _long: 6, _beams: 3, _guided: 10, _chat: 10, _tools: 8, _thinking: 4, _responses: 6, _messages: 6,
    _adapter: 8, _deadline: 4, _over_limits: 3, _malformed: 2, _half_sent: 1,
}  # fmt: skip
"""The kinds of jobs, and how often each is drawn."""
