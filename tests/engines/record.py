#!/usr/bin/env python3
"""Records what real engines answer, as fixtures for the adapters' tests.

    engines.py run llama vllm sglang -- python3 record.py ../../crates/engine/tests/fixtures

Replies are kept byte for byte; the question is beside each, so that it can be asked again.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import tiny_model

WEATHER = [{"role": "user", "content": "How is the weather in Oslo?"}]
IDS = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_token_ids": True},
    "llama": {"verbose": True, "return_tokens": True},
}
STREAMED_IDS = {
    **IDS,
    "sglang": {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
}


def questions(engine: str):
    chat = {"model": tiny_model.NAME, "messages": WEATHER, "logprobs": True}
    chat["top_logprobs"] = 1 if engine == "llama" else 0
    greedy = {**chat, "temperature": 0, "max_tokens": 24}
    calling = {**chat, "temperature": 1, "tools": [tiny_model.TOOL], "max_tokens": 60}
    # llama.cpp's streams lose ids, so its replies are always asked for whole.
    for stream in (False,) if engine == "llama" else (False, True):
        ids = STREAMED_IDS[engine] if stream else IDS[engine]
        form = {**ids, "stream": stream}
        if stream:
            form["stream_options"] = {"include_usage": True}
        suffix = ".sse" if stream else ".json"
        yield f"text{suffix}", {**greedy, **form}
        yield f"stop{suffix}", {**greedy, **form, "stop": [" in", " how"]}
        yield f"tool{suffix}", {**calling, **form}
    yield "too_long.json", {**greedy, "messages": [{"role": "user", "content": "a b " * 40000}]}
    yield "too_much.json", {**greedy, "max_tokens": 10**6}
    yield "no_such_id.json", {**greedy, "logit_bias": {"-1": 0}}


def ask_until(url: str, body: dict, wanted) -> bytes:
    """Asks with one seed after the other until the reply is as wanted."""
    for seed in range(200):
        reply = ask(url, {**body, "seed": seed} if body["temperature"] else body)
        if wanted(reply):
            return reply
    raise SystemExit("no seed gives such a reply")


def calls_a_tool(reply: bytes) -> bool:
    return re.search(rb'"tool_calls": ?\[\{', reply) is not None


def ask(url: str, body: dict) -> bytes:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.read()


def main() -> None:
    folder = Path(sys.argv[1])
    for engine in ("llama", "vllm", "sglang"):
        url = os.environ.get(f"POLAR_TEST_{engine.upper()}")
        if not url:
            continue
        target = folder / engine
        target.mkdir(parents=True, exist_ok=True)
        for name, body in questions(engine):
            wanted = calls_a_tool if name.startswith("tool") else bool
            (target / name).write_bytes(ask_until(url, body, wanted))
            print(f"{engine}/{name}")


if __name__ == "__main__":
    main()
