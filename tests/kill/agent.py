"""The harness of the kill test: a chain of calls, each acknowledged once its reply was seen.

Runs inside a sandbox with nothing but Python's standard library. An acknowledgement is a
line to the test itself, which outlives every process that it kills. Like any agent CLI it
asks again when the connection breaks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

TRIES = 40
PAUSE_SECONDS = 0.25
BASE = os.environ["POLAR_BASE_URL"]
KEY = os.environ["POLAR_API_KEY"]
SESSION = os.environ["POLAR_SESSION_ID"]


def main() -> None:
    calls, address = int(sys.argv[1]), sys.argv[2]
    host, port = address.rsplit(":", 1)
    # Left behind on purpose: it leaves the process group, and nobody waits for it.
    subprocess.Popen(["sleep", "900"], start_new_session=True, stdin=subprocess.DEVNULL)
    history: list[dict[str, str]] = []
    with socket.create_connection((host, int(port)), timeout=30) as test:
        for number in range(calls):
            word = uuid.uuid4().hex
            history.append({"role": "user", "content": word})
            text = insist(history, streamed=number % 2 == 0, messages=number % 3 == 2)
            assert word in text, f"asked with {word}, answered {text!r}"
            history.append({"role": "assistant", "content": text})
            acknowledge(test, {"session": SESSION, "word": word, "text": text})


def acknowledge(test: socket.socket, line: dict[str, str]) -> None:
    test.sendall(json.dumps(line).encode() + b"\n")
    assert test.recv(1) == b"+", "the test did not take the acknowledgement"


def insist(history: list[dict[str, str]], streamed: bool, messages: bool) -> str:
    for _ in range(TRIES):
        try:
            return call(history, streamed, messages)
        except urllib.error.HTTPError as error:
            # A node that started anew does not know the secret, and never will.
            if error.code not in (429, 500, 502, 503, 504, 529):
                raise
        except (OSError, Unfinished):
            pass
        time.sleep(PAUSE_SECONDS)
    raise SystemExit("no answer")


class Unfinished(Exception):
    """The reply broke off."""


def call(history: list[dict[str, str]], streamed: bool, messages: bool) -> str:
    body = {"model": "polar", "max_tokens": 400, "messages": history, "stream": streamed}
    request = urllib.request.Request(
        BASE + ("/v1/messages" if messages else "/v1/chat/completions"),
        data=json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "authorization": f"Bearer {KEY}",
            "anthropic-version": "2023-06-01",
        },
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        if streamed:
            return read_stream(response, messages)
        raw = response.read()
    if len(raw) != int(response.headers["content-length"]):
        raise Unfinished
    reply = json.loads(raw)
    if messages:
        return "".join(block.get("text", "") for block in reply["content"])
    return str(reply["choices"][0]["message"]["content"])


def read_stream(lines, messages: bool) -> str:
    text = ""
    for line in lines:
        if not line.startswith(b"data: "):
            continue
        data = line[len(b"data: ") :].strip()
        if data == b"[DONE]":
            return text
        event = json.loads(data)
        if messages:
            if event["type"] == "message_stop":
                return text
            text += event.get("delta", {}).get("text", "")
        else:
            for choice in event.get("choices", []):
                text += choice["delta"].get("content") or ""
        if "error" in event:
            break
    raise Unfinished


main()
