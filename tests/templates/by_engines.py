"""Writes what real engines make of every conversation with every published template.

    python by_engines.py FILE

vLLM is asked by its server that only renders, with the template in each request; llama.cpp is
started once for each template. The test `templates_by_engines` of `polar-engine` reads the file and
holds Polar's own prompts against it; `cargo xtask test --suite engine-templates` does both.
"""

import concurrent.futures
import contextlib
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import conversations
import sources

sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))

import engines

Json = conversations.Json

# Requests at a time; the engines render on one core each.
AT_ONCE = 4


def asked(case: Json) -> Json:
    """The request of a chat client, whose arguments are text."""
    messages = [_with_text_arguments(message) for message in case["messages"]]
    request: Json = {"model": engines.tiny_model.NAME, "messages": messages}
    if case["tools"]:
        request["tools"] = case["tools"]
    if case["options"]:
        request["chat_template_kwargs"] = case["options"]
    return request


def _with_text_arguments(message: Json) -> Json:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def post(url: str, body: Json) -> Json:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return {"answer": json.load(answer)}
    except urllib.error.HTTPError as error:
        return {"refused": error.read().decode(errors="replace")}


def by_vllm(url: str, template: str, request: Json) -> Json:
    found = post(f"{url}/v1/chat/completions/render", {**request, "chat_template": template})
    return {"ids": found["answer"]["token_ids"]} if "answer" in found else found


def by_llama(url: str, request: Json) -> Json:
    found = post(f"{url}/apply-template", request)
    return {"text": found["answer"]["prompt"]} if "answer" in found else found


def specials_of(url: str) -> Json:
    """Special tokens as llama.cpp has them: those that a GGUF does not name are not none."""
    with urllib.request.urlopen(f"{url}/props", timeout=120) as answer:
        found = json.load(answer)
    return {name: found[name] for name in ("bos_token", "eos_token")}


def all_of(render: Callable[[Json], Json], requests: list[Json]) -> list[Json]:
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(render, requests))


@contextlib.contextmanager
def llama_with(template: str) -> Iterator[str | None]:
    """Its URL; none where it does not start with such a template."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(template)
        file.flush()
        try:
            running = engines.running("llama", more=["--chat-template-file", file.name])
            url = running.__enter__()
        except SystemExit as refused:
            print(refused, file=sys.stderr)
            yield None
            return
        with contextlib.ExitStack() as stack:
            stack.push(running)
            yield url


def main(file: Path) -> None:
    cases = [case for case in conversations.cases() if case["add_generation_prompt"]]
    requests = [asked(case) for case in cases]
    templates, specials = [], None
    # Or it refuses requests that offer tools.
    parser = engines.PARSERS["vllm"][:3]
    with engines.running("vllm-render", more=parser) as vllm:
        for name, source in sources.templates().items():
            entry: Json = {"name": name, "source": source}
            entry["vllm"] = all_of(lambda request: by_vllm(vllm, source, request), requests)
            with llama_with(source) as llama:
                entry["llama"] = llama and all_of(lambda request: by_llama(llama, request), requests)
                specials = specials or (llama and specials_of(llama))
            templates.append(entry)
    written = {
        "model": str(engines.model_folder()),
        "llama_specials": specials,
        "cases": [{**case, **request} for case, request in zip(cases, requests, strict=True)],
        "templates": templates,
    }
    file.write_text(json.dumps(written))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
