"""Templates of models that call tools and think, and a tool whose arguments can be checked."""

from __future__ import annotations

import json
from typing import Any

ANSWER = "{% if add_generation_prompt %}answer: {% endif %}"
THOUGHT = "{# </think> #}{% if add_generation_prompt %}<think>\n{% endif %}"
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}" + THOUGHT
ROOM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
}


def fits(name: str, arguments: str) -> bool:
    """Whether the arguments fit the tool: get_weather has ROOM, now takes any object."""
    given = json.loads(arguments)
    if name == "now":
        return isinstance(given, dict)
    return set(given) == {"unit", "days"} and given["unit"] in ("C", "F") and given["days"] in range(1, 10)
