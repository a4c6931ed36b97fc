"""The page at /: its files and headers, and what happens on it in a headless Chromium beside a real server.

The file has more than 500 lines so that all of its tests share one server and one browser.
"""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.browser import CHROMIUM, Browser, Tab, start_browser
from support.chat_samples import SAMPLES
from support.places import ROOT
from support.served import KEY, Served, serve
from support.toy_engine import ENDLESS
from support.waiting import wait_until
from tensorwright import LLM
from tensorwright.runtime.serving.server import page
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

NARROW, WIDE = (320, 640), (1280, 800)
TURNS = "document.querySelectorAll('.turn')"
IDLE = "document.getElementById('stop').disabled"


@pytest.fixture(scope="module")
def page_served(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Of the toy engine with a chat template, a key, and a bound of bodies by which long ones are refused."""
    folder = tmp_path_factory.mktemp("page")
    template = folder / "template.jinja"
    template.write_text(SAMPLES["hermes"].template)
    options = ("--chat-template", str(template), "--api-key", KEY, "--protect-metrics")
    with serve(toy_engine, folder, *options) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def tab(browser: Browser, page_served: Served) -> Iterator[Tab]:
    """A tab on the page, with the key. When the test ends, nothing was wrong and no other host was asked."""
    with browser.tab() as opened:
        opened.look(*WIDE)
        opened.open(page_served.url)
        give_key(opened)
        yield opened
        check_faults(opened, page_served)


def give_key(tab: Tab, key: str = KEY) -> None:
    tab.wait("document.getElementById('key-dialog').open")
    tab.get("document.getElementById('key').focus()")
    tab.write(key)
    tab.press("Enter")
    if key == KEY:
        tab.wait("document.getElementById('model').value === 'pico'")


def check_faults(tab: Tab, server: Served) -> None:
    tab.get("1")  # The events until now have come before this answer.
    assert tab.faults == []
    assert {urlsplit(url).netloc for url in tab.requests if not url.startswith("blob:")} == {server.url.split("//")[1]}


def set_value(tab: Tab, name: str, value: Any) -> None:
    """Sets a field, and tells the page as if the user had."""
    tab.get(
        f"(() => {{ const field = document.getElementById({json.dumps(name)}); field.value = {json.dumps(str(value))};"
        "field.dispatchEvent(new Event('change')); })()"
    )


def ask(tab: Tab, question: str) -> None:
    tab.get("document.getElementById('question').focus()")
    tab.write(question)
    tab.press("Enter")


def said(*deltas: dict[str, Any], finish: str = "stop") -> str:
    """An answer of the server as a stream of events."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events = [json.dumps({"choices": [choice]}) for choice in choices]
    events.append(json.dumps({"choices": [], "usage": {"completion_tokens": len(deltas)}}))
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


# Without a browser.


@pytest.mark.parametrize("path", page.page_paths())
def test_files_need_no_key_and_are_kept_by_browsers(page_served: Served, path: str) -> None:
    answer = page_served.client.get(path)
    assert answer.status_code == 200
    suffix = ".html" if path == "/" else Path(path).suffix
    assert answer.headers["content-type"] == page.MEDIA_TYPES[suffix]
    assert answer.headers["content-security-policy"] == page.CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    again = page_served.client.get(path, headers={"if-none-match": f'"other", W/{answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert page_served.client.get(path, headers={"if-none-match": '"other"'}).content == answer.content
    assert page_served.client.head(path).headers["content-length"] == str(len(answer.content))


def test_the_policy_lets_nothing_in() -> None:
    assert "unsafe" not in page.CONTENT_SECURITY_POLICY
    assert page.CONTENT_SECURITY_POLICY.startswith("default-src 'none'")


@pytest.mark.parametrize("path", ["/page/", "/page/page.py", "/page/..%2Fpage.py", "/page/index.html", "/v1/models"])
def test_everything_else_needs_the_key(page_served: Served, path: str) -> None:
    """With it, there is no other file."""
    assert page_served.client.get(path).status_code == 401
    status = page_served.client.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code
    assert status == (200 if path == "/v1/models" else 404)


def test_a_body_that_comes_with_a_request_for_the_page_is_not_read(page_served: Served) -> None:
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
    with page_served.send_raw(head) as raw:
        answer = raw.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()


def test_the_host_guard_is_before_the_page(page_served: Served) -> None:
    assert page_served.client.get("/", headers={"host": "elsewhere.example"}).status_code == 421


@pytest.mark.parametrize("on", [True, False])
def test_the_page_can_be_left_out(toy_llm: LLM, on: bool) -> None:
    """The command's own switch is one of the declared options, which tests/test_options.py holds."""
    app = create_app({"pico": toy_llm}, ServerOptions(page=on))

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [(await client.get(path)).status_code for path in ("/", "/page/main.js", "/v1/models")]

    assert asyncio.run(statuses()) == ([200, 200, 200] if on else [404, 404, 200])
    app.state.pools.close()


def test_the_files_name_no_other_place_and_run_no_text() -> None:
    for name, file in page.page_files().items():
        text = file.content.decode()
        places = set(re.findall(r"https?://[\w./-]+", text))
        assert places <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text), name
        assert name == page.INDEX or not name.endswith(".js") or text.startswith("// ")


def test_a_wheel_holds_the_files() -> None:
    """The room is a package of the wheel, and no pattern takes the page's files out."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]
    assert build["wheel"]["packages"]["tensorwright/runtime"] == "runtime"
    for name in page.page_files():
        path = f"tensorwright/runtime/serving/server/web/{name}"
        assert not [pattern for pattern in build["wheel"]["exclude"] if fnmatch(path, pattern)]


# In a browser.


@in_browser
def test_a_key_is_asked_for_and_kept_in_this_tab(browser: Browser, page_served: Served) -> None:
    with browser.tab() as tab:
        tab.look(*WIDE)
        tab.open(page_served.url)
        give_key(tab, "wrong")
        tab.wait("!document.getElementById('key-fault').hidden && document.getElementById('key-dialog').open")
        assert not [url for url in tab.requests if url.endswith("/metrics")]  # There is no model yet.
        give_key(tab)
        assert tab.get("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        tab.open(page_served.url)
        tab.wait("document.getElementById('model').value === 'pico'")
        tab.wait("document.querySelector('#figures .value').textContent !== '–'")  # /metrics gets the key too.
        tab.click("#forget-key")
        tab.wait("document.getElementById('key-dialog').open")
        assert tab.get("sessionStorage.length") == 0
        tab.press("Escape")
        tab.wait("document.getElementById('notice').textContent.includes('needs a key')")
        check_faults(tab, page_served)


@in_browser
def test_a_conversation(tab: Tab) -> None:
    """Send, an answer that is announced once, regenerate, edit, clear and its undoing."""
    set_value(tab, "max_tokens", 8)
    set_value(tab, "temperature", 0)
    set_value(tab, "system", "be brief")
    ask(tab, "one")
    tab.wait(f"{TURNS}.length === 2 && {IDLE}")
    assert tab.sent[-1] == {
        "model": "pico", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
        "max_completion_tokens": 8,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}],
    }  # fmt: skip
    text = f"{TURNS}[1].querySelector('.text').textContent"
    first = tab.get(text)
    assert tab.get("document.getElementById('said').textContent").startswith("The answer: ")
    assert "8 tokens" in tab.get(f"{TURNS}[1].textContent")
    tab.click("#regenerate")
    tab.wait(f"{TURNS}.length === 2 && {IDLE}")
    assert tab.get(text) == first
    assert tab.sent[-1]["messages"] == tab.sent[-2]["messages"]
    tab.get("[...document.querySelectorAll('.turn button')].find((b) => b.textContent === 'Edit').click()")
    assert tab.get("document.getElementById('question').value") == "one"
    ask(tab, "two")
    tab.wait(f"{TURNS}.length === 2 && {IDLE}")
    assert tab.sent[-1]["messages"][1:] == [{"role": "user", "content": "onetwo"}]
    tab.click("#clear")
    assert tab.get(f"{TURNS}.length") == 0
    tab.click("#clear")
    assert tab.get(f"{TURNS}.length") == 2


@in_browser
def test_an_answer_streams_and_is_stopped_by_a_key(tab: Tab, page_served: Served) -> None:
    set_value(tab, "max_tokens", ENDLESS)
    set_value(tab, "other", '{"ignore_eos": true}')
    ask(tab, "go on")
    tab.wait(f"{TURNS}.length === 2 && {TURNS}[1].querySelector('.text').textContent.length > 20")
    assert not tab.get(IDLE)
    tab.wait("document.querySelectorAll('#figures .value')[3].textContent === '1'")  # the batch
    tab.wait("document.querySelectorAll('#steps rect').length > 0")
    tab.wait("Number(document.querySelector('#figures .value').textContent) > 0")  # tokens/s
    tab.press("Escape")
    tab.wait(IDLE)
    assert "stopped by you" in tab.get(f"{TURNS}[1].textContent")
    assert tab.get("document.getElementById('said').textContent") == "The answer was stopped."
    tab.wait("document.querySelectorAll('#figures .value')[3].textContent === '0'")
    tab.wait("document.querySelectorAll('#figures .value')[1].textContent !== '–'")  # TTFT, of a request that ended


@in_browser
def test_thinking_and_tools(tab: Tab) -> None:
    """Both as OpenAI's API streams them. The server's part is played by the browser."""
    thinking = [{"reasoning_content": "Let me ", "reasoning": "Let me "}, {"reasoning_content": "see."}]
    function = {"name": "weather", "arguments": ""}
    calls = [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}]
    for piece in ('{"city": ', '"Oslo"}'):
        calls.append({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    tab.answer("v1/chat/completions", said(*thinking, *calls, finish="tool_calls"))
    set_value(tab, "tools", '[{"type": "function", "function": {"name": "weather"}}]')
    ask(tab, "How warm is it?")
    tab.wait("document.querySelector('.results') !== null")
    assert tab.sent[-1]["tools"] == [{"type": "function", "function": {"name": "weather"}}]
    assert tab.get("document.querySelector('.assistant .thinking').open") is False
    assert tab.get("document.querySelector('.assistant .thinking').textContent") == "ThinkingLet me see."
    assert tab.get("document.querySelector('.call').textContent") == 'Calls weather{"city": "Oslo"}'
    tab.answer("v1/chat/completions", said({"content": "It is cold."}))
    tab.get("document.querySelector('.results textarea').focus()")
    tab.write("-3")
    tab.click(".results button")
    tab.wait(f"{TURNS}.length === 4 && {IDLE}")
    assert tab.get("document.activeElement.id") == "scroll"  # The button that had the focus is gone.
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    assert tab.sent[-1]["messages"][1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "-3"},
    ]
    assert tab.get(f"{TURNS}[3].querySelector('.text').textContent") == "It is cold."


@in_browser
def test_a_tool_is_called_and_its_result_goes_back(tab: Tab) -> None:
    """With the real server, whose grammar makes a call of anything."""
    unit = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    unit["additionalProperties"] = False
    tools = [{"type": "function", "function": {"name": "weather", "parameters": unit}}]
    set_value(tab, "tools", json.dumps(tools))
    set_value(tab, "tool_choice", "required")
    set_value(tab, "other", '{"parallel_tool_calls": false, "seed": 7}')
    set_value(tab, "max_tokens", 200)
    ask(tab, "How warm is it?")
    tab.wait("document.querySelector('.results') !== null")
    name, arguments = tab.get("[...document.querySelector('.call').children].map((part) => part.textContent)")
    assert name == "Calls weather"
    assert json.loads(arguments) in ({"unit": "C"}, {"unit": "F"})
    set_value(tab, "tool_choice", "none")
    set_value(tab, "max_tokens", 4)
    tab.click(".results button")
    tab.wait(f"{TURNS}.length === 4 && {IDLE}")
    roles = [message["role"] for message in tab.sent[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert tab.sent[-1]["tool_choice"] == "none"
    assert "4 tokens" in tab.get(f"{TURNS}[3].textContent")


WRITTEN = """# Title

One **bold** and `code` <img src=x onerror=alert(1)> [a](javascript:alert(1))

- first
- second
  - inner

```html
<script>alert(1)</script>
```

1. one

2. two"""


@in_browser
def test_what_a_model_writes_is_shown_and_runs_nothing(tab: Tab) -> None:
    """In pieces of three characters, markdown has the elements that it has at once."""
    pieces = [{"content": WRITTEN[start : start + 3]} for start in range(0, len(WRITTEN), 3)]
    tab.answer("v1/chat/completions", said(*pieces))
    ask(tab, "<b>hi</b>")
    tab.wait(f"{TURNS}.length === 2 && {IDLE}")
    assert tab.get(f"{TURNS}[0].querySelector('.text').textContent") == "<b>hi</b>"
    shape = "[...document.querySelectorAll('.assistant .text *')].map((e) => e.tagName.toLowerCase()).join(' ')"
    found = tab.get(shape)
    assert found == "h3 p strong code ul li li ul li div div span button pre code ol li li"
    assert tab.get("document.querySelector('.code-block code').textContent") == "<script>alert(1)</script>"
    assert "<img src=x onerror=alert(1)> [a](javascript:alert(1))" in tab.get(f"{TURNS}[1].textContent")
    module = "import('/page/markdown.js')"
    assert tab.get(
        f"{module}.then(({{ GrowingText }}) => {{ const box = document.createElement('div');"
        f"const text = new GrowingText(box); const whole = {json.dumps(WRITTEN)};"
        "for (let end = 1; end <= whole.length; end++) text.show(whole.slice(0, end));"
        "const once = document.createElement('div'); new GrowingText(once).show(whole);"
        "return box.isEqualNode(once); })"
    )


@in_browser
def test_the_browser_keeps_the_policy(tab: Tab) -> None:
    """Other hosts and HTML of a text are refused, and the tab notes each violation: so no fault means none."""
    tab.get("fetch('http://elsewhere.example/').catch(() => {})")
    wait_until(lambda: tab.get("1") and [fault for fault in tab.faults if "connect-src" in fault])
    refused = "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
    assert tab.get(refused) == "TypeError"
    wait_until(lambda: tab.get("1") and [fault for fault in tab.faults if "Trusted" in fault])
    tab.get("document.body.append(Object.assign(new Image(), { src: 'http://elsewhere.example/x.png' }))")
    wait_until(lambda: tab.get("1") and [fault for fault in tab.faults if "img-src" in fault])
    tab.faults.clear()
    tab.requests[:] = [url for url in tab.requests if "elsewhere.example" not in url]


CLIPBOARD = """Object.defineProperty(navigator, "clipboard", {
  configurable: true, value: { writeText: async (text) => { window.copied = text; } } })"""
NO_CLIPBOARD = """Object.defineProperty(navigator, "clipboard", { configurable: true, value: undefined });
  document.execCommand = () => { window.copied = document.activeElement.value; return true; }"""


@in_browser
def test_copy_and_export_and_import(tab: Tab, tmp_path: Path) -> None:
    """Copying is tried in both ways; what is exported comes back as it was, and a wrong file changes nothing."""
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
    messages.append({"role": "assistant", "content": "two"})
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"messages": messages}))
    bad.write_text(json.dumps({"messages": [{"role": "robot", "content": "x"}]}))

    def choose(file: Path) -> None:
        node = tab.call("DOM.getDocument")["root"]["nodeId"]
        field = tab.call("DOM.querySelector", nodeId=node, selector="#import-file")["nodeId"]
        tab.call("DOM.setFileInputFiles", nodeId=field, files=[str(file)])

    choose(good)
    tab.wait(f"{TURNS}.length === 2")
    choose(bad)
    tab.wait("document.getElementById('notice').textContent.includes('message 1 has an unknown role')")
    assert tab.get(f"{TURNS}.length") == 2
    tab.get("URL.createObjectURL = (blob) => { window.exported = blob; return '#'; }")
    tab.click("#export")
    assert json.loads(tab.get("window.exported.text()")) == {"model": "pico", "messages": messages}
    for way in CLIPBOARD, NO_CLIPBOARD:
        tab.get(f"(() => {{ window.copied = null; {way}; }})()")
        tab.click(".turn.assistant .row button")
        tab.wait("window.copied === 'two'")


@in_browser
def test_completions_without_a_chat_template(tab: Tab, page_served: Served) -> None:
    """An error that has a way out offers it."""
    error = {"error": {"message": "model 'pico' has no chat template: use /v1/completions", "code": None}}
    tab.answer("v1/chat/completions", f"data: {json.dumps(error)}\n\n")
    set_value(tab, "max_tokens", 4)
    ask(tab, "import os")
    tab.wait("document.querySelector('#notice button') !== null")
    tab.click("#notice button")
    tab.wait(f"{TURNS}.length === 2 && {IDLE}")
    assert {"prompt": "import os", "max_tokens": 4}.items() <= tab.sent[-1].items()
    assert "4 tokens" in tab.get(f"{TURNS}[1].textContent")


@in_browser
def test_wrong_settings_send_nothing(tab: Tab) -> None:
    for name, value, words in (("tools", "{}", "must be a list"), ("other", "[", "JSON"), ("top_p", 2, "Top p")):
        set_value(tab, name, value)
        sent = len(tab.sent)
        ask(tab, "one")
        tab.wait(f"document.getElementById('notice').textContent.includes({json.dumps(words)})")
        assert len(tab.sent) == sent
        set_value(tab, name, "")


@in_browser
def test_keys_and_focus(tab: Tab) -> None:
    tab.get("document.getElementById('model').focus()")
    tab.press("k", modifiers=2)
    assert tab.get("document.activeElement.id") == "question"
    tab.write("a")
    tab.press("Enter", modifiers=8)
    tab.write("b")
    assert tab.get("document.getElementById('question').value") == "a\nb"
    unnamed = (
        "[...document.querySelectorAll('button, input, select, textarea')].filter((e) => !(e.labels?.length"
        " || e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.id)"
    )
    assert tab.get(unnamed) == []
    seen = set()
    for _ in range(40):
        tab.press("Tab")
        seen.add(tab.get("document.activeElement.id || document.activeElement.tagName"))
    assert {"model", "mode", "theme", "scroll", "question", "send", "import", "temperature", "system"} <= seen


CONTRAST = """(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => numbers(color).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    throw new Error("the body has a background");
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility({ visibilityProperty: true }) || element.disabled) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([element.tagName, element.className, element.textContent.slice(0, 20), ratio]);
  }
  return low;
})()"""


@in_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_light_dark_and_narrow(tab: Tab, size: tuple[int, int], theme: str) -> None:
    """By the system's wish and by the switch; every text has AA's contrast, and nothing is wider than the screen."""
    tab.look(*size, prefers_color_scheme=theme)
    tab.answer("v1/chat/completions", said({"reasoning": "hm"}, {"content": WRITTEN + "\n\n" + "long" * 100}))
    ask(tab, "one")
    tab.wait(f"{TURNS}.length === 2 && {IDLE}")
    paper = "getComputedStyle(document.body).backgroundColor"
    papers = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    assert tab.get(paper) == papers[theme]
    assert tab.get(CONTRAST) == []
    widths = "[document.documentElement, document.getElementById('scroll')].map((element) => element.scrollWidth)"
    assert max(tab.get(widths)) <= size[0]
    if size == NARROW:
        assert not tab.get("document.getElementById('panel').checkVisibility()")
        tab.click("#panel-switch")
        assert tab.get("document.getElementById('panel-switch').getAttribute('aria-expanded')") == "true"
    assert tab.get("document.getElementById('panel').checkVisibility()")
    assert tab.get(CONTRAST) == []
    assert not tab.get("document.getElementById('panel').scrollWidth > innerWidth")
    other = "light" if theme == "dark" else "dark"
    set_value(tab, "theme", other)
    assert tab.get(paper) == papers[other]
    assert tab.get("localStorage.getItem('tensorwright-theme')") == other


@in_browser
def test_a_hidden_tab_asks_for_no_figures(tab: Tab) -> None:
    tab.wait("document.getElementById('live-state').textContent === ''")
    tab.get(
        "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    tab.wait("document.getElementById('live-state').textContent.startsWith('Paused')")
    counts = "const real = fetch; window.fetch = (...given) => { window.asked++; return real(...given); };"
    tab.get(f"(() => {{ window.asked = 0; {counts} }})()")
    tab.get("new Promise((resolve) => setTimeout(resolve, 1500))")
    assert tab.get("window.asked") == 0
    tab.get("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")
    tab.wait("window.asked > 0")


@in_browser
def test_figures_are_computed_from_two_readings(tab: Tab) -> None:
    """Rates, means and percentiles from the text of /metrics."""

    def text(count: int) -> str:
        lines = [f'tensorwright_{name}{{model="a"}} {value}' for name, value in (
            ("engine_up", 1), ("steps_total", 10 * count), ("generated_tokens_total", 100 * count),
            ("prefix_lookup_tokens_total", 10 * count), ("prefix_hit_tokens_total", 5 * count),
            ("time_to_first_token_seconds_sum", 0.2 * count), ("time_to_first_token_seconds_count", count),
        )]  # fmt: skip
        lines += ['tensorwright_steps_total{model="b\\"{}"} 7e3', "# HELP x", "other 3"]
        for le, value in (("0.1", 0), ("0.3", count), ("+Inf", count)):
            lines.append(f'tensorwright_time_to_first_token_seconds_bucket{{le="{le}",model="a"}} {value}')
        return "\n".join(lines)

    found = tab.get(
        "import('/page/metrics.js').then((m) => {"
        "const read = (text, time) => m.readModel(m.parseMetrics(text), 'a', time);"
        f"const [one, two] = [read({json.dumps(text(1))}, 1), read({json.dumps(text(3))}, 3)];"
        f"const other = m.readModel(m.parseMetrics({json.dumps(text(1))}), 'b\"{{}}', 1).steps;"
        "return [m.between(one, two), m.share(one, two, 'found', 'lookedUp'), m.share(one, two, 'accepted', 'drafted'),"
        "m.observed(one.ttft, two.ttft), m.observed(two.ttft, two.ttft), m.restarted(two, one), other]; })"
    )
    second = {"time": 3, "seconds": 2, "steps": 20, "prompt": 0, "generated": 200, "rate": 100, "stepSeconds": 0.1}
    assert found[0] == second
    assert found[1:3] == [0.5, None]
    assert found[3] == {"mean": pytest.approx(0.2), "p95": 0.3, "count": 2}
    assert found[4:] == [None, True, 7000]
