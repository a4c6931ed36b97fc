"""The same answer in every format of calls, and a small chat template that writes it so.

The templates are ours. They write calls as the models' templates do, which the formats' modules name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CONTENT = "I shall look."
CALLS: list[tuple[str, str]] = [("get_weather", '{"city": "Zürich \\"ZH\\"", "days": 3}'), ("now", "{}")]
"""The calls of the sample, and their arguments as OpenAI's API has them."""


@dataclass(frozen=True)
class Sample:
    """A format's sample.

    template: renders the tools, then the messages. content: what the answer says before its calls. calls: the text of
    the calls. single: the text of the first call alone.
    """

    template: str
    calls: str
    single: str
    content: str = CONTENT

    @property
    def answer(self) -> str:
        return self.content + self.calls

    @property
    def wrong(self) -> str:
        """The single call with a text where the schema has an integer."""
        assert self.single.count("3") == 1
        return self.single.replace("3", '"x"')


def _template(intro: str, calls: str) -> str:
    """Returns a template. intro: words that show the format. calls: Jinja that writes message.tool_calls."""
    return (
        intro
        + "{% if tools %}{{ tools | tojson }}{% endif %}"
        + "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}"
        + "{% if message.tool_calls %}"
        + calls
        + "{% endif %}{% else %}[{{ message.role }}] {{ message.content }}\n{% endif %}{% endfor %}"
    )


_WEATHER, _NOW = CALLS[0][1], CALLS[1][1]
_JSON = "{% for call in message.tool_calls %}"
_END = "{% endfor %}"
_OBJECT = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
_FIRST = '{"name": "get_weather", "arguments": ' + _WEATHER + "}"
_SECOND = '{"name": "now", "arguments": {}}'
_LIST = f"[{_FIRST}, {_SECOND}]"
_LISTED = "[" + _JSON + _OBJECT + "{% if not loop.last %}, {% endif %}" + _END + "]"
_DEEP = {
    "all": "<｜tool▁calls▁begin｜>",
    "one": "<｜tool▁call▁begin｜>",
    "sep": "<｜tool▁sep｜>",
    "end": "<｜tool▁call▁end｜>",
    "over": "<｜tool▁calls▁end｜>",
}

_PYTHON = (
    _JSON.replace("{", "{{").replace("}", "}}")
    + "{{{{ call.function.name }}}}({{% for key, value in call.function.arguments.items() %}}"
    + "{{{{ key }}}}={{{{ value | tojson }}}}{{% if not loop.last %}}, {{% endif %}}{{% endfor %}})"
    + "{between}"
    + _END.replace("{", "{{").replace("}", "}}")
)
"""The calls as Python. between: what stands between two of them."""


def _gemma(begin: str, close: str, quote: str) -> Sample:
    """Returns the sample of a model of Gemma's with these tags."""
    single = f'{begin}call:get_weather{{city:{quote}Zürich "ZH"{quote},days:3}}{close}'
    pair = "{{ key }}:{% if value is string %}QUOTE{{ value }}QUOTE{% else %}{{ value }}{% endif %}"
    return Sample(
        _template(
            "",
            f"{_JSON}{begin}call:{{{{ call.function.name }}}}{{% raw %}}{{{{% endraw %}}"
            "{% for key, value in call.function.arguments.items() %}"
            f"{pair.replace('QUOTE', quote)}{{% if not loop.last %}},{{% endif %}}{{% endfor %}}}}{close}{_END}",
        ),
        f"{single}{begin}call:now{{}}{close}",
        single,
    )


SAMPLES: dict[str, Sample] = {
    "hermes": Sample(
        _template(
            'Call: <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>\n',
            _JSON + "{{ '\\n' }}<tool_call>\n" + _OBJECT + "\n</tool_call>" + _END,
        ),
        f"\n<tool_call>\n{_FIRST}\n</tool_call>\n<tool_call>\n{_SECOND}\n</tool_call>",
        f"<tool_call>\n{_FIRST}\n</tool_call>",
    ),
    "llama3_json": Sample(
        _template(
            '<|start_header_id|>{"name": function name, "parameters": dictionary}\n',
            _JSON
            + '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
            + "{% if not loop.last %}; {% endif %}"
            + _END,
        ),
        f'{{"name": "get_weather", "parameters": {_WEATHER}}}; {{"name": "now", "parameters": {{}}}}',
        f'{{"name": "get_weather", "parameters": {_WEATHER}}}',
        content="",
    ),
    "pythonic": Sample(
        _template(
            "<|header_start|>[func_name1(params_name1=params_value1), func_name2(params)]\n",
            "["
            + _JSON
            + "{{ call.function.name }}({% for key, value in call.function.arguments.items() %}"
            + "{{ key }}={{ value | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})"
            + "{% if not loop.last %}, {% endif %}"
            + _END
            + "]",
        ),
        '[get_weather(city="Zürich \\"ZH\\"", days=3), now()]',
        '[get_weather(city="Zürich \\"ZH\\"", days=3)]',
        content="",
    ),
    "mistral": Sample(
        _template("[AVAILABLE_TOOLS]{# [TOOL_CALLS] #}", "[TOOL_CALLS]" + _LISTED),
        f"[TOOL_CALLS]{_LIST}",
        f"[TOOL_CALLS][{_FIRST}]",
    ),
    "mistral_named": Sample(
        _template(
            "[AVAILABLE_TOOLS]",
            _JSON + "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}" + _END,
        ),
        f"[TOOL_CALLS]get_weather[ARGS]{_WEATHER}[TOOL_CALLS]now[ARGS]{{}}",
        f"[TOOL_CALLS]get_weather[ARGS]{_WEATHER}",
    ),
    "harmony": Sample(
        "{# <|channel|> <|message|> #}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
        "{% if message.role == 'assistant' %}{% if message.content %}<|channel|>commentary<|message|>"
        "{{ message.content }}<|end|><|start|>assistant{% endif %}{% for call in message.tool_calls %}"
        "<|channel|>commentary to=functions.{{ call.function.name }} <|constrain|>json<|message|>"
        "{{ call.function.arguments | tojson }}{% if not loop.last %}<|call|><|start|>assistant{% endif %}{% endfor %}"
        "{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        + _WEATHER
        + "<|call|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + _WEATHER,
        content="<|channel|>commentary<|message|>" + CONTENT + "<|end|><|start|>assistant",
    ),
    "deepseek_v3": Sample(
        _template(
            "",
            _DEEP["all"]
            + _JSON
            + _DEEP["one"]
            + "function"
            + _DEEP["sep"]
            + "{{ call.function.name }}\n```json\n{{ call.function.arguments | tojson }}\n```"
            + _DEEP["end"]
            + "{{ '' if loop.last else '\\n' }}"
            + _END
            + _DEEP["over"],
        ),
        "{all}{one}function{sep}get_weather\n```json\n".format(**_DEEP)
        + _WEATHER
        + "\n```{end}\n{one}function{sep}now\n```json\n{{}}\n```{end}{over}".format(**_DEEP),
        "{all}{one}function{sep}get_weather\n```json\n".format(**_DEEP) + _WEATHER + "\n```{end}{over}".format(**_DEEP),
    ),
    "deepseek_v31": Sample(
        _template(
            "",
            _DEEP["all"]
            + _JSON
            + _DEEP["one"]
            + "{{ call.function.name }}"
            + _DEEP["sep"]
            + "{{ call.function.arguments | tojson }}"
            + _DEEP["end"]
            + _END
            + _DEEP["over"],
        ),
        "{all}{one}get_weather{sep}".format(**_DEEP) + _WEATHER + "{end}{one}now{sep}{{}}{end}{over}".format(**_DEEP),
        "{all}{one}get_weather{sep}".format(**_DEEP) + _WEATHER + "{end}{over}".format(**_DEEP),
    ),
    "glm": Sample(
        _template(
            "Call: <tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n",
            _JSON
            + "{{ '\\n' }}<tool_call>{{ call.function.name }}\n"
            + "{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>\n"
            + "<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>"
            + _END,
        ),
        '\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich "ZH"</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich "ZH"</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    "qwen3_coder": Sample(
        _template(
            "Call: <tool_call>\n<function=example_name>\n<parameter=example_1>\nvalue\n</parameter>\n",
            _JSON
            + "{{ '\\n' }}<tool_call>\n<function={{ call.function.name }}>\n"
            + "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>\n"
            + "{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
            + _END,
        ),
        '\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich "ZH"\n</parameter>\n<parameter=days>\n3\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich "ZH"\n</parameter>\n<parameter=days>\n3\n'
        "</parameter>\n</function>\n</tool_call>",
    ),
    "kimi_k2": Sample(
        _template(
            "",
            "<|tool_calls_section_begin|>"
            + _JSON
            + "<|tool_call_begin|>functions.{{ call.function.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
            + "{{ call.function.arguments | tojson }}<|tool_call_end|>"
            + _END
            + "<|tool_calls_section_end|>",
        ),
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{_WEATHER}"
        "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{_WEATHER}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "cohere": Sample(
        _template(
            "",
            "<|START_ACTION|>["
            + _JSON
            + '{{ "\n    " }}{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ call.function.name }}", '
            + '"parameters": {{ call.function.arguments | tojson }}}{% if not loop.last %},{% endif %}'
            + _END
            + "{{ '\n' }}]<|END_ACTION|>",
        ),
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        + _WEATHER
        + '},\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        + _WEATHER
        + "}\n]<|END_ACTION|>",
    ),
    "minimax": Sample(
        _template(
            "",
            "{{ '\n' }}<minimax:tool_call>{{ '\n' }}"
            + _JSON
            + '<invoke name="{{ call.function.name }}">{{ "\n" }}'
            + "{% for key, value in call.function.arguments.items() %}"
            + '<parameter name="{{ key }}">{{ value if value is string else value | tojson }}</parameter>{{ "\n" }}'
            + "{% endfor %}</invoke>{{ '\n' }}"
            + _END
            + "</minimax:tool_call>",
        ),
        '\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Zürich "ZH"</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Zürich "ZH"</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "seed": Sample(
        _template(
            "",
            _JSON
            + "{{ '\n' }}<seed:tool_call>{{ '\n' }}<function={{ call.function.name }}>{{ '\n' }}"
            + "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>{{ value }}</parameter>"
            + "{{ '\n' }}{% endfor %}</function>{{ '\n' }}</seed:tool_call>"
            + _END,
        ),
        '\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich "ZH"</parameter>\n'
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        '<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich "ZH"</parameter>\n'
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
    ),
    "step3": Sample(
        _template(
            "",
            "<｜tool_calls_begin｜>{{ '\n' }}"
            + _JSON
            + '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{{ call.function.name }}">{{ "\n" }}'
            + "{% for key, value in call.function.arguments.items() %}"
            + '<steptml:parameter name="{{ key }}">{{ value }}</steptml:parameter>{{ "\n" }}{% endfor %}'
            + "</steptml:invoke><｜tool_call_end｜>{{ '\n' }}"
            + _END
            + "<｜tool_calls_end｜>",
        ),
        '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">\n'
        '<steptml:parameter name="city">Zürich "ZH"</steptml:parameter>\n'
        '<steptml:parameter name="days">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now">\n</steptml:invoke><｜tool_call_end｜>\n'
        "<｜tool_calls_end｜>",
        '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">\n'
        '<steptml:parameter name="city">Zürich "ZH"</steptml:parameter>\n'
        '<steptml:parameter name="days">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
        "<｜tool_calls_end｜>",
    ),
    "function_gemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "gemma3": Sample(
        _template(
            "",
            "{{ '\n' }}```tool_code{{ '\n' }}"
            + _PYTHON.format(between="{{ '' if loop.last else '\n' }}")
            + "{{ '\n' }}```",
        ),
        '\n```tool_code\nget_weather(city="Zürich \\"ZH\\"", days=3)\nnow()\n```',
        '```tool_code\nget_weather(city="Zürich \\"ZH\\"", days=3)\n```',
    ),
    "lfm2": Sample(
        _template(
            "<|tool_list_start|>",
            "<|tool_call_start|>["
            + _PYTHON.format(between="{% if not loop.last %}, {% endif %}")
            + "]<|tool_call_end|>",
        ),
        '<|tool_call_start|>[get_weather(city="Zürich \\"ZH\\"", days=3), now()]<|tool_call_end|>',
        '<|tool_call_start|>[get_weather(city="Zürich \\"ZH\\"", days=3)]<|tool_call_end|>',
    ),
    "hunyuan": Sample(
        _template("{# <answer> #}", "<tool_calls>" + _LISTED + "</tool_calls>"),
        f"<tool_calls>{_LIST}</tool_calls>",
        f"<tool_calls>[{_FIRST}]</tool_calls>",
    ),
    "tool_calls": Sample(
        _template("", "<tool_calls>" + _LISTED + "</tool_calls>"),
        f"<tool_calls>{_LIST}</tool_calls>",
        f"<tool_calls>[{_FIRST}]</tool_calls>",
    ),
    "ernie": Sample(
        _template(
            "{# <response></response><tool_output> #}",
            _JSON + "{{ '\n' }}<tool_call>{{ '\n' }}" + _OBJECT + "{{ '\n' }}</tool_call>" + _END,
        ),
        f"\n<tool_call>\n{_FIRST}\n</tool_call>\n<tool_call>\n{_SECOND}\n</tool_call>",
        f"<tool_call>\n{_FIRST}\n</tool_call>",
    ),
    "granite": Sample(
        _template("<|start_of_role|>", "<|tool_call|>" + _LISTED),
        f"<|tool_call|>{_LIST}",
        f"<|tool_call|>[{_FIRST}]",
    ),
    "phi4": Sample(
        _template("<|tool|><|/tool|>", "<|tool_call|>" + _LISTED + "<|/tool_call|>"),
        f"<|tool_call|>{_LIST}<|/tool_call|>",
        f"<|tool_call|>[{_FIRST}]<|/tool_call|>",
    ),
    "phi4_functools": Sample(
        _template('Calls: functools[{"name": [function name], "arguments": [arguments]}]\n', "functools" + _LISTED),
        f"functools{_LIST}",
        f"functools[{_FIRST}]",
    ),
}
