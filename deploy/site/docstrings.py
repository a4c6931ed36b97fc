"""Makes lists of the lines "name: what it is" in docstrings, for the reference of the API. A plug-in of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe

ENTRY = re.compile(r"(`{0,2}\*{0,2}[A-Za-z_]\w*(?:(?:, | and )[A-Za-z_]\w*)*`{0,2}): (?=\S)")


class Lists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """Returns a docstring in which each line that begins with names and a colon, and the lines after it, are an entry.

    An entry ends at an empty line or at the next entry.
    """
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        entry = ENTRY.match(line)
        if entry:
            if not inside:
                lines.append("")
            lines.append(f"* `{entry[1]}`: {line[entry.end() :]}")
            inside = True
        elif not line.strip():
            lines.append(line)
            inside = False
        else:
            lines.append(f"  {line}" if inside else line)
    return "\n".join(lines)
