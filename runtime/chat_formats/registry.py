"""Lists the formats of calls and of thinking, and finds those of a chat template."""

from __future__ import annotations

from tensorwright.runtime.chat_formats.cohere import COHERE
from tensorwright.runtime.chat_formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from tensorwright.runtime.chat_formats.gemma import FUNCTION_GEMMA, GEMMA3, GEMMA4
from tensorwright.runtime.chat_formats.glm import GLM
from tensorwright.runtime.chat_formats.harmony import HARMONY
from tensorwright.runtime.chat_formats.hermes import ERNIE, HERMES
from tensorwright.runtime.chat_formats.json_lists import GRANITE, HUNYUAN, PHI4, PHI4_FUNCTOOLS, TOOL_CALLS
from tensorwright.runtime.chat_formats.kimi import KIMI
from tensorwright.runtime.chat_formats.lfm2 import LFM2
from tensorwright.runtime.chat_formats.llama_json import LLAMA_JSON
from tensorwright.runtime.chat_formats.mistral import MISTRAL, MISTRAL_NAMED
from tensorwright.runtime.chat_formats.pythonic import PYTHONIC
from tensorwright.runtime.chat_formats.reasoning import BRACKETS, GEMMA, SEED_THINK, THINK, ReasoningFormat
from tensorwright.runtime.chat_formats.reasoning import COHERE as COHERE_THINKING
from tensorwright.runtime.chat_formats.reasoning import HARMONY as HARMONY_CHANNELS
from tensorwright.runtime.chat_formats.tool_format import ToolFormat
from tensorwright.runtime.chat_formats.xml_calls import MINIMAX, QWEN3_CODER, SEED, STEP3

AUTO, NONE = "auto", "none"
"""The names of no format: chosen from the template, and not used at all."""

TOOL_FORMATS: dict[str, ToolFormat] = {
    form.name: form
    for form in (
        HARMONY, DEEPSEEK_V3, DEEPSEEK_V31, MISTRAL_NAMED, MISTRAL, KIMI, COHERE, MINIMAX, SEED, STEP3, FUNCTION_GEMMA,
        GEMMA4, GEMMA3, LFM2, GLM, QWEN3_CODER, GRANITE, PHI4_FUNCTOOLS, PHI4, HUNYUAN, TOOL_CALLS, ERNIE, HERMES,
        PYTHONIC, LLAMA_JSON,
    )
}  # fmt: skip
"""All formats of calls, by name. The first that recognises a template is taken."""

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    form.name: form for form in (HARMONY_CHANNELS, BRACKETS, SEED_THINK, COHERE_THINKING, GEMMA, THINK)
}
"""All formats of thinking, by name. The first that recognises a template is taken."""


def find_tool_format(name: str, template: str) -> ToolFormat | None:
    """Returns the format of a name. "auto" means the one that the template shows, None if it shows none."""
    if name == NONE:
        return None
    if name != AUTO:
        return TOOL_FORMATS[name]
    return next((form for form in TOOL_FORMATS.values() if form.recognises(template)), None)


def find_reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    """Returns the format of a name. "auto" means the one that the template shows, None if it shows none."""
    if name == NONE:
        return None
    if name != AUTO:
        return REASONING_FORMATS[name]
    return next((form for form in REASONING_FORMATS.values() if form.recognises(template)), None)
