"""Keys, bodies, the queue, ids, logs, CORS: what stands between the network and the engines."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.served import KEY, MAX_BODY, OTHER_KEY, PAGE, PER_ADDRESS, Served, completion, read_events
from support.toy_engine import ENDLESS
from support.waiting import PATIENCE, wait_until
from tensorwright.runtime.serving.server.framing import MAX_HEADERS

JSON = {"content-type": "application/json"}
POST = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
PROBE = "GET /health HTTP/1.1\r\nhost: localhost\r\n"


def error_of(answer: httpx.Response) -> dict[str, object]:
    """The error, which must be in OpenAI's form."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_every_key_opens(served: Served, key: str, scheme: str) -> None:
    answer = served.client.get("/v1/models", headers={"authorization": f"{scheme} {key}"})
    assert answer.status_code == 200
    assert [model["id"] for model in answer.json()["data"]] == ["pico"]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer \xe9",
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/nowhere")])
def test_without_a_key_nothing_opens(served: Served, header: str, method: str, path: str) -> None:
    answer = served.client.request(method, path, headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert error_of(answer)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_watchers_need_no_key(served: Served, path: str) -> None:
    with httpx.Client(base_url=served.url, timeout=PATIENCE) as stranger:
        assert stranger.get(path).status_code == 200


def test_a_body_may_be_as_large_as_allowed(served: Served) -> None:
    body = b'{"model": "pico", "prompt": [1], "max_tokens": 1}'
    answer = served.client.post("/v1/completions", content=body.ljust(MAX_BODY), headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize("size", [MAX_BODY + 1, 3 << 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_larger_bodies_are_refused(served: Served, size: int, chunked: bool) -> None:
    parts = iter([b" " * 10_000] * (size // 10_000) + [b" " * (size % 10_000)])
    answer = served.client.post("/v1/completions", content=parts if chunked else b" " * size, headers=JSON)
    assert answer.status_code == 413
    assert str(MAX_BODY) in str(error_of(answer)["message"])


def test_a_client_that_asks_first_is_refused_at_once(served: Served) -> None:
    raw = served.send_raw(f"{POST}content-length: 99999999\r\nexpect: 100-continue\r\n\r\n".encode())
    with raw:
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")


def read_all(raw: socket.socket) -> bytes:
    """Until the server ends its side."""
    taken = bytearray()
    while part := raw.recv(65536):
        taken += part
    return bytes(taken)


def told_by(server: Served, sent: bytes, more: bytes = b"") -> bytes:
    """What the server answers to a request that never comes to its end. more: what is sent now and then after it.
    Where this process came too late even with the head, the connection ends without a word, and another one is tried.
    """

    def told() -> bytes:
        with contextlib.suppress(ConnectionError), server.send_raw(sent) as raw:
            while more and not select.select([raw], [], [], 0.01)[0]:
                raw.sendall(more)
            return read_all(raw)
        return b""

    return wait_until(told, "an answer")


def test_a_body_that_does_not_come_is_not_waited_for(hasty_served: Served) -> None:
    assert told_by(hasty_served, f"{POST}content-length: 100\r\n\r\n{{".encode()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("begin", [b"", b"GET /health HT", f"{PROBE}x".encode()])
def test_headers_that_do_not_come_are_not_waited_for(hasty_served: Served, begin: bytes) -> None:
    with hasty_served.send_raw(b"") as raw, contextlib.suppress(ConnectionError):  # it may be ended before this comes
        raw.sendall(begin)
        read_all(raw)


@pytest.mark.parametrize("part", [b"GET /hea", b"\r\n"])
def test_nor_are_those_of_a_second_request(hasty_served: Served, part: bytes) -> None:
    def answered() -> socket.socket | None:
        """A connection with the answer to a first request; None if that came too late."""
        raw, answer = hasty_served.send_raw(b""), b""
        with contextlib.suppress(ConnectionError):
            raw.sendall(f"{PROBE}\r\n".encode())
            while piece := raw.recv(4096):
                answer += piece
                if answer.endswith(b"}"):  # head and body may come one after the other
                    assert answer.startswith(b"HTTP/1.1 200 ")
                    return raw
        raw.close()
        return None

    with wait_until(answered, "a first answer") as raw:
        taken = b""
        with contextlib.suppress(ConnectionError):  # the server may end the connection while a byte is on its way
            raw.sendall(part)
            while not select.select([raw], [], [], 0.05)[0]:
                raw.sendall(part[-1:])  # a little now and then is not enough
            taken = read_all(raw)
        assert taken == b""


def test_a_body_that_trickles_is_not_waited_for(hasty_served: Served) -> None:
    """However long it goes on: what counts is the whole."""
    head = f"{POST}content-length: {MAX_BODY}\r\n\r\n".encode()
    assert told_by(hasty_served, head, more=b" ").startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
@pytest.mark.parametrize("body", ["transfer-encoding: chunked\r\n\r\n1\r\nx\r\n", "content-length: 99999\r\n\r\nx"])
def test_the_body_of_a_probe_is_not_waited_for(served: Served, path: str, body: str) -> None:
    """It is answered at once, and the connection ends with the answer."""
    with served.send_raw(f"{PROBE.replace('/health', path)}{body}".encode()) as raw:
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answer


def test_nor_is_that_of_a_stranger(served: Served) -> None:
    with served.send_raw(f"{POST.replace(KEY, 'wrong')}content-length: 9999\r\n\r\n{{".encode()) as raw:
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("chunk", ["1\r\nx\r\n", "20\r\n" + 32 * "x" + "\r\n"])
def test_a_body_of_tiny_chunks_is_refused(served: Served, chunk: str) -> None:
    """Whoever takes it would work for each of them; see framing.py."""
    with served.send_raw(f"{POST}transfer-encoding: chunked\r\n\r\n{1001 * chunk}".encode()) as raw:
        head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "chunks" in error_of(httpx.Response(400, content=body))["message"]
    assert served.client.get("/health").status_code == 200


MALFORMED = {
    "two framings": "content-length: 44\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two framings, the other way": "transfer-encoding: chunked\r\ncontent-length: 44\r\n\r\n0\r\n\r\n",
    "two lengths": "content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a list of lengths": "content-length: 2, 2\r\n\r\n{}",
    "a signed length": "content-length: +2\r\n\r\n{}",
    "a hexadecimal length": "content-length: 0x2\r\n\r\n{}",
    "an unknown coding": "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a second coding": "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a negative chunk": "transfer-encoding: chunked\r\n\r\n-1\r\nx\r\n",
    "a huge chunk": "transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n",
    "a long extension": f"transfer-encoding: chunked\r\n\r\n1;a={'x' * 40_000}\r\n",
    "a long trailer": f"transfer-encoding: chunked\r\n\r\n0\r\na: {'x' * 40_000}\r\n",
    "a second host": "host: other\r\n\r\n",
    "a folded header": "a: b\r\n c\r\n\r\n",
    "a space before the colon": "a : b\r\n\r\n",
    "bare line ends": "a: b\n\n",
    "a NUL": "a: b\0c\r\n\r\n",
}


@pytest.mark.parametrize("rest", MALFORMED.values(), ids=MALFORMED)
def test_what_can_be_read_in_two_ways_is_refused(served: Served, rest: str) -> None:
    """By whoever stands in front as one request, and by us as two. The connection ends, so nothing follows."""
    with served.send_raw(f"{POST}{rest}{PROBE}\r\n".encode()) as raw:
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 4") == 1
    assert b"\r\nconnection: close\r\n" in answer


def test_a_head_has_a_limit_and_a_host(served: Served) -> None:
    with served.send_raw(f"{PROBE}a: {'x' * (80 << 10)}\r\n\r\n".encode()) as raw:
        assert read_all(raw).startswith(b"HTTP/1.1 431 ")
    for more, status in ((MAX_HEADERS - 1, b"200"), (MAX_HEADERS, b"431")):  # beside the host
        with served.send_raw((PROBE + "a:\r\n" * (more - 1) + "connection: close\r\n\r\n").encode()) as raw:
            assert read_all(raw).startswith(b"HTTP/1.1 " + status)
    with served.send_raw(b"GET /health HTTP/1.1\r\n\r\n") as raw:
        assert read_all(raw).startswith(b"HTTP/1.1 400 ")
    with served.send_raw(b"GET /health HTTP/1.0\r\n\r\n") as raw:
        assert read_all(raw).startswith(b"HTTP/1.1 200 ")


def test_a_trailer_is_no_header(served: Served) -> None:
    """It comes after the guards have looked."""
    rest = f"transfer-encoding: chunked\r\n\r\n0\r\nauthorization: Bearer {KEY}\r\n\r\n"
    with served.send_raw(f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{rest}".encode()) as raw:
        assert read_all(raw).startswith(b"HTTP/1.1 401 ")


def test_requests_that_come_at_once_are_answered_in_their_order(served: Served) -> None:
    paths = ["/health", "/ready", "/nowhere"] * 70
    sent = "".join(POST.replace("POST /v1/completions", f"GET {path}") + "\r\n" for path in paths)
    last = POST.replace("POST /v1/completions", "GET /v1/models") + "connection: close\r\n\r\n"
    with served.send_raw((sent + last).encode()) as raw:
        answers = read_all(raw).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [200, 200, 404] * 70 + [200]
    assert [b'"status":"ok"' in answer for answer in answers] == [path == "/health" for path in paths] + [False]


def test_an_upgrade_is_not_done(served: Served) -> None:
    with served.send_raw(f"{PROBE}connection: upgrade\r\nupgrade: h2c\r\n\r\nPRI * HTTP/2.0".encode()) as raw:
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_a_page_whose_name_points_here_is_not_answered(served: Served, open_served: Served, path: str) -> None:
    for server, host, status in (
        (served, "evil.example", 421),
        (served, "localhost.evil.example:80", 421),
        (served, "localhost:1", 200),
        (open_served, "evil.example", 421),
        (open_served, "mine.example:80", 200),
        (open_served, "127.0.0.1", 200),
    ):
        answer = server.client.get(path, headers={"host": host})
        assert answer.status_code == status, host
        if status == 421:
            assert error_of(answer)["code"] == "host_not_allowed"


def test_metrics_show_what_a_key_has_under_way(endless_served: Served) -> None:
    endless_served.wait_until_idle()
    body = completion(max_tokens=ENDLESS // 2, n=2, stream=True)
    with endless_served.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # let go of, it would close the connection
        next(lines)
        assert endless_served.metric("tensorwright_http_key_requests", key="1") == 2
    endless_served.wait_until_idle()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": ',
        b"\xff\xfe{}",
        b'{"prompt": "\xc3"}',
        b'{"prompt": "\\ud800"',
        b"[" * 10_000,
        b"null",
        b"7",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_what_is_not_json_is_a_bad_request(served: Served, body: bytes, path: str) -> None:
    answer = served.client.post(path, content=body, headers=JSON)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain; charset=utf-8"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_body_that_does_not_say_that_it_is_json_is_told_the_header(
    served: Served, kind: str | None, path: str
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = served.client.post(path, content=json.dumps(completion()).encode(), headers=headers)
    assert answer.status_code == 415
    message = str(error_of(answer)["message"])
    assert '"Content-Type: application/json"' in message
    assert f"got {kind or 'none'}" in message


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/pico", "/openapi.json", "/nowhere", "/tokenize"]
)
def test_head_is_get_without_its_body(served: Served, path: str) -> None:
    """On paths that take POST alone, both are refused alike."""
    whole, head = served.client.get(path), served.client.head(path, headers={"x-request-id": f"head{path}"})
    assert (head.status_code, head.content) == (whole.status_code, b"")
    changing = {"date", "x-request-id", *(["content-length"] if path == "/metrics" else [])}
    assert dict(head.headers).keys() == dict(whole.headers).keys()
    for name in head.headers.keys() - changing:
        assert head.headers[name] == whole.headers[name]
    assert served.log_line(f"head{path}")["method"] == "HEAD"
    route = {"/nowhere": "other", "/openapi.json": "other", "/v1/models/pico": "/v1/models/{model:path}"}.get(
        path, path
    )
    wait_until(lambda: served.metric("tensorwright_http_requests_total", method="HEAD", path=route) >= 1)


def test_errors_have_one_form(served: Served) -> None:
    unknown = served.client.post("/v1/completions", json=completion() | {"model": "nobody"})
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")
    nowhere = served.client.get("/nowhere")
    assert (nowhere.status_code, error_of(nowhere)["code"]) == (404, "not_found")
    method = served.client.delete("/v1/models")
    assert (method.status_code, error_of(method)["param"]) == (405, None)
    long = served.client.post("/v1/completions", json=completion([1] * 4000))
    assert (long.status_code, error_of(long)["code"]) == (400, "context_length_exceeded")


def test_a_full_queue_is_told_with_when_to_come_again(endless_served: Served, leave: Callable[[], None]) -> None:
    """Two run, one waits; the others are refused at once, and who waited is served."""

    def ask() -> httpx.Response:
        return endless_served.client.post("/v1/completions", json=completion())

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask)
        wait_until(lambda: endless_served.metric("tensorwright_requests_waiting") == 1)
        for refused in (ask() for _ in range(9)):
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
            assert error_of(refused)["code"] == "queue_full"
        assert not waiting.done()
        leave()
        assert waiting.result().status_code == 200


def test_an_address_has_its_share_and_others_have_theirs(open_served: Served) -> None:
    """Requests of which the body does not come hold what they have."""
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {1 << 20}\r\n\r\n".encode()
    other = httpx.Client(
        transport=httpx.HTTPTransport(local_address="127.0.0.2"), base_url=open_served.url, timeout=PATIENCE
    )
    with contextlib.ExitStack() as held, other as greedy:

        def hold() -> None:
            raw = held.enter_context(socket.create_connection(open_served.address, source_address=("127.0.0.2", 0)))
            raw.sendall(head)

        for _ in range(PER_ADDRESS - 1):
            hold()
        wait_until(lambda: open_served.metric("tensorwright_http_connections", state="served") == PER_ADDRESS - 1)
        refused = greedy.post("/v1/completions", json=completion(n=2))
        assert (refused.status_code, error_of(refused)["code"]) == (429, "too_many_requests")
        never = greedy.post("/v1/completions", json=completion(n=PER_ADDRESS + 1))
        assert (never.status_code, "one address" in never.text) == (400, True)
        hold()
        wait_until(lambda: open_served.metric("tensorwright_http_connections", state="served") == PER_ADDRESS)
        refused = greedy.post("/v1/completions", json=completion())
        assert (refused.status_code, error_of(refused)["code"]) == (429, "too_many_connections")
        assert greedy.get("/health").status_code == 200
        assert open_served.client.post("/v1/completions", json=completion()).status_code == 200


def test_request_ids_come_back_and_stand_in_the_log(served: Served) -> None:
    mine = served.client.post("/v1/completions", json=completion(), headers={"x-request-id": "mine-1"})
    assert mine.headers["x-request-id"] == "mine-1"
    line = served.log_line("mine-1")
    assert {name: line[name] for name in ("method", "path", "status", "model")} == {
        "method": "POST", "path": "/v1/completions", "status": 200, "model": "pico",
    }  # fmt: skip
    assert (line["completion_tokens"], line["finish_reasons"]) == (4, ["length"])
    assert line["prompt_tokens"] == mine.json()["usage"]["prompt_tokens"]
    assert len(line["engine_requests"]) == 1
    assert line["seconds"] > 0
    made = [served.client.get("/health", headers={"x-request-id": bad}).headers for bad in ("", "a b", "x" * 200)]
    assert len({headers["x-request-id"] for headers in made}) == 3
    assert all(len(headers["x-request-id"]) == 32 for headers in made)
    assert error_of(served.client.get("/nowhere", headers={"x-request-id": "lost"}))
    assert served.log_line("lost")["status"] == 404


def test_logs_hold_no_prompts_answers_or_keys(served: Served) -> None:
    answer = served.client.post(
        "/v1/completions", json=completion("xyzzy_secret = "), headers={"x-request-id": "secret-1"}
    )
    bad = served.client.post(
        "/v1/completions", content=b'{"prompt": "xyzzy_secret', headers={**JSON, "x-request-id": "secret-2"}
    )
    assert (answer.status_code, bad.status_code) == (200, 400)
    served.log_line("secret-1")
    served.log_line("secret-2")
    text = served.log.read_text(encoding="utf-8")
    assert "xyzzy_secret" not in text
    assert KEY not in text
    assert OTHER_KEY not in text


def test_with_log_prompts_bodies_are_in_the_log(open_served: Served) -> None:
    open_served.client.post("/v1/completions", json=completion("xyzzy_open"), headers={"x-request-id": "open-1"})
    assert open_served.log_line("open-1")["body"]["prompt"] == "xyzzy_open"
    open_served.client.post("/v1/completions", content=b"\xff{", headers={"x-request-id": "open-2"})
    assert open_served.log_line("open-2")["body"].endswith("{")


@pytest.mark.parametrize("depth", [50, 101, 963, 9000])
def test_no_body_is_too_deep_or_too_large_for_its_line_in_the_log(open_served: Served, depth: int) -> None:
    body = b'{"prompt": "a", "user": ' + b"[" * depth + b"]" * depth + b"}"
    for name, sent in ((f"deep-{depth}", body), (f"large-{depth}", body + b" " * 2**16)):
        open_served.client.post("/v1/completions", content=sent, headers={**JSON, "x-request-id": name})
        logged = open_served.log_line(name)["body"]
        assert logged == (json.loads(body) if sent is body and depth < 100 else sent.decode())


def test_with_quiet_probes_only_those_that_fail_leave_a_line(served: Served, open_served: Served) -> None:
    """The server without keys was told so, the other one was not."""
    for path in ("/health", "/ready", "/metrics"):
        for server in (served, open_served):
            assert server.client.get(path, headers={"x-request-id": f"probe{path}"}).status_code == 200
        assert served.log_line(f"probe{path}")["path"] == path
    open_served.client.delete("/health", headers={"x-request-id": "failed"})
    assert open_served.log_line("failed")["status"] == 405  # written after what the others would have written
    assert not [line for line in open_served.log_lines() if line.get("request_id", "").startswith("probe/")]


def test_pages_may_call_only_where_it_was_asked_for(served: Served, open_served: Served) -> None:
    ask = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    off = served.client.options("/v1/completions", headers=ask)
    assert off.status_code == 405
    assert not [name for name in off.headers if name.startswith("access-control")]
    on = open_served.client.options("/v1/completions", headers=ask)
    assert (on.status_code, on.headers["access-control-allow-origin"]) == (200, PAGE)
    read = open_served.client.get("/v1/models", headers={"origin": PAGE})
    assert read.headers["access-control-allow-origin"] == PAGE
    other = open_served.client.get("/v1/models", headers={"origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_request_that_takes_too_long_ends(hasty_served: Served) -> None:
    """Streamed or not, with what there is; what was computed for them is free again."""
    body = completion(max_tokens=ENDLESS // 2, n=2)
    asked = 0

    def ask(stream: bool) -> list[str] | None:
        """The events of an answer, or the only one; None if the request had not begun when its time was up."""
        nonlocal asked
        asked += 1
        headers = {"x-request-id": f"slow-{asked}"}
        answer = hasty_served.client.post("/v1/completions", json=body | {"stream": stream}, headers=headers)
        if answer.status_code != 200 or not hasty_served.log_line(f"slow-{asked}")["completion_tokens"]:
            return None
        return read_events(iter(answer.text.splitlines())) if stream else [answer.text]

    (text,) = wait_until(lambda: ask(stream=False))
    whole = json.loads(text)
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["timeout", "timeout"]
    assert whole["usage"]["completion_tokens"] > 0
    assert hasty_served.log_line(f"slow-{asked}")["finish_reasons"] == ["timeout", "timeout"]
    *events, done = wait_until(lambda: ask(stream=True))
    assert done == "[DONE]"
    assert [json.loads(event)["choices"][0]["finish_reason"] for event in events].count("timeout") == 2
    wait_until(lambda: hasty_served.metric("tensorwright_kv_blocks_used") == 0)
