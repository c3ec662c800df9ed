#!/usr/bin/env python3
"""Puts the same requests to two servers of vLLM's API and compares the replies field by field.

Usage: vllm_shapes.py REFERENCE_URL CANDIDATE_URL [--only NAME] [--verbose]

The reference is a real vLLM, started with `--enable-auto-tool-choice --tool-call-parser hermes
--reasoning-parser qwen3 --enable-prompt-tokens-details --enable-scale-out` and VLLM_SERVER_DEV_MODE=1; the
candidate is `polar simulate-engine`. Models differ, so sampled text is not compared; types,
presence and nesting of every field are, and so are values that sampling does not decide. If
both have the same tokenizer and chat template, prompt ids are compared too.

Exits with 1 and a list of differences when there are any. Standard library only.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request

HELLO = [{"role": "user", "content": "Hello there"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        # Only strict tools are decoded under their schema.
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
IDS = "/inference/v1/generate"


def chat(**fields):
    return ("POST", CHAT, {"messages": HELLO, "seed": 1, **fields})


def text(**fields):
    return ("POST", TEXT, {"prompt": [5, 6, 7, 8], "seed": 1, **fields})


def generate(token_ids=(5, 6, 7, 8), sampling=(), **fields):
    sampling_params = {"max_tokens": 3, "ignore_eos": True, "logprobs": 0, "seed": 1, **dict(sampling)}
    return ("POST", IDS, {"token_ids": list(token_ids), "sampling_params": sampling_params, **fields})


# Sampling alone must not decide the structure of a reply: each is cut short, has its thinking
# switched off or on, or is forced to call a tool.
CASES = {
    "chat": chat(max_tokens=4, ignore_eos=True, **NO_THINKING),
    "chat_reasoning": chat(max_tokens=4, min_tokens=4),
    "chat_ids": chat(max_tokens=4, ignore_eos=True, return_token_ids=True, **NO_THINKING),
    "chat_logprobs": chat(max_tokens=4, ignore_eos=True, logprobs=True, return_token_ids=True, **NO_THINKING),
    "chat_top_logprobs": chat(max_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=2, **NO_THINKING),
    "chat_token_names": chat(
        max_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=1,
        return_tokens_as_token_ids=True, return_prompt_text=True, **NO_THINKING,
    ),
    "chat_prompt_logprobs": chat(max_tokens=2, ignore_eos=True, prompt_logprobs=1, **NO_THINKING),
    "chat_n": chat(max_tokens=3, ignore_eos=True, n=2, return_token_ids=True, **NO_THINKING),
    "chat_hidden_reasoning": chat(
        max_tokens=4, min_tokens=4, include_reasoning=False, logprobs=True, return_token_ids=True,
    ),
    "chat_request_id": chat(max_tokens=1, request_id="chosen", **NO_THINKING),
    "chat_tool_required": chat(
        max_tokens=200, tools=[TOOL], tool_choice="required", return_token_ids=True, logprobs=True, **NO_THINKING,
    ),
    "chat_tool_named": chat(
        max_tokens=200, tools=[TOOL], return_token_ids=True,
        tool_choice={"type": "function", "function": {"name": "get_weather"}}, **NO_THINKING,
    ),
    "chat_stream": chat(
        max_tokens=5, ignore_eos=True, stream=True, return_token_ids=True, logprobs=True, top_logprobs=1,
        stream_options={"include_usage": True}, **NO_THINKING,
    ),
    "chat_stream_reasoning": chat(
        max_tokens=5, min_tokens=5, stream=True, return_token_ids=True, logprobs=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ),
    "chat_stream_bare": chat(max_tokens=5, ignore_eos=True, stream=True, **NO_THINKING),
    "chat_stream_n": chat(max_tokens=3, ignore_eos=True, stream=True, n=2, return_token_ids=True, **NO_THINKING),
    "chat_stream_tools": chat(
        max_tokens=200, tools=[TOOL], tool_choice="required", stream=True, return_token_ids=True,
        logprobs=True, **NO_THINKING,
    ),
    "text": text(max_tokens=3, ignore_eos=True, return_token_ids=True),
    "text_logprobs": text(max_tokens=3, ignore_eos=True, logprobs=1, return_token_ids=True),
    "text_echo": text(max_tokens=1, ignore_eos=True, echo=True, logprobs=0, return_token_ids=True),
    "text_prompt_logprobs": text(max_tokens=1, ignore_eos=True, prompt_logprobs=0),
    "text_many": text(prompt=[[5, 6], [7, 8, 9]], max_tokens=2, ignore_eos=True, return_token_ids=True),
    "text_string": text(prompt="Hello", max_tokens=2, ignore_eos=True, echo=True),
    "text_stream": text(
        max_tokens=4, ignore_eos=True, stream=True, return_token_ids=True, logprobs=0,
        stream_options={"include_usage": True},
    ),
    "text_stream_bare": text(max_tokens=4, ignore_eos=True, stream=True),
    "generate": generate(),
    "generate_ids": generate(return_token_ids=True, sampling={"logprobs": 2}),
    "generate_bare": generate(sampling={"logprobs": None}),
    "generate_scored": generate(sampling={"prompt_logprobs": 0}),
    "generate_stream": generate(
        stream=True, return_token_ids=True, stream_options={"include_usage": True}, sampling={"logprobs": 1},
    ),
    "generate_stream_bare": generate(stream=True),
    "generate_named": generate(request_id="chosen"),
    "generate_too_much": generate(sampling={"max_tokens": 99999999, "ignore_eos": False, "stop_token_ids": [9]}),
    "generate_bad_id": generate(token_ids=[5, 9999999]),
    "generate_nothing": generate(token_ids=[]),
    "generate_without_sampling": ("POST", IDS, {"token_ids": [5]}),
    "generate_unknown_model": generate(model="nope"),
    "tokenize_chat": ("POST", "/tokenize", {"messages": HELLO, "tools": [TOOL], "return_token_strs": True}),
    "tokenize_text": ("POST", "/tokenize", {"prompt": "Hello there"}),
    "detokenize": ("POST", "/detokenize", {"tokens": [5, 6, 7]}),
    "models": ("GET", "/v1/models", None),
    "version": ("GET", "/version", None),
    "load": ("GET", "/load", None),
    "is_paused": ("GET", "/is_paused", None),
    "weight_info": ("GET", "/weight_info", None),
    "abort_nothing": ("POST", "/abort_requests", {}),
    "unknown_model": ("POST", CHAT, {"model": "nope", "messages": HELLO}),
    "unknown_route": ("GET", "/v1/nothing", None),
    "wrong_method": ("GET", CHAT, None),
    "no_messages": ("POST", CHAT, {}),
    "bad_messages": ("POST", CHAT, {"messages": "x"}),
    "bad_id": text(prompt=[5, 9999999], max_tokens=1),
    "empty_tools": chat(tools=[]),
    "choice_without_tools": chat(tool_choice="auto"),
    "top_without_logprobs": chat(top_logprobs=2),
    "too_many_tokens": chat(max_tokens=99999999),
    "usage_without_stream": chat(stream_options={"include_usage": True}),
    "bad_n": chat(n=0),
    "bad_temperature": chat(temperature=-1),
}



def called(arguments, **fields):
    function = {"name": "get_weather", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}], **fields}


# Conversations whose prompt ids must be equal when tokenizer and template are the same.
RESULT = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
CONVERSATIONS = {
    "plain": {"messages": [{"role": "system", "content": "Be brief."}, *HELLO]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, *HELLO]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", " b\n", "")]}]},
    "billing": {"messages": [
        {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: v=1;"}, {"type": "text", "text": "Rules."}]},
        *HELLO,
    ]},
    "unicode": {"messages": [{"role": "user", "content": "Ünïcödé 漢字 🎉 e\u0301 \u00a0\u200b ﬁ <|im_end|> <think> \t\r\n"}]},
    "tool": {"messages": HELLO, "tools": [TOOL]},
    "bare_tool": {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}, "x_extra": 1}]},
    "floats": {"messages": HELLO, "tools": [{"type": "function", "function": {
        "name": "f", "description": "<a> & \u2028 \"b\"",
        "parameters": {"b": 1, "a": [1.0, 2.5, 1e-7, 1e22, 123456789012345678, -0.0, True, None, {}]},
    }}]},
    "call": {"messages": [*HELLO, called('{"city":"Oslo","n":1e-7}', content=None, reasoning="\nhm\n"), RESULT], "tools": [TOOL]},
    "call_and_text": {"messages": [*HELLO, called("{}", content="\n\nLook.\n", reasoning_content="hm"), RESULT, RESULT], "tools": [TOOL]},
    "broken_call": {"messages": [*HELLO, called('{"city": '), RESULT, called("[1]"), RESULT, called(""), RESULT], "tools": [TOOL]},
    "old_reasoning": {"messages": [*HELLO, {"role": "assistant", "content": "a", "reasoning": "r"}, *HELLO]},
    "kept_reasoning": {
        "messages": [*HELLO, {"role": "assistant", "content": "a", "reasoning": "r"}, *HELLO],
        "chat_template_kwargs": {"keep_reasoning": True, "enable_thinking": False},
    },
    "continued": {
        "messages": [*HELLO, {"role": "assistant", "content": "Sure, the"}],
        "add_generation_prompt": False, "continue_final_message": True,
    },
    "empty": {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, *HELLO]},
}

# Fields that a random model fills differently from a scripted one.
SAMPLED = {"finish_reason", "stop_reason"}
# Values that must be equal, wherever they stand.
FIXED = {"object", "type", "role", "param", "code", "is_paused", "owned_by", "status", "aborted"}


def call(base, method, path, body):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(base + path, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def parse(raw):
    """JSON, or a stream as its events."""
    if raw.startswith("data: "):
        events = [event[len("data: "):] for event in raw.strip().split("\n\n")]
        return {"done": events[-1] == "[DONE]", "events": [json.loads(e) for e in events if e != "[DONE]"]}
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def group_events(reply):
    """A stream as one object: first, later, last and usage chunks, each with the others of its kind."""
    groups = {"first": [], "later": [], "last": [], "usage": []}
    for event in reply["events"]:
        if not event["choices"]:
            groups["usage"].append(event)
        elif event["choices"][0]["finish_reason"] is not None:
            groups["last"].append(event)
        elif "role" in event["choices"][0].get("delta", {}) or not any(groups.values()):
            groups["first"].append(event)
        else:
            groups["later"].append(event)
    return {"done": reply["done"], **{name: events for name, events in groups.items() if events}}


def shape(value, path="", found=None):
    """Every path with the kinds of value that stand there. Items of a list share a path."""
    found = {} if found is None else found
    kind = {dict: "object", list: "list", str: "text", bool: "flag", int: "number", float: "number"}
    found.setdefault(path, set()).add("null" if value is None else kind[type(value)])
    if isinstance(value, dict):
        for key, item in value.items():
            # Prompt logprobs have ids and top logprobs have tokens for keys.
            known = not key.isdigit() and "top_logprobs[]" not in path
            shape(item, f"{path}.{key if known else '*'}", found)
    elif isinstance(value, list):
        for item in value:
            shape(item, f"{path}[]", found)
    return found


def fixed_values(value, path="", found=None):
    found = {} if found is None else found
    if isinstance(value, dict):
        for key, item in value.items():
            if key in FIXED and not isinstance(item, (dict, list)):
                found.setdefault(f"{path}.{key}", set()).add(item)
            fixed_values(item, f"{path}.{key}", found)
    elif isinstance(value, list):
        for item in value:
            fixed_values(item, f"{path}[]", found)
    return found


def consistency(name, body, reply):
    """What must hold within a reply of either server."""
    problems = []
    if not isinstance(reply, dict) or not isinstance(body, dict) or "error" in reply:
        return problems
    if "events" in reply:
        ids, scores, usage = 0, 0, None
        for event in reply["events"]:
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                ids += len(choice.get("token_ids") or [])
                scores += len((choice.get("logprobs") or {}).get("content") or [])
        if not reply["done"]:
            problems.append("the stream has no [DONE]")
        if usage and body.get("return_token_ids") and ids != usage["completion_tokens"]:
            problems.append(f"{ids} ids streamed, usage says {usage['completion_tokens']}")
        if body.get("logprobs") and body.get("return_token_ids") and ids != scores:
            problems.append(f"{ids} ids but {scores} logprobs")
    elif "usage" in reply:
        usage = reply["usage"]
        if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
            problems.append(f"usage does not add up: {usage}")
        ids = [choice.get("token_ids") for choice in reply["choices"]]
        if body.get("return_token_ids") and None not in ids and sum(map(len, ids)) != usage["completion_tokens"]:
            problems.append("ids and usage differ")
    return [f"{name}: {problem}" for problem in problems]


def without_names(message):
    """An error message without what differs between the servers' models."""
    words = ["N" if any(c.isdigit() for c in word) else word for word in str(message).split()]
    return " ".join(words).split("Valid aliases")[0]


def compare(name, body, reference, candidate, same_model):
    differences = []
    (status, wanted), (got_status, got) = reference, candidate
    if status != got_status:
        return [f"{name}: status {status} in the reference, {got_status} in the candidate: {str(got)[:200]}"]
    if isinstance(wanted, dict) and "events" in wanted:
        wanted, got = group_events(wanted), group_events(got) if "events" in got else got
    shapes = shape(wanted), shape(got)
    for path in sorted(shapes[0].keys() | shapes[1].keys()):
        one, other = (found.get(path) for found in shapes)
        if path.rsplit(".", 1)[-1] in SAMPLED or one == other:
            continue
        if one is None:
            differences.append(f"{name}{path}: only in the candidate ({'/'.join(sorted(other))})")
        elif other is None:
            differences.append(f"{name}{path}: missing in the candidate ({'/'.join(sorted(one))})")
        else:
            differences.append(f"{name}{path}: {'/'.join(sorted(one))}, but {'/'.join(sorted(other))} in the candidate")
    values = fixed_values(wanted), fixed_values(got)
    for path in sorted(values[0].keys() & values[1].keys()):
        if values[0][path] != values[1][path]:
            differences.append(f"{name}{path}: {values[0][path]}, but {values[1][path]} in the candidate")
    if isinstance(wanted, dict) and "error" in wanted and isinstance(got, dict) and "error" in got:
        one, other = (without_names(reply["error"]["message"]) for reply in (wanted, got))
        # The wording of a schema violation is the framework's.
        if one != other and "validation error" not in one:
            differences.append(f"{name}: message {one!r}, but {other!r} in the candidate")
    if same_model and isinstance(wanted, dict):
        for key in ("prompt_token_ids", "tokens", "token_strs", "prompt_text"):
            if wanted.get(key) != got.get(key):
                differences.append(f"{name}.{key}: differs, although tokenizer and template are the same")
    return differences


def served_model(base):
    return json.loads(call(base, "GET", "/v1/models", None)[1])["data"][0]["id"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("reference")
    parser.add_argument("candidate")
    parser.add_argument("--only", help="run one case")
    parser.add_argument("--verbose", action="store_true", help="print both replies")
    arguments = parser.parse_args()
    bases = [arguments.reference.rstrip("/"), arguments.candidate.rstrip("/")]
    models = [served_model(base) for base in bases]
    probe = "<think>Héllo</think> {\"name\": 12}"
    spelled = [call(base, "POST", "/tokenize", {"prompt": probe})[1] for base in bases]
    tokens = [json.loads(reply).get("tokens") for reply in spelled]
    same_model = tokens[0] == tokens[1]
    differences = []
    for name, (method, path, body) in CASES.items():
        if arguments.only and name != arguments.only:
            continue
        replies = []
        for base, model in zip(bases, models):
            asked = body if body is None or "model" in body or path == "/abort_requests" else {"model": model, **body}
            status, raw = call(base, method, path, asked)
            replies.append((status, parse(raw)))
            differences += consistency(f"{name} at {base}", body, replies[-1][1])
        if arguments.verbose:
            for base, (status, reply) in zip(bases, replies):
                print(base, status, json.dumps(reply, ensure_ascii=False))
        differences += compare(name, body, *replies, same_model)
    for name, body in CONVERSATIONS.items() if same_model and not arguments.only else ():
        prompts = [json.loads(call(base, "POST", "/tokenize", body)[1]) for base in bases]
        if prompts[0].get("tokens") != prompts[1].get("tokens"):
            texts = [call(base, "POST", "/detokenize", {"tokens": p.get("tokens", [])})[1] for base, p in zip(bases, prompts)]
            differences.append(f"prompt of {name!r}: {texts[0]}, but {texts[1]} in the candidate")
    print(f"{len(CASES)} requests, same tokenizer: {'yes' if same_model else 'no'}, {len(differences)} differences")
    for difference in differences:
        print("-", difference)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
