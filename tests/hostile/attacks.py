"""What one hostile client can do, row by row of the review that found it; `benchmarks/hostile_client.py` measures them,
test_hostile.py holds them to bounds.

An attack is made ready at some size before the clock runs, so that making it holds nobody up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hostile import connections, oracles
from hostile.clients import Attacker, Outcome, posts
from support import hostile_grammars
from support.hostile_grammars import LONGEST, chain

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT: dict[str, Any] = {"model": "pico", "prompt": "import os"}
MESSAGES: dict[str, Any] = {"model": "pico", "messages": [{"role": "user", "content": "import os"}]}


@dataclass(frozen=True)
class Attack:
    """One row.

    row: its number in the review. size: as the review had it. short: the least that shows it, for a test. options: of
    the server, besides those it always has. files: most descriptors of the server; None: as they are. alone: it has a
    server of its own in tests too. answers: what it may be answered once it is held; None: any refusal or 200.
    """

    row: str
    name: str
    what: str
    size: int
    ready: Callable[[int], Attacker]
    short: int | None = None
    options: tuple[str, ...] = ()
    files: int | None = None
    keys: bool = True
    watched: bool = True
    log: Callable[[Outcome, list[str]], str] | None = None

    @property
    def alone(self) -> bool:
        """It needs a server of its own."""
        return bool(self.options) or self.files is not None or not self.keys


SOUND = ("200", "400", "401", "404", "408", "413", "421", "422", "429", "431", "503", "504", "refused")
"""An answer or a refusal, which may be of the connection itself; neither a fault of the server's nor an answer that
breaks off."""


def body(base: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({**base, **fields}).encode()


def post(path: str, make: Callable[[int], bytes], times: int = 1) -> Callable[[int], Attacker]:
    """The same body, on so many connections at once."""
    return lambda size: posts(path, [make(size)] * times)


def completion(times: int = 1, **fields: Callable[[int], Any]) -> Callable[[int], Attacker]:
    """A completion with fields of the size asked for."""
    return post(COMPLETIONS, lambda size: body(PROMPT, **{k: make(size) for k, make in fields.items()}), times)


# Grammars.


def ref_chain(count: int) -> dict[str, Any]:
    """$defs that lead one to the next."""
    chain = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["a"]}
        for i in range(count)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"type": "null"}}}


def any_of_chain(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(chain("json-any-of", count)["json"])
    return schema


def grammar_chain(shape: str) -> Callable[[int], str]:
    return lambda count: str(chain(shape, count)["grammar"])


lark_rules, lark_terminals, ebnf_rules = map(grammar_chain, ("lark-rules", "lark-terminals", "ebnf-rules"))


def ebnf_comments(count: int) -> str:
    return 'root ::= "a"\n' + "#\n" * count


AMBIGUOUS = hostile_grammars.AMBIGUOUS["grammar"]


def texts(count: int) -> list[str]:
    """All different."""
    return [f"q{number:06x}" for number in range(count)]


GRAMMARS = (
    Attack("C1", "schema-refs", "a chain of $refs in guided_json", 1200, completion(guided_json=ref_chain), 700),
    Attack(
        "C1", "schema-any-of", "a chain of anyOf in response_format", 4000,
        completion(
            response_format=lambda n: {
                "type": "json_schema", "json_schema": {"name": "a", "schema": any_of_chain(n)},
            }
        ),
        LONGEST["json-any-of"],
    ),
    Attack(
        "C1", "lark-rules", "a chain of rules", 16000, completion(guided_grammar=lark_rules), LONGEST["lark-rules"]
    ),
    Attack(
        "C1", "lark-terminals", "a chain of terminals", 16000, completion(guided_grammar=lark_terminals),
        LONGEST["lark-terminals"],
    ),
    Attack(
        "C1", "ebnf-rules", "a chain of EBNF rules", 4000, completion(guided_grammar=ebnf_rules), LONGEST["ebnf-rules"]
    ),
    Attack(
        "C2", "empty-lines", "guided_grammar of line ends", 60_000,
        completion(guided_grammar=lambda n: "\n" * n + "a"), 30_000,
    ),
    Attack(
        "C2", "ebnf-comments", "EBNF with comment lines", 400_000, completion(guided_grammar=ebnf_comments), 200_000
    ),
    Attack(
        "H4", "ambiguous", "an ambiguous grammar of 70 characters, 400 tokens", 1,
        completion(guided_grammar=lambda n: AMBIGUOUS + "\n" * (n % 8), max_tokens=lambda n: 400), 1,
    ),
    Attack(
        "H6", "slow-compiles", "eight guided_choice of so many texts", 70_000,
        completion(8, guided_choice=lambda n: texts(n)), 70_000,
    ),
)  # fmt: skip

# Bodies.


def many(item: str, around: str) -> Callable[[int], bytes]:
    """`around` with as many of the item in place of @ as fit into so many bytes; raw text, for json.dumps is slow."""
    return lambda size: around.replace("@", ",".join([item] * (size // (len(item) + 1)))).encode()


def unknown_fields(count: int) -> bytes:
    return body(PROMPT, **{f"f{number}": 1 for number in range(count)})


def wrong_biases(count: int) -> bytes:
    return body(PROMPT, logit_bias={str(number): "a" for number in range(count)})


def prompts_by_n(n: int) -> Callable[[int], bytes]:
    return lambda count: many('"a"', f'{{"model":"pico","n":{n},"prompt":[@]}}')(count * 4)


def field(name: str, item: str) -> Callable[[int], bytes]:
    return many(item, f'{{"model":"pico","prompt":"a","{name}":[@]}}')


BODIES = (
    Attack("H1", "prompts-128", "so many prompts, n=128", 200_000, post(COMPLETIONS, prompts_by_n(128)), 200_000),
    Attack("H1", "prompts-64", "so many prompts, n=64", 1_000_000, post(COMPLETIONS, prompts_by_n(64)), 950_000),
    Attack("H1", "prompts-1", "so many prompts, n=1", 1_000_000, post(COMPLETIONS, prompts_by_n(1)), 950_000),
    Attack("H2", "stop-numbers", "stop: [1,1,...]", 4_000_000, post(COMPLETIONS, field("stop", "1")), 3_900_000),
    Attack("H2", "bad-words-numbers", "bad_words: [1,1,...]", 4_000_000, post(COMPLETIONS, field("bad_words", "1")),
           3_900_000),
    Attack("H2", "stop-ids-texts", 'stop_token_ids: ["a",...]', 4_000_000,
           post(COMPLETIONS, field("stop_token_ids", '"a"')), 3_900_000),
    Attack("H2", "unknown-fields", "so many unknown fields", 300_000, post(COMPLETIONS, unknown_fields), 300_000),
    Attack("H2", "prompt-lists", "prompt: [[1],[1],...]", 4_000_000,
           post(COMPLETIONS, many("[1]", '{"model":"pico","prompt":[@]}')), 3_900_000),
    Attack("H2", "wrong-roles", "messages with wrong roles", 4_000_000,
           post(CHAT, many('{"role":"x","content":"a"}', '{"model":"pico","messages":[@]}')), 3_900_000),
    Attack("H2", "wrong-biases", "so many wrong logit_bias", 250_000, post(COMPLETIONS, wrong_biases), 250_000),
    Attack("H2", "prompt-ids", "prompt: [1,1,...]", 4_000_000,
           post(COMPLETIONS, many("1", '{"model":"pico","prompt":[@]}')), 3_900_000),
    Attack("H5", "stop-strings", "so many stop strings, 200 tokens", 370_000,
           completion(stop=lambda n: texts(n), max_tokens=lambda n: 200), 370_000),
    Attack("M4", "bad-words", "so many bad words, 200 tokens", 100_000,
           completion(bad_words=lambda n: texts(n), max_tokens=lambda n: 200), 100_000),
    Attack("M4", "stop-ids", "so many stop_token_ids, 200 tokens", 700_000,
           completion(stop_token_ids=lambda n: [i % 4000 for i in range(n)], max_tokens=lambda n: 200), 700_000),
)  # fmt: skip

# What many bodies take together was no row of the review.
TOGETHER = (
    Attack("-", "held-bodies", "so many bodies of 3.9 MB at once that do not end", 60, connections.hold_bodies, 40),
)

# Text.

TEXT = (
    Attack("H3", "long-prompt", "a prompt of so many characters", 3_900_000,
           post(COMPLETIONS, lambda n: body({"model": "pico", "prompt": "a" * n})), 3_900_000),
    Attack("H3", "long-words", "a prompt of so many characters in words", 3_900_000,
           post(COMPLETIONS, lambda n: body({"model": "pico", "prompt": "word " * (n // 5)})), 3_900_000),
    Attack("H3", "tokenize", "/tokenize of so many characters, with their spelling", 3_900_000,
           post("/tokenize", lambda n: body({"model": "pico", "prompt": "a b " * (n // 4), "return_token_strs": True})),
           3_900_000),
    Attack("H3", "detokenize", "/detokenize of so many ids", 1_900_000,
           post("/detokenize", lambda n: many("1", '{"model":"pico","tokens":[@]}')(2 * n)), 1_900_000),
    Attack("H3", "long-message", "a chat message of so many characters", 3_900_000,
           post(CHAT, lambda n: body({"model": "pico", "messages": [{"role": "user", "content": "a " * (n // 2)}]})),
           3_900_000),
)  # fmt: skip

# Connections, priorities and what is no matter of time.

FEW = ("--max-connections", "20")
CONNECTIONS = (
    Attack("H7", "idle-connections", "19 of 20 connections ask /health and stay, seconds", 15, connections.stay(19), 3,
           FEW),
    Attack("H7", "silent-connections", "20 of 20 connections say nothing, seconds", 10, connections.say_nothing(20), 3,
           FEW),
    Attack("H7", "chunks", "eight GET /health in chunks of a byte, so many each", 3_000_000, connections.chunks,
           100_000),
    Attack("H7", "descriptors", "80 connections at 64 descriptors, seconds", 10, connections.say_nothing(80), 3,
           files=64, log=connections.flood),
    Attack("H7", "one-connection", "--max-connections 1, one client", 1, connections.only_one, 1,
           ("--max-connections", "1"), watched=False),
    Attack("M5", "priority", "eight clients of the highest priority, batch of 4, seconds", 20,
           connections.high_priority, 4, ("--max-batch-size", "4")),
    Attack("M8", "cached-tokens", "guesses another client's prompt", 1, oracles.cached_tokens, 1),
    Attack("L2", "nested", "bodies nested up to so deep, --log-prompts", 1000, oracles.nested, 1000, ("--log-prompts",),
           log=oracles.unlogged),
    Attack("L5", "host", "Host: evil.example, no keys", 1, oracles.foreign_host, 1, keys=False),
    Attack("L6", "two-lengths", "Content-Length beside Transfer-Encoding", 1, oracles.two_lengths, 1),
)  # fmt: skip

ATTACKS: tuple[Attack, ...] = (*GRAMMARS, *BODIES, *TOGETHER, *TEXT, *CONNECTIONS)
