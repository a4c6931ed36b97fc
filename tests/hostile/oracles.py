"""Attacks on what a server tells or believes. Their finding says what is wrong, "" where all is as it should be."""

from __future__ import annotations

import contextlib
import json
import secrets

from hostile.clients import Attacker, Outcome, Target

NEAR = 70  # how deep still leaves a line depends on how deep the server stands itself


def cached_tokens(size: int) -> Attacker:
    """One client sends a secret, another guesses it: may it learn from the usage which guess was right?"""

    def attack(target: Target) -> Outcome:
        start = "The number of the account of the honest client is of course known to nobody else, and it is this one: "
        secret, wrong = secrets.token_hex(16), secrets.token_hex(16)

        def cached(client: int, guess: str) -> int:
            usage = target.complete(client, prompt=start + guess + " and so on, and so on" * 4, max_tokens=1)["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        cached(1, secret)
        right, other = cached(0, secret), cached(0, wrong)
        told = f"cached_tokens is {right} for the right guess and {other} for a wrong one" if right != other else ""
        return Outcome(["200"] * 3, "", told)

    return attack


def nested(depth: int) -> Attacker:
    """Bodies that are answered; each must leave its line in the log, which `unlogged` looks for."""

    def attack(target: Target) -> Outcome:
        outcome, ids = Outcome(), []
        for deep in range(depth - NEAR, depth + 1):
            schema = '{"a":' * deep + "1" + "}" * deep
            fields = '"model":"pico","prompt":"a","max_tokens":1'
            body = f'{{{fields},"guided_json":{schema}}}'.encode()
            ids.append(f"nested-{deep}")
            status, _ = target.ask("POST", "/v1/completions", body, **{"x-request-id": ids[-1]})
            outcome.answers.append(status)
        outcome.text = json.dumps(ids)
        return outcome

    return attack


def foreign_host(size: int) -> Attacker:
    """As a browser asks whose name for a stranger's page was made to lead to this machine."""

    def attack(target: Target) -> Outcome:
        status, text = target.ask("GET", "/v1/models", host="evil.example")
        return Outcome([status], text[:200], "Host: evil.example is answered 200" if status == "200" else "")

    return attack


def two_lengths(size: int) -> Attacker:
    """RFC 9112, 6.3: such a request is an attack on whoever stands in between."""
    body = b'{"model":"pico","prompt":"a","max_tokens":1}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

    def attack(target: Target) -> Outcome:
        lines = ["POST /v1/completions HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in target.headers().items()]
        lines += [f"content-length: {len(chunked)}", "transfer-encoding: chunked", "", ""]
        with contextlib.closing(target.connect(30)) as opened:
            opened.sendall("\r\n".join(lines).encode() + chunked)
            answer = b""
            with contextlib.suppress(OSError):
                answer = opened.recv(4096)
        status = answer[9:12].decode() or "refused"
        return Outcome([status], "", "both are taken: 200" if status == "200" else "")

    return attack


def unlogged(outcome: Outcome, lines: list[str]) -> str:
    """What is missing in the log of `nested`."""
    missing = [name for name in json.loads(outcome.text) if not any(f'"{name}"' in line for line in lines)]
    return f"{len(missing)} of {len(outcome.answers)} requests left no line in the log" if missing else ""
