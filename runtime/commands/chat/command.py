"""Runs `tensorwright chat`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tensorwright.click_options import take
from tensorwright.errors import InvalidRequestError
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.chat import CHAT_SAMPLING
from tensorwright.options.declare import Door
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.api.open_model import find_model
from tensorwright.runtime.commands.chat.conversation import Conversation
from tensorwright.runtime.commands.chat.reader import open_reader
from tensorwright.runtime.commands.chat.session import Session
from tensorwright.runtime.commands.chat.settings import Settings
from tensorwright.runtime.commands.first_use import tell_of_build
from tensorwright.runtime.commands.one_adapter import adapter_of
from tensorwright.runtime.text.chat_template import read_argument


def chat(
    engine: str, *, system: str | None, load: str | None, keep_history: bool, effort: str | None, **options: Any
) -> None:
    """Talks until the input ends. cli.chat documents the options. options: the keywords of LLM, those of CHAT_SAMPLING,
    and the options of the build.
    """
    if options["chat_template"] is not None:
        options["chat_template"] = read_argument(options["chat_template"], "--chat-template")
    adapter = adapter_of(options)
    conversation = Conversation() if load is None else Conversation.load(Path(load).expanduser())
    if system is not None:
        conversation.system = system
    asked = take(options, Door.RUN, CHAT_SAMPLING)
    choices = BuildChoices(**take(options, Door.RUN, BuildChoices))
    path = find_model(engine, options.pop("revision"))
    tell_of_build(path, choices)
    with LLM(path, **options, **vars(choices)) as llm:
        if llm.chat_template is None and not llm.engine.chat_templates:
            raise InvalidRequestError(
                f"{engine} has no chat template, so it cannot tell who says what: give one by --chat-template, or use "
                "`tensorwright run`"
            )
        settings = Settings(asked, {**llm.sampling_defaults, **adapter})
        Session(llm, open_reader(keep_history), settings, conversation, sys.stdin.isatty(), effort).run()
