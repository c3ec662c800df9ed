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


# WEATHER by the tiny model's template and tokenizer, and what the model replies to it.
PROMPT = [521, 335, 198, 423, 292, 269, 283, 284, 471, 30, 522, 198, 521, 328, 198]
REPLY = [527, 40, 360, 363, 374, 366, 371, 13, 528, 322, 283, 284, 470, 292, 463, 332, 0, 522]


def token_questions(engine: str):
    """Name, path and body of questions with ids in."""
    stop = {"stop": [" in", " how"]}
    too_long = [5] * 20000
    if engine == "llama":
        ask = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}
        ask = {**ask, "n_probs": 1, "return_tokens": True}
        yield "ids.json", "/completion", ask
        yield "ids_stop.json", "/completion", {**ask, **stop}
        yield "ids_too_long.json", "/completion", {**ask, "prompt": too_long}
    if engine == "sglang":
        sampling = {"max_new_tokens": 24, "temperature": 0}
        ask = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": sampling}
        for suffix, form in ((".json", {}), (".sse", {"stream": True})):
            yield f"ids{suffix}", "/generate", {**ask, **form}
            yield f"ids_stop{suffix}", "/generate", {**ask, **form, "sampling_params": {**sampling, **stop}}
            yield f"ids_too_long{suffix}", "/generate", {**ask, **form, "input_ids": too_long}
        mask = {"return_sampling_mask": True, "sampling_params": {**sampling, "temperature": 1, "top_k": 3}}
        yield "ids_mask.json", "/generate", {**ask, **mask}
        scores = {"max_new_tokens": 0, "temperature": 1}
        ask = {**ask, "sampling_params": scores, "logprob_start_len": len(PROMPT) - 1}
        yield "scores.json", "/generate", {**ask, "input_ids": PROMPT + REPLY}
    if engine == "vllm":
        sampling = {"max_tokens": 24, "temperature": 0, "logprobs": 0}
        ids = {"model": tiny_model.NAME, "token_ids": PROMPT}
        text = {"model": tiny_model.NAME, "prompt": PROMPT, "return_token_ids": True, **sampling}
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        for suffix, form in ((".json", {}), (".sse", streamed)):
            for name, more in (("", {}), ("_stop", stop)):
                generate = {**ids, **form, "sampling_params": {**sampling, **more}}
                yield f"generate{name}{suffix}", "/inference/v1/generate", generate
                yield f"completion{name}{suffix}", "/v1/completions", {**text, **form, **more}
        too_long = {**ids, "token_ids": too_long, "sampling_params": sampling}
        yield "generate_too_long.json", "/inference/v1/generate", too_long
        scores = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0}
        scores = {"model": tiny_model.NAME, "prompt": PROMPT + REPLY, **scores}
        yield "scores.json", "/v1/completions", scores


def ask_until(url: str, body: dict, wanted) -> bytes:
    """Asks with one seed after the other until the reply is as wanted."""
    for seed in range(200):
        body = {**body, "seed": seed} if body["temperature"] else body
        reply = ask(url, "/v1/chat/completions", body)
        if wanted(reply):
            return reply
    raise SystemExit("no seed gives such a reply")


def calls_a_tool(reply: bytes) -> bool:
    return re.search(rb'"tool_calls": ?\[\{', reply) is not None


def ask(url: str, path: str, body: dict) -> bytes:
    request = urllib.request.Request(
        f"{url}{path}",
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
        for name, path, body in token_questions(engine):
            (target / name).write_bytes(ask(url, path, body))
            print(f"{engine}/{name}")


if __name__ == "__main__":
    main()
