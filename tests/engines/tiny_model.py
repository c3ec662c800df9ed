"""Makes a tiny Qwen3 that answers, reasons and calls a tool, from nothing but Python.

Half a million weights: random ones, plus for each token a preference for the tokens that may
follow it in a few short replies. So sampled at temperature 1 it mostly writes a sentence, a
thought or a call of `get_weather`, and sometimes nonsense, as real models do. The same weights
are written for llama.cpp (`model.gguf`) and for vLLM and SGLang (`model.safetensors` with its
tokenizer), so that all engines can be held against each other.
"""

import array
import collections
import json
import math
import random
import re
import struct
import sys
from pathlib import Path

NAME = "polar-tiny"
LAYERS, WIDTH, INNER, HEADS, KV_HEADS, HEAD = 2, 128, 256, 4, 2, 32
CONTEXT = 32768
ROPE_BASE = 10000.0
NORM_EPSILON = 1e-6
MERGES = 900
# How much more likely a token that may follow is than any other, as a logit.
PREFERENCE = 12.0

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, TURN, END_OF_TURN]
CALL = '\n{"name": "get_weather", "arguments": {"city": "'
CALL_END = '"}}\n'
# Matched before the byte pairs are merged, but shown as text.
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
MARKS += ["<think>", "</think>", CALL, CALL_END]

# The pattern of Qwen2, which llama.cpp knows under that name.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same without Unicode classes, which Python's `re` lacks; the corpus is ASCII.
ASCII_PATTERN = re.compile(
    r"[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CITIES = ["Oslo", "Paris", "Rome", "Tokyo"]
SKIES = ["sunny", "cloudy", "rainy", "windy"]
THOUGHTS = ["Let me look at the sky first", "I should check that before answering"]
GREETINGS = ["Hello", "Sure"]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}


def replies():
    """What the model prefers to write: a thought, then a call, a sentence or a greeting, each as
    the pieces its tokenizer will see. No token but the last of a thought is shared by two kinds
    of piece, so that what may follow a token says enough."""
    for thought in THOUGHTS:
        start = ["<think>", f"{thought}.", "</think>"]
        for city in CITIES:
            yield [*start, "<tool_call>", CALL, city, CALL_END, "</tool_call>", END_OF_TURN]
            for sky in SKIES:
                yield [*start, f"The weather in {city} is {sky} today!", END_OF_TURN]
        for greeting in GREETINGS:
            yield [*start, f"{greeting}, how can you use my help?", END_OF_TURN]


def corpus(template: str):
    for reply in replies():
        yield "".join(piece for piece in reply if piece not in SPECIAL + MARKS)
    yield from [json.dumps(TOOL)] * 20
    yield from re.findall(r"'([^']*)'", template.replace("\\n", "\n")) * 5
    yield from ["user\nsystem\nassistant\n", "How is the weather in ", "Say hello."] * 20


def byte_letters():
    """GPT-2's printable letter for each byte, in the order its vocabulary has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(plain))
    return letters


LETTERS = byte_letters()


def as_letters(text: str) -> str:
    return "".join(LETTERS[byte] for byte in text.encode())


class Tokenizer:
    """Byte-level BPE, trained on the corpus."""

    def __init__(self, template: str, more_special: list[str] = ()):
        words = collections.Counter()
        for text in corpus(template):
            words.update(as_letters(word) for word in ASCII_PATTERN.findall(text))
        self.merges = train({tuple(word): count for word, count in words.items()})
        tokens = list(LETTERS.values()) + ["".join(pair) for pair in self.merges]
        self.added_from = len(tokens)
        self.special = [*SPECIAL, *more_special]
        self.tokens = tokens + SPECIAL + MARKS + list(more_special)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.ranks = {pair: rank for rank, pair in enumerate(self.merges)}

    def encode(self, pieces: list[str]) -> list[int]:
        ids = []
        for piece in pieces:
            if piece in SPECIAL or piece in MARKS:
                ids.append(self.ids[piece])
                continue
            for word in ASCII_PATTERN.findall(piece):
                ids += [self.ids[part] for part in self.merge(tuple(as_letters(word)))]
        return ids

    def merge(self, parts: tuple) -> tuple:
        while True:
            pairs = [pair for pair in zip(parts, parts[1:]) if pair in self.ranks]
            if not pairs:
                return parts
            parts = join(parts, min(pairs, key=self.ranks.__getitem__))


def train(words: dict) -> list[tuple[str, str]]:
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for parts, count in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = {join(parts, best): count for parts, count in words.items()}
    return merges


def join(parts: tuple, pair: tuple) -> tuple:
    out, i = [], 0
    while i < len(parts):
        if parts[i : i + 2] == pair:
            out.append("".join(pair))
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return tuple(out)


def weights(tokenizer: Tokenizer, seed: int) -> dict:
    """Tensors under Hugging Face's names: (shape, values row by row)."""
    source = random.Random(seed)

    def normal(rows: int, columns: int, deviation: float):
        values = (source.gauss(0.0, deviation) for _ in range(rows * columns))
        return (rows, columns), array.array("f", values)

    def ones(length: int):
        return (length,), array.array("f", [1.0] * length)

    vocabulary = len(tokenizer.tokens)
    inward = 1 / math.sqrt(WIDTH)
    tensors = {"model.embed_tokens.weight": normal(vocabulary, WIDTH, 1.0)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = ones(WIDTH)
        tensors[f"{at}.self_attn.q_proj.weight"] = normal(HEADS * HEAD, WIDTH, inward)
        tensors[f"{at}.self_attn.k_proj.weight"] = normal(KV_HEADS * HEAD, WIDTH, inward)
        tensors[f"{at}.self_attn.v_proj.weight"] = normal(KV_HEADS * HEAD, WIDTH, inward)
        # Small, so that the last token outweighs its context, but does not hide it.
        tensors[f"{at}.self_attn.o_proj.weight"] = normal(WIDTH, HEADS * HEAD, 0.2 * inward)
        tensors[f"{at}.self_attn.q_norm.weight"] = ones(HEAD)
        tensors[f"{at}.self_attn.k_norm.weight"] = ones(HEAD)
        tensors[f"{at}.post_attention_layernorm.weight"] = ones(WIDTH)
        tensors[f"{at}.mlp.gate_proj.weight"] = normal(INNER, WIDTH, inward)
        tensors[f"{at}.mlp.up_proj.weight"] = normal(INNER, WIDTH, inward)
        tensors[f"{at}.mlp.down_proj.weight"] = normal(WIDTH, INNER, 0.2 / math.sqrt(INNER))
    tensors["model.norm.weight"] = ones(WIDTH)
    tensors["lm_head.weight"] = normal(vocabulary, WIDTH, 0.5 * inward)
    prefer_replies(tensors, tokenizer)
    return tensors


def prefer_replies(tensors: dict, tokenizer: Tokenizer) -> None:
    """Turns the head's row of each token towards the tokens it may follow."""
    follows = {}
    start = tokenizer.encode(["assistant\n"])[-1]
    for reply in replies():
        ids = [start, *tokenizer.encode(reply)]
        for one, next_one in zip(ids, ids[1:]):
            follows[one, next_one] = None
    embeddings, head = tensors["model.embed_tokens.weight"][1], tensors["lm_head.weight"][1]
    for one, next_one in follows:
        row = embeddings[one * WIDTH : (one + 1) * WIDTH]
        # Behind the last norm a token's own direction has length sqrt(WIDTH).
        scale = PREFERENCE / math.sqrt(WIDTH) / math.sqrt(sum(x * x for x in row))
        for i, x in enumerate(row):
            head[next_one * WIDTH + i] += scale * x


def write_safetensors(path: Path, tensors: dict) -> None:
    header, offset = {}, 0
    for name, (shape, values) in tensors.items():
        end = offset + 4 * len(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            values.tofile(out)


GGUF_NAMES = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
]
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
GGUF_ALIGNMENT = 32


def gguf_metadata(tokenizer: Tokenizer, template: str) -> list:
    normal, control, user_defined = 1, 3, 4
    kinds = [normal] * tokenizer.added_from + [control] * len(SPECIAL) + [user_defined] * len(MARKS)
    return [
        ("general.architecture", STRING, "qwen3"),
        ("general.name", STRING, NAME),
        ("general.file_type", UINT32, 0),
        ("qwen3.block_count", UINT32, LAYERS),
        ("qwen3.context_length", UINT32, CONTEXT),
        ("qwen3.embedding_length", UINT32, WIDTH),
        ("qwen3.feed_forward_length", UINT32, INNER),
        ("qwen3.attention.head_count", UINT32, HEADS),
        ("qwen3.attention.head_count_kv", UINT32, KV_HEADS),
        ("qwen3.attention.key_length", UINT32, HEAD),
        ("qwen3.attention.value_length", UINT32, HEAD),
        ("qwen3.attention.layer_norm_rms_epsilon", FLOAT32, NORM_EPSILON),
        ("qwen3.rope.freq_base", FLOAT32, ROPE_BASE),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "qwen2"),
        ("tokenizer.ggml.tokens", (ARRAY, STRING), tokenizer.tokens),
        ("tokenizer.ggml.token_type", (ARRAY, INT32), kinds),
        ("tokenizer.ggml.merges", (ARRAY, STRING), [" ".join(pair) for pair in tokenizer.merges]),
        ("tokenizer.ggml.eos_token_id", UINT32, tokenizer.ids[END_OF_TURN]),
        ("tokenizer.ggml.padding_token_id", UINT32, tokenizer.ids[END_OF_TEXT]),
        ("tokenizer.ggml.add_bos_token", BOOL, False),
        ("tokenizer.chat_template", STRING, template),
    ]


def gguf_value(kind, value) -> bytes:
    if isinstance(kind, tuple):
        head = struct.pack("<IQ", kind[1], len(value))
        return head + b"".join(gguf_value(kind[1], item) for item in value)
    if kind == STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)


def write_gguf(path: Path, tokenizer: Tokenizer, template: str, tensors: dict) -> None:
    metadata = gguf_metadata(tokenizer, template)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, kind, value in metadata:
        code = kind[0] if isinstance(kind, tuple) else kind
        head += gguf_value(STRING, key) + struct.pack("<I", code) + gguf_value(kind, value)
    offset = 0
    for name, (shape, values) in tensors.items():
        for ours, theirs in GGUF_NAMES:
            name = name.replace(ours, theirs)
        # Dimensions are listed from the innermost; type 0 is a 32-bit float.
        head += gguf_value(STRING, name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", 0, offset)
        offset += 4 * len(values)
        offset += -offset % GGUF_ALIGNMENT
    with path.open("wb") as out:
        out.write(head + b"\0" * (-len(head) % GGUF_ALIGNMENT))
        for _, values in tensors.values():
            values.tofile(out)
            out.write(b"\0" * (-4 * len(values) % GGUF_ALIGNMENT))


def write_tokenizer(folder: Path, tokenizer: Tokenizer, template: str) -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    byte_level["use_regex"] = False
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated"}
    split["invert"] = False
    added = []
    for token in tokenizer.tokens[tokenizer.added_from :]:
        flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
        entry = {"id": tokenizer.ids[token], "content": token, **flags}
        added.append({**entry, "special": token in tokenizer.special})
    vocabulary = {token: i for i, token in enumerate(tokenizer.tokens[: tokenizer.added_from])}
    write_json(folder / "tokenizer.json", {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in tokenizer.merges],
        },
    })
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    })
    (folder / "chat_template.jinja").write_text(template)


def write_configuration(folder: Path, tokenizer: Tokenizer) -> None:
    stop, pad = tokenizer.ids[END_OF_TURN], tokenizer.ids[END_OF_TEXT]
    write_json(folder / "config.json", {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(tokenizer.tokens),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": stop,
        "pad_token_id": pad,
    })
    write_json(folder / "generation_config.json", {
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "eos_token_id": [stop, pad],
        "pad_token_id": pad,
    })


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def make(folder: Path, seed: int = 0) -> Path:
    """Writes the model into `folder`, unless it is there already."""
    template = Path(__file__).with_name("chat_template.jinja").read_text()
    recipe = Path(__file__).read_text() + template + str(seed)
    stamp = folder / "recipe"
    if stamp.exists() and stamp.read_text() == recipe:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(template)
    tensors = weights(tokenizer, seed)
    write_safetensors(folder / "model.safetensors", tensors)
    write_gguf(folder / "model.gguf", tokenizer, template, tensors)
    write_tokenizer(folder, tokenizer, template)
    write_configuration(folder, tokenizer)
    stamp.write_text(recipe)
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
