"""The process: metrics, slow clients, TLS, and how it ends."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from support.served import KEY, Served, completion, read_events, serve
from support.toy_engine import ENDLESS
from support.waiting import PATIENCE, wait_until

PATIENT = ("--drain-timeout", str(PATIENCE))
"""A stream under way comes to its end by itself, however slow the machine is."""
SHUT = (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError)


def texts(events: list[str]) -> str:
    assert events[-1] == "[DONE]", events[-1]
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


def total(server: Served, names: Iterable[str]) -> dict[str, float]:
    samples = server.metrics()
    return {name: sum(value for other, _, value in samples if other == name) for name in names}


def test_metrics_move_as_requests_run(served: Served) -> None:
    names = {
        "tensorwright_generated_tokens_total": 6,
        "tensorwright_time_to_first_token_seconds_count": 1,
        "tensorwright_request_seconds_count": 1,
        "tensorwright_inter_token_seconds_count": 5,
        "tensorwright_output_tokens_sum": 6,
        "tensorwright_steps_total": 6,
    }
    served.client.post("/v1/completions", json=completion(max_tokens=2))  # each series is there from then on
    wait_until(lambda: all(f"{name}{{" in served.client.get("/metrics").text for name in names))
    served.wait_until_idle()
    before: dict[str, float] = {}
    while before != (now := total(served, names)):  # earlier requests may still be on their way into them
        before = now

    def answered() -> float:
        return served.metric("tensorwright_http_requests_total", path="/v1/completions", status="200")

    asked = answered()
    answer = served.client.post("/v1/completions", json=completion(max_tokens=6))
    assert answer.status_code == 200

    after = {name: before[name] + more for name, more in names.items()}
    wait_until(lambda: total(served, names) == after)
    wait_until(lambda: answered() == asked + 1)
    assert served.metric("tensorwright_prompt_tokens_sum") >= answer.json()["usage"]["prompt_tokens"]
    assert served.metric("tensorwright_completions_by_reason_total", reason="length") >= 2
    assert served.metric("tensorwright_engine_up", model="pico") == 1
    served.client.get("/nowhere/4711")
    assert "4711" not in served.client.get("/metrics").text


def shows_work(server: Served) -> bool:
    """Whether two completions run, in blocks of the cache, for one request beside this one."""
    samples = server.metrics()
    values = {name: value for name, labels, value in samples}
    return (
        values["tensorwright_requests_running"] == 2
        and values["tensorwright_kv_blocks_used"] > 0
        and values["tensorwright_http_requests_in_flight"] == 2
    )


def test_running_requests_show_in_metrics(endless_served: Served) -> None:
    body = completion(max_tokens=ENDLESS // 2, n=2, stream=True)
    with endless_served.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # let go of, it would close the connection
        next(lines)
        wait_until(lambda: shows_work(endless_served))
    wait_until(lambda: endless_served.metric("tensorwright_requests_running") == 0)  # the client left early
    wait_until(lambda: endless_served.metric("tensorwright_kv_blocks_used") == 0)


def test_a_slow_reader_holds_nobody_up(endless_served: Served) -> None:
    """A client that takes a byte at a time, and one that takes none, while others are served."""
    body = json.dumps(completion(max_tokens=300, stream=True)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    raw.connect(endless_served.address)
    with raw:
        raw.sendall(head.encode() + body)
        taken = bytearray(raw.recv(1))
        for _ in range(3):
            answer = endless_served.client.post("/v1/completions", json=completion(max_tokens=2))
            assert answer.status_code == 200
            taken += raw.recv(1)
        while part := raw.recv(65536):
            taken += part
    assert taken.startswith(b"HTTP/1.1 200 ")
    assert b"data: [DONE]" in taken


def test_a_client_that_takes_nothing_is_cut_off(hasty_served: Served) -> None:
    """Its window stays shut, while an answer waits to be sent."""
    cut_off = "tensorwright_http_connections_closed_total"
    before = hasty_served.metric(cut_off, reason="took_nothing")
    head = f"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n\r\n"
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    raw.connect(hasty_served.address)
    with raw:
        raw.sendall(head.encode() * 600)  # more answers than the system keeps for us
        wait_until(lambda: hasty_served.metric(cut_off, reason="took_nothing") == before + 1)
        wait_until(lambda: hasty_served.metric("tensorwright_http_requests_in_flight") == 1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cert.pem and key.pem for 127.0.0.1 in a folder."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, which makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def certified(certificate: Path) -> tuple[str, ...]:
    """The options of a server with the certificate."""
    return "--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem")


@pytest.fixture(scope="module")
def safe(toy_engine: Path, certificate: Path) -> Iterator[Served]:
    """It waits long for heads, so that connections which say nothing end by nothing else than their number."""
    options = (*certified(certificate), "--max-connections", "3", "--header-timeout", str(PATIENCE))
    trusts = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with serve(toy_engine, certificate, *options, verify=trusts) as server:
        yield server


def test_tls_serves_who_trusts_it_and_nobody_in_the_clear(safe: Served) -> None:
    assert safe.url.startswith("https://127.0.0.1:")
    assert safe.client.post("/v1/completions", json=completion()).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{safe.url}/health", timeout=PATIENCE)
    with pytest.raises(SHUT):
        httpx.get(f"{safe.url.replace('https', 'http')}/health", timeout=PATIENCE)


def test_tls_that_is_never_agreed_upon_is_not_waited_for(toy_engine: Path, certificate: Path) -> None:
    with serve(toy_engine, certificate, *certified(certificate), "--header-timeout", "1") as server:
        for sent in (b"", b"\x16\x03\x01"):
            with server.send_raw(b"") as raw, contextlib.suppress(ConnectionError):  # it may be ended before this comes
                raw.sendall(sent)
                while raw.recv(4096):
                    pass


def test_more_connections_than_allowed_are_turned_away_but_for_probes(safe: Served, certificate: Path) -> None:
    """Those with requests under way count. Others are closed when their place is wanted, the oldest first."""
    trusts = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    idle = [trusts.wrap_socket(socket.create_connection(safe.address), server_hostname="127.0.0.1") for _ in range(30)]
    assert idle[0].recv(1) == b""
    body = json.dumps(completion(max_tokens=ENDLESS, stream=True)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    asking = idle[-3:]
    for connection in asking:
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
    with httpx.Client(base_url=safe.url, verify=trusts, timeout=PATIENCE) as other:
        refused = other.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        assert other.get("/health").status_code == 200
        assert safe.metric("tensorwright_http_connections", state="served") == 3
        assert safe.metric("tensorwright_http_connections_closed_total", reason="gave_its_place") >= 14
        for connection in asking:
            connection.close()
        wait_until(lambda: other.get("/v1/models").status_code == 200)
    for connection in idle:
        connection.close()


def test_one_connection_and_few_descriptors_serve(pico_engine: Path, tmp_path: Path) -> None:
    """Many more come than there are descriptors for, and say nothing."""
    with serve(pico_engine, tmp_path, "--max-connections", "1", files=72) as server:
        crowd = [socket.create_connection(server.address) for _ in range(100)]
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert httpx.get(f"{server.url}{path}", timeout=PATIENCE).status_code == 200
        assert crowd[0].recv(1) == b""
        crowd[-1].sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert crowd[-1].recv(12) == b"HTTP/1.1 200"
        assert server.client.post("/v1/completions", json=completion()).status_code == 200
        for connection in crowd:
            connection.close()
        assert [line for line in server.log_lines() if line["message"] != "request"] == []
    with serve(pico_engine, tmp_path, files=72) as server:
        assert [line["message"] for line in server.log_lines()] == [
            "fewer connections, for this process may not open more files"
        ]


def test_it_drains(toy_engine: Path, tmp_path: Path) -> None:
    """A stream under way comes to its end, new requests are refused, and the exit code is 0."""
    assert any(drains(toy_engine, tmp_path, tokens) for tokens in (1500, 8000, 40_000)), "all streams were too short"


def drains(engine: Path, folder: Path, tokens: int) -> bool:
    """Whether the stream of so many tokens was long enough to see all of it."""
    with serve(engine, folder, *PATIENT) as server:
        expected = texts(stream(server, tokens))
        begun = threading.Event()
        events: list[str] = []
        reader = threading.Thread(target=lambda: events.extend(stream(server, tokens, begun)))
        reader.start()
        assert begun.wait(PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        try:
            wait_until(lambda: server.client.get("/ready").status_code == 503)
            refused = server.client.post("/v1/completions", json=completion())
            healthy = server.client.get("/health").status_code
        except SHUT:  # the process has ended already
            reader.join()
            return False
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        assert healthy == 200
        long_enough = reader.is_alive()
        reader.join()
        assert texts(events) == expected
        assert server.process.wait(PATIENCE) == 0
        assert [line["message"] for line in server.log_lines() if line["level"] in ("warning", "error")] == []
    return long_enough


def stream(server: Served, tokens: int, begun: threading.Event | None = None) -> list[str]:
    body = completion(max_tokens=tokens, stream=True)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        if begun is not None:
            begun.set()
        return read_events(iter([first, *lines]))


def test_what_does_not_finish_in_time_ends_with_an_error(toy_engine: Path, tmp_path: Path) -> None:
    with serve(toy_engine, tmp_path, "--drain-timeout", "0.2") as server:
        begun, events = threading.Event(), list[str]()
        reader = threading.Thread(target=lambda: events.extend(stream(server, ENDLESS, begun)))
        reader.start()
        assert begun.wait(PATIENCE)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        reader.join()
        assert json.loads(events[-1])["error"]["code"] == "request_aborted"


def test_a_second_signal_ends_at_once(toy_engine: Path, tmp_path: Path) -> None:
    with serve(toy_engine, tmp_path, *PATIENT) as server:
        body = completion(max_tokens=ENDLESS // 2, n=2, stream=True)
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # let go of, it would close the connection
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.client.get("/ready").status_code == 503)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 130
        assert "Traceback" not in server.log.read_text(encoding="utf-8")
