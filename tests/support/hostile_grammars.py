"""Grammars that no honest client sends: what overran the stack, never ended, or took all memory of whoever compiled
them."""

from __future__ import annotations

import json
from typing import Any

CHAINS = ("json-refs", "json-any-of", "lark-rules", "lark-terminals", "ebnf-rules")
OF_BOTH_KINDS = ("json-refs", "ebnf-rules")
"""A schema and a grammar, where the shape makes no difference."""


def chain(shape: str, links: int) -> dict[str, Any]:
    """Keyword of GuidedDecodingParams: rules, each of which is only the next one."""
    numbers = range(links)
    if shape == "json-refs":
        return {"json": _schema({f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in numbers}, links)}
    if shape == "json-any-of":
        null = {"type": "null"}
        return {"json": _schema({f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}, null]} for at in numbers}, links)}
    if shape == "lark-rules":
        return {"grammar": "start: r0\n" + "".join(f"r{at}: r{at + 1}\n" for at in numbers) + f'r{links}: "a"'}
    if shape == "lark-terminals":
        return {"grammar": "start: T0\n" + "".join(f"T{at}: T{at + 1}\n" for at in numbers) + f'T{links}: "a"'}
    return {"grammar": "root ::= r0\n" + "".join(f"r{at} ::= r{at + 1}\n" for at in numbers) + f'r{links} ::= "a"'}


def _schema(links: dict[str, Any], last: int) -> str:
    named = {"$ref": "#/$defs/a0", "$defs": {**links, f"a{last}": {"type": "integer"}}}
    return json.dumps(named, separators=(",", ":"))


LONGEST = dict(zip(CHAINS, (2000, 1100, 5200, 5200, 4200), strict=True))
"""Links that a text of the most characters may have."""

BLANK_LINES = {"grammar": "\n" * 60_000 + 'root ::= "a"'}
COMMENTS = {"grammar": 'root ::= "a"\n' + "#\n" * 32_000}
MANY_COMMENTS = {"grammar": 'root ::= "a"\n' + "#\n" * 400_000}
_NAMES = [f"T{at}" for at in range(2900)]
TERMINALS = {"grammar": "start: " + "|".join(_NAMES) + "".join(f"\n{name}: /a+b*/" for name in _NAMES)}
ENDLESS = {"regex": "((a{100}){100}){100}"}
AMBIGUOUS = {"grammar": 'start: s\ns: s s s s | s s | "" | /./ | /../ | /.../'}
"""Each mask of it takes longer than the one before."""
SLOWLY_AMBIGUOUS = {"grammar": "start: x\nx: /[ab]/ | x x"}
"""Its masks become slow after some tokens."""
