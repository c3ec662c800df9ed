"""Writes what `transformers` makes of every conversation with every published template.

    python expected.py FILE

The test `published_templates` of `polar-tokens` reads the file and holds Polar's own rendering
against it; `cargo xtask test --suite templates` does both.
"""

import datetime
import json
import sys
from pathlib import Path

import jinja2
import transformers
from tokenizers import Tokenizer, models
from transformers.utils import chat_template_utils

import conversations
import sources

SPECIALS = {
    "bos_token": "<|text:begin|>",
    "eos_token": "<|text:end|>",
    "unk_token": "<|unknown|>",
    "pad_token": "<|pad|>",
}
NOW = datetime.datetime(2026, 3, 4, 15, 6, 7)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return NOW


def rendered(
    tokenizer: transformers.PreTrainedTokenizerFast, case: conversations.Json
) -> conversations.Json:
    try:
        text = tokenizer.apply_chat_template(
            case["messages"],
            tools=case["tools"],
            add_generation_prompt=case["add_generation_prompt"],
            tokenize=False,
            **case["options"],
        )
    except jinja2.exceptions.TemplateError as error:
        own_words = type(error) is jinja2.exceptions.TemplateError
        return {"refused": str(error), "own_words": own_words}
    except Exception as error:
        return {"refused": repr(error), "own_words": False}
    return {"text": text}


def main(file: Path) -> None:
    chat_template_utils.datetime = Clock  # type: ignore[attr-defined]
    cases = conversations.cases()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), **SPECIALS
    )
    sets: dict[str, dict[str, str]] = {
        name: {"default": source} for name, source in sources.templates().items()
    }
    sets["two templates"] = {
        "default": sets["Qwen-Qwen2.5-7B-Instruct"]["default"],
        "tool_use": sets["NousResearch-Hermes-3-Llama-3.1-8B-tool_use"]["default"],
    }
    templates = []
    for name, named in sets.items():
        tokenizer.chat_template = named if len(named) > 1 else named["default"]
        expected = [rendered(tokenizer, case) for case in cases]
        templates.append({"name": name, "sources": named, "expected": expected})
    written = {
        "transformers": transformers.__version__,
        "now": NOW.isoformat(),
        "specials": tokenizer.special_tokens_map,
        "cases": cases,
        "templates": templates,
    }
    file.write_text(json.dumps(written))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
