"""Defines the tools of a request, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown, weigh

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
CHOICES = ("none", "auto", "required")
"""The choices that name no tool."""
ALLOWED = "allowed_tools"
"""The type of a choice that lets the model call some of the tools."""
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
"""The parameters of a tool that declares none."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may ask for.

    parameters: the JSON schema of its arguments, an object. strict: whether the arguments must fit it in any case.
    """

    name: str
    parameters: dict[str, Any]
    strict: bool
    description: str = ""

    @property
    def enforced(self) -> dict[str, Any]:
        """The schema that a grammar enforces. Without strict, any object will do."""
        return self.parameters if self.strict else {"type": "object"}

    @property
    def for_template(self) -> dict[str, Any]:
        """The declaration in the form that chat templates read: many fail without a description. `strict` is no word
        that models know."""
        declared = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": declared}


@dataclass(frozen=True)
class Tools:
    """The tools of a request, and how they may be used.

    choice: "none", "auto", "required", or "named" if the model must call the only tool that may be called.
    callable: the tools that may be called: all of them, those that are allowed, or the named one. parallel: whether
    there may be several calls.
    """

    declared: tuple[Tool, ...] = ()
    choice: str = "none"
    callable: tuple[Tool, ...] = ()
    parallel: bool = True

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable)

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """The schemas by the tools' names."""
        return {tool.name: tool.parameters for tool in self.callable}

    @property
    def forced(self) -> bool:
        """Whether the model must call a tool."""
        return self.choice in ("required", "named")

    @property
    def shaped(self) -> bool:
        """Whether a grammar must shape the answer."""
        fewer = len(self.callable) < len(self.declared)
        some = self.choice == "auto" and (not self.parallel or fewer or any(tool.strict for tool in self.callable))
        return self.forced or some


def read_tools(tools: Any, tool_choice: Any = None, parallel_tool_calls: Any = None) -> Tools:
    """Returns the tools of a request in the form of OpenAI's API. Raises InvalidRequestError, which names the tool.

    tools: dicts {"type": "function", "function": {"name", "description", "parameters", "strict"}}; None or [] mean
    none. tool_choice: "none", "auto", "required", {"type": "function", "function": {"name": ...}}, or {"type":
    "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [such choices of one]}}; None means "auto"
    if there are tools. parallel_tool_calls: False allows one call at most; None means True.
    """
    if tools is not None and not isinstance(tools, (list, tuple)):
        raise InvalidRequestError(f"tools must be a list of dicts, got {shown(tools)}")
    tools = tools or ()
    if len(tools) > bounds.TOOLS:
        raise InvalidRequestError(f"tools must have at most {bounds.TOOLS} entries, got {len(tools)}")
    declared = tuple(_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(declared):
        if tool.name in seen:
            raise InvalidRequestError(f"tools[{index}]: the name {tool.name!r} is given to two tools")
        seen.add(tool.name)
    if parallel_tool_calls is not None and not isinstance(parallel_tool_calls, bool):
        raise InvalidRequestError(f"parallel_tool_calls must be True or False, got {shown(parallel_tool_calls)}")
    choice, callable_tools = _read_choice(declared, tool_choice)
    if choice in ("required", "named"):  # whoever forces a call wants arguments that fit
        callable_tools = tuple(replace(tool, strict=True) for tool in callable_tools)
    return Tools(declared, choice, callable_tools, parallel_tool_calls is not False)


def _read_choice(declared: Sequence[Tool], choice: Any) -> tuple[str, tuple[Tool, ...]]:
    if choice is None:
        choice = "auto" if declared else "none"
    if isinstance(choice, str):
        if choice not in CHOICES:
            raise InvalidRequestError(
                f"tool_choice must be one of {', '.join(CHOICES)}, or name a function, got {shown(choice)}"
            )
        if choice == "required" and not declared:
            raise InvalidRequestError("tool_choice must come with tools")
        return (choice if declared else "none"), (() if choice == "none" else tuple(declared))
    if isinstance(choice, Mapping) and choice.get("type") == ALLOWED:
        return _read_allowed(declared, choice.get(ALLOWED))
    name = _chosen_name(choice)
    if name is None:
        raise InvalidRequestError(
            'tool_choice must be a text, {"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", '
            f'"allowed_tools": {{...}}}}, got {shown(choice)}'
        )
    return "named", tuple(tool for tool in declared if tool.name == _known(declared, name))


def _read_allowed(declared: Sequence[Tool], allowed: Any) -> tuple[str, tuple[Tool, ...]]:
    """Returns the choice that lets the model call some of the tools. All of them stay in the prompt, so that the
    prefix of a conversation stays the same while what is allowed changes."""
    mode, chosen = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, Mapping) else (None, None)
    if mode not in ("auto", "required") or not isinstance(chosen, (list, tuple)) or not chosen:
        raise InvalidRequestError(
            "tool_choice: allowed_tools must have a mode, auto or required, and a list of at least one of the tools, "
            f"got {shown(allowed)}"
        )
    names = {_known(declared, _chosen_name(tool)) for tool in chosen}
    return mode, tuple(tool for tool in declared if tool.name in names)


def _chosen_name(choice: Any) -> str | None:
    """Returns the name in {"type": "function", "function": {"name": ...}}, or None for anything else."""
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _known(declared: Sequence[Tool], name: str | None) -> str:
    """Returns the name, which must be that of a tool."""
    if name is None or all(tool.name != name for tool in declared):
        known = ", ".join(tool.name for tool in declared) or "none"
        raise InvalidRequestError(f"tool_choice must name one of the tools ({known:.200}), got {name!r:.80}")
    return name


def _read_tool(where: str, tool: Any) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise InvalidRequestError(f'{where} must be {{"type": "function", "function": {{...}}}}, got {shown(tool)}')
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}: the name must be 1 to 64 letters, digits, _, - and ., none other, got {shown(name)}"
        )
    where = f"{where} ({name})"
    description, strict = function.get("description"), function.get("strict")
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(f"{where}: the description must be a text, got {shown(description)}")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequestError(f"{where}: strict must be True or False, got {shown(strict)}")
    return Tool(name, _read_parameters(where, function.get("parameters")), strict is True, description or "")


def _read_parameters(where: str, schema: Any) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, which must be that of an object."""
    if schema is None or schema == {}:
        return NO_PARAMETERS
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidRequestError(f"{where}: parameters must be the JSON schema of an object, got {shown(schema)}")
    if not weigh(schema, bounds.GRAMMAR_LENGTH, characters=True):
        raise InvalidRequestError(f"{where}: parameters must have at most {bounds.GRAMMAR_LENGTH} characters")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise InvalidRequestError(f"{where}: properties of parameters must be an object, got {shown(properties)}")
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise InvalidRequestError(f"{where}: required of parameters must be a list of names, got {shown(required)}")
    return {"type": "object", **schema}
