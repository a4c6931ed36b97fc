"""A headless Chromium that a test drives over the DevTools protocol, and what it saw on the way."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from support.waiting import PATIENCE, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip


class Tab:
    """One tab with storage of its own.

    faults: what was wrong: exceptions, errors of the console, violations of the security policy. The status of answers
    is none. requests: the URLs that the tab asked for. answers: by a part of a URL, the body and media type with which
    the browser answers in the server's place.
    """

    def __init__(self, connection: ClientConnection, session: str):
        self._connection = connection
        self._session = session
        self._number = 0
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[str, str]] = {}
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method of the protocol, and notes the events that come before its answer."""
        number = self._send(method, params)
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE))
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])
            if message.get("sessionId") == self._session:
                self._note(message.get("method", ""), message.get("params", {}))

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        order = {"id": self._number, "method": method, "params": params, "sessionId": self._session}
        self._connection.send(json.dumps(order))
        return self._number

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(json.dumps(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            if params["entry"]["source"] != "network":
                self.faults.append(json.dumps(params["entry"]))
        elif event == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.faults.append(json.dumps(params["issue"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            if "postData" in params["request"]:
                self.sent.append(json.loads(params["request"]["postData"]))
        elif event == "Fetch.requestPaused":
            self._answer(params)

    def _answer(self, params: dict[str, Any]) -> None:
        url, identity = params["request"]["url"], params["requestId"]
        for part, (body, kind) in self.answers.items():
            if part in url:
                content = base64.b64encode(body.encode()).decode()
                headers = [{"name": "Content-Type", "value": kind}]
                fulfilled = {"requestId": identity, "responseCode": 200, "responseHeaders": headers, "body": content}
                self._send("Fetch.fulfillRequest", fulfilled)
                return
        self._send("Fetch.continueRequest", {"requestId": identity})

    def answer(self, part: str, body: str, kind: str = "text/event-stream") -> None:
        """Requests with `part` in their URL get this answer from now on, and do not reach the server."""
        self.answers[part] = (body, kind)
        self.call("Fetch.enable", patterns=[{"urlPattern": "*"}])

    def open(self, url: str) -> None:
        """Opens a page, and waits until it is loaded. The page before it is there for a moment after the browser has
        said that it navigates."""
        loader = self.call("Page.navigate", url=url)["loaderId"]
        wait_until(
            lambda: self.call("Page.getFrameTree")["frameTree"]["frame"]["loaderId"] == loader, f"{url} is there"
        )
        self.wait("document.readyState === 'complete'")

    def get(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression is true."""
        return wait_until(lambda: self.get(expression), expression)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses and releases a key. modifiers: 2 is Ctrl, 8 is Shift."""
        codes = {"Enter": 13, "Escape": 27, "k": 75, "Tab": 9}
        text = {"text": "\r"} if key == "Enter" else {}
        more = {"key": key, "code": "KeyK" if key == "k" else key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **more, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **more)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Clicks as a mouse does: what lies above the middle of the element gets it."""
        found = json.dumps(selector)
        self.get(f"document.querySelector({found}).scrollIntoView({{block: 'center'}})")
        place = self.get(
            f"(() => {{ const r = document.querySelector({found}).getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def look(self, width: int, height: int, **features: str) -> None:
        """Sets the size of the window, and media features such as prefers_color_scheme="dark"."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=listed)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    """A running Chromium."""

    def __init__(self, connection: ClientConnection):
        self._connection = connection
        self._number = 0

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number -= 1  # Numbers of tabs are positive.
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE))
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])

    @contextmanager
    def tab(self) -> Iterator[Tab]:
        """Opens a tab, and closes it with its storage. Only one tab is driven at a time."""
        context = self._call("Target.createBrowserContext")["browserContextId"]
        target = self._call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Tab(self._connection, session)
        finally:
            self._call("Target.disposeBrowserContext", browserContextId=context)


@contextmanager
def start_browser(folder: Path) -> Iterator[Browser]:
    """Starts Chromium with an empty profile in `folder`."""
    profile = folder / "profile"
    said = folder / "browser.log"
    with said.open("w") as log:
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port_file = profile / "DevToolsActivePort"

        def where() -> list[str]:
            assert process.poll() is None, said.read_text(encoding="utf-8")
            lines = port_file.read_text(encoding="utf-8").splitlines() if port_file.exists() else []
            return lines if len(lines) > 1 else []

        port, path = wait_until(where, "Chromium's port")
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait()
