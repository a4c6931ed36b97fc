"""Explains why the exporter failed, in terms of the model: the module, its line of code, and the cause."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from torch import nn

_LENGTH = re.compile(r"L\['input_ids'\]\.size\(\)\[1\]")
_DATA_DEPENDENT = re.compile(r"data-dependent|Could not guard", re.IGNORECASE)


def explain_export(model: nn.Module, error: Exception) -> str:
    """Returns one sentence, without the exporter's own advice."""
    place = _place(model, error)
    return f"{place}{_cause(error)}" if place else f"its code {_cause(error)}"


def _place(model: nn.Module, error: Exception) -> str:
    """Returns the innermost module that was running, and its line of source; "" if none was running."""
    names = {id(module): name or "(top)" for name, module in model.named_modules()}
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = names.get(id(frame.f_locals.get("self")))
        file = Path(frame.f_code.co_filename).name
        if name is not None and file.startswith("modeling_") and file != "modeling_layers.py":
            place = f"module {name} ({file}, line {line}) "
    return place


def _cause(error: Exception) -> str:
    text = str(error)
    guard = re.search(r"satisfy the generated guard (.+?)\.?$", text, re.MULTILINE)
    if guard is not None:
        return f"is not the same for every length: it needs {_LENGTH.sub('seq', guard[1])}"
    if "specialized it to be a constant" in text:
        return "works for one length only: it fixes the number of positions while it runs"
    if _DATA_DEPENDENT.search(text):
        return "branches on values that are known only when it runs"
    lines = [line for line in text.splitlines() if line.strip()]
    return f"raises {type(error).__name__}" + (f": {lines[0].strip().rstrip('.')}" if lines else "")
