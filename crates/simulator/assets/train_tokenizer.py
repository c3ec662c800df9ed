"""Trains the simulator's tokenizer: byte-level BPE with Qwen2's way of splitting text.

Usage: pip install tokenizers && python train_tokenizer.py

The corpus is text that anybody has: docstrings and code of Python's standard library,
and generated lines of the kind agents write (shell output, JSON tool calls, diffs).
The vocabulary has 4096 ids. The ChatML marks are special tokens; the marks of
reasoning and tool calls are ordinary added tokens, as in Qwen3.
"""

import ast
import json
import pathlib
import random
import sysconfig

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, trainers

VOCABULARY = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = [
    "<think>", "</think>",
    "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
]
# Contractions, words with one leading non-letter, single digits, punctuation runs,
# line ends, and spaces, the last space left to the word that follows.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def standard_library(limit):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py"))[:limit]:
        source = path.read_text(encoding="utf-8", errors="ignore")
        yield source
        # Docstrings once more, so that English weighs as much as code.
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield from [text] * 3


def agent_lines(count):
    chance = random.Random(0)
    words = (
        "the test fails because function returns wrong value when list is empty I will read "
        "file first then edit it and run tests again you are an assistant use tools to fix "
        "error in module please look at output command result expected actual change line"
    ).split()
    names = ["bash", "read", "edit", "write", "grep", "glob", "search", "get_weather"]
    files = ["src/main.py", "tests/test_stats.py", "/workspace/README.md", "lib/core/parse.rs"]

    def sentence():
        return " ".join(chance.choice(words) for _ in range(chance.randint(4, 14)))

    for _ in range(count):
        path = chance.choice(files)
        arguments = {
            "command": f"cd /workspace && python3 -m unittest -v {path}",
            "description": sentence(),
            "file_path": path,
            "path": path,
            "old_string": f"    return {chance.choice(words)}\n",
            "new_string": f"    return {chance.choice(words)} + 1\n",
            "timeout": chance.randint(1, 9999),
        }
        keys = chance.sample(sorted(arguments), chance.randint(1, 3))
        call = {"name": chance.choice(names), "arguments": {key: arguments[key] for key in keys}}
        schema = {
            "type": "function",
            "function": {
                "name": chance.choice(names),
                "description": sentence(),
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string", "description": sentence()} for key in keys},
                    "required": keys,
                    "additionalProperties": False,
                },
            },
        }
        yield json.dumps(call) + "\n"
        yield json.dumps(call, separators=(",", ":")) + "\n"
        yield json.dumps(schema) + "\n"
        yield sentence().capitalize() + ".\n"
        yield (
            f'Traceback (most recent call last):\n  File "/workspace/{path}", line {chance.randint(1, 99)}, '
            f"in {chance.choice(words)}\nAssertionError: {chance.random():.2f} != {chance.randint(0, 9)}\n"
        )


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = list(standard_library(160)) + list(agent_lines(3000))
    tokenizer.train_from_iterator(corpus, trainer)
    # After training, so that they sit at the end of the vocabulary, as in Qwen.
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    target = pathlib.Path(__file__).with_name("tokenizer.json")
    compact = json.loads(tokenizer.to_str())
    target.write_text(json.dumps(compact, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    sample = "".join(corpus[:40])
    print(target.stat().st_size, "bytes;", len(sample) / len(tokenizer.encode(sample).ids), "characters a token")


if __name__ == "__main__":
    main()
