#!/usr/bin/env python3
"""Compares the simulator's reasoning and tool parsing with vLLM's own parser classes.

Run it with a Python that has vLLM (0.32) and transformers; no model or GPU is needed:

    vllm_parsers.py --write-policy raw.yaml
    polar simulate-engine --policy raw.yaml --port 8000 &
    vllm_parsers.py http://127.0.0.1:8000

The policy samples awkward texts as they stand. Each is asked for with and without tools and
thinking, in one piece and as a stream of small, middling and whole steps; what the simulator
answers must be what vLLM's qwen3 and hermes parsers make of the same ids. Exits with 1 when
anything differs.
"""

import argparse
import json
import pathlib
import sys
import urllib.request

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
THOUGHT = "<think>\nx\n</think>\n\n"
TEXTS = [
    "Hello  \n there \n\n",
    "<think>\n plan \n\n</think>\n\n answer \n",
    "plan\n</think>\n\nanswer",
    "<think>\nplan",
    "<think></think>",
    "<think>\n\n</think>\n\ndone",
    "<think>a</think>b</think>c",
    "no </thin",
    "answer <tool",
    "",
    THOUGHT + "text <think>again</think> more",
    THOUGHT + "🎉 a < b and <tool ü 漢字",
    THOUGHT + CALL % ("get_time", "{}"),
    "<think>\n" + CALL % ("a", "{}") + "\n</think>\n\nok",
    CALL % ("t", '{"city":"Oslo" , "n": 1.0}') + "\n trailing",
    '<tool_call>{"arguments": {"é": "ü\\u00e9"}, "name": "a"}</tool_call>',
    "I will look. \n" + CALL % ("get_time", '{"city": "Oslo"}'),
    THOUGHT + "Look.\n" + CALL % ("a", '{"deep": {"a": [1, {"b": "}"}]}}') + "\n" + CALL % ("b", '{"x": [1,2]}'),
    THOUGHT + CALL % ("get_time", '{"city": Oslo}'),
    THOUGHT + CALL % ("a", '"{\\"city\\": 1}"'),
    THOUGHT + CALL % ("a", '{"new": "line\\n</tool_call> inside"}'),
    THOUGHT + CALL % ("a", '{"f": 1e-7, "g": 1E5, "z": -0.0, "dup": 1, "dup": 2}'),
    THOUGHT + CALL % ("a", "null"),
    THOUGHT + '<tool_call>\n{"name": "get_weather", "',
    THOUGHT + '<tool_call>\n{"name": "get_weather", "arguments": {"a": "b',
    THOUGHT + '<tool_call>\n{"name": "a"}\n</tool_call>',
    THOUGHT + "<tool_call>\n\n</tool_call>",
    THOUGHT + '<tool_call>\n[{"name": "a", "arguments": {}}]\n</tool_call>',
]


def policy():
    """A policy that samples text N when the last message is `case N`. JSON is YAML."""
    rules = [
        {"name": f"case {index}", "when": {"last": {"matches": f"^case {index}$"}}, "reply": {"raw": text}}
        for index, text in enumerate(TEXTS)
    ]
    return json.dumps({"name": "raw", "rules": rules, "default": {"text": "?"}}, ensure_ascii=False, indent=1)


def ask(base, body):
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(base + "/v1/chat/completions", data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


class Reference:
    """vLLM's parsers over the simulator's tokenizer."""

    def __init__(self):
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser import ParserManager

        assets = pathlib.Path(__file__).parents[1] / "assets"
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_file(str(assets / "tokenizer.json")),
            eos_token="<|im_end|>",
            clean_up_tokenization_spaces=False,
        )
        self.request = lambda body: ChatCompletionRequest(model="m", **json.loads(json.dumps(body)))
        self.parser_class = ParserManager.get_parser(
            tool_parser_name="hermes", reasoning_parser_name="qwen3", enable_auto_tools=True
        )

    def parser(self, request, body):
        return self.parser_class(self.tokenizer, request.tools, chat_template_kwargs=body["chat_template_kwargs"])

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def whole(self, body, ids):
        request = self.request(body)
        parser = self.parser(request, body)
        text = self.decode(ids[:-1])
        reasoning, content, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
        calls = [(call.name, call.arguments) for call in calls or []] if "tools" in body else []
        return reasoning, content, calls, parser.count_reasoning_tokens(ids)

    def deltas(self, body, prompt, steps):
        """What is shown after each step of ids; the last holds the end of the turn."""
        request = self.request(body)
        parser = self.parser(request, body)
        shown, ids = "", []
        for index, step in enumerate(steps):
            last = index + 1 == len(steps)
            ids += step
            text = self.decode(ids[:-1] if last else ids)
            if not last:
                text = text.rstrip("\ufffd")
            message = parser.parse_delta(
                text[len(shown):], step, request, prompt_token_ids=None if index else prompt, finished=last
            )
            shown = text
            yield {} if message is None else json.loads(message.model_dump_json(exclude_unset=True))


def check_whole(reference, base, body):
    reply = json.loads(ask(base, body))
    choice = reply["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    counted = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
    got = (message["reasoning"], message["content"], calls, counted)
    wanted = reference.whole(body, choice["token_ids"])
    return [] if got == wanted else [("in one piece", wanted, got)]


def check_stream(reference, base, body, interval):
    raw = ask(base, {**body, "stream": True, "stream_interval": interval})
    events = [json.loads(event[len("data: "):]) for event in raw.strip().split("\n\n")[:-1]]
    choices = [event["choices"][0] for event in events[1:]]
    steps = [choice["token_ids"] for choice in choices]
    wanted = reference.deltas(body, events[0]["prompt_token_ids"], steps)
    for choice, expected in zip(choices, wanted):
        for delta in (choice["delta"], expected):
            for call in delta.get("tool_calls", []):
                call.pop("id", None)
        if choice["delta"] != expected:
            return [(f"streamed by {interval}", expected, choice["delta"])]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("simulator", nargs="?", help="its URL, playing the written policy")
    parser.add_argument("--write-policy", metavar="PATH", help="write the policy to play and end")
    arguments = parser.parse_args()
    if arguments.write_policy:
        pathlib.Path(arguments.write_policy).write_text(policy(), encoding="utf-8")
        return 0
    if not arguments.simulator:
        parser.error("give the simulator's URL")
    base, reference = arguments.simulator.rstrip("/"), Reference()
    checks, differences = 0, 0
    for index, text in enumerate(TEXTS):
        for tools in (True, False):
            for thinking in (True, False):
                body = {
                    "messages": [{"role": "user", "content": f"case {index}"}],
                    "return_token_ids": True,
                    "chat_template_kwargs": {"enable_thinking": thinking},
                    **({"tools": TOOLS} if tools else {}),
                }
                found = check_whole(reference, base, body)
                for interval in (1, 3, 1000):
                    found += check_stream(reference, base, body, interval)
                checks += 4
                differences += len(found)
                for how, wanted, got in found:
                    print(f"- {text!r} {how}, tools {tools}, thinking {thinking}\n  vllm      {wanted}\n  simulator {got}")
    print(f"{checks} comparisons, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
