"""The parts of a tokenizer (normalizer, pre-tokenizer, decoder) as tokenizer.json has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def component_state(component: Any) -> dict[str, Any]:
    """{} for none. Read of the component alone: the whole with the vocabulary would take long."""
    return {} if component is None else json.loads(component.__getstate__())


def sequence_parts(state: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """The component itself, or those of a sequence in it, which it has under `key`."""
    if state.get("type") == "Sequence":
        for part in state[key]:
            yield from sequence_parts(part, key)
    elif state:
        yield state
