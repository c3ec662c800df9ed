"""A Qwen3 of under a million parameters that calls tools in the right form, and at random.

It is made from nothing: a tokenizer fitted to the requests, random weights, and a minute of
supervised training on conversations in which nearly every tool was drawn by lot. So it knows
how to call a tool, and hardly which: that is for RL to teach.

It writes arguments without blanks, and the chat template writes what it is given as an object
with blanks. So a prompt that an engine renders from messages does not hold the ids that were
sampled: what is told of models that spell JSON otherwise than their templates, in small.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from problems import ASKED, CITIES, HELD_OUT_CITIES, TOOLS

TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
VOCABULARY = 512
STEPS, BATCH, RATE = 160, 16, 4e-3
TURNS = 6
KNOWN = 0.3
"""Share of the calls whose tool is the right one; that of the others is drawn by lot."""
WORDS_AND_BETWEEN = Regex(r" ?[A-Za-z_]+|[^A-Za-z_]+")
RECIPE = Path(__file__).read_text() + json.dumps([ASKED, CITIES, HELD_OUT_CITIES]) + TEMPLATE


def make(folder: Path) -> Path:
    """The model in ``folder``, made unless it is there."""
    stamp = folder / "recipe"
    if not stamp.exists() or stamp.read_text() != RECIPE:
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        tokenizer = fitted_tokenizer()
        model = random_model(tokenizer)
        teach_the_form(model, tokenizer)
        tokenizer.save_pretrained(folder)
        save(model, folder)
        stamp.write_text(RECIPE)
    return folder


def load(folder: Path) -> Qwen3ForCausalLM:
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """The weights as a checkpoint of their own."""
    logging.disable_progress_bar()
    model.save_pretrained(folder)


def fitted_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE; marks are tokens of their own, special ones are not shown as text.

    What stands between two words is one token where it comes often, as the quotes, colons and
    braces of a call do: replies are short.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS_AND_BETWEEN, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [words.format(city) for words in every_wording() for city in all_cities()]
    corpus += [call_of(name, city) for name in TOOLS for city in all_cities()] * 4
    corpus += ["system\nTools: " + " ".join(TOOLS), "user\n", "assistant\n", "tool\ndone"] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in MARKS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def all_cities() -> list[str]:
    return CITIES + HELD_OUT_CITIES


def every_wording() -> list[str]:
    return [words for wordings in ASKED.values() for words in wordings]


def arguments_of(city: str, blank: str = "") -> str:
    return '{"city":' + blank + json.dumps(city) + "}"


def call_of(name: str, city: str) -> str:
    return '\n{"name": "' + name + '", "arguments": ' + arguments_of(city) + "}\n"


def random_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    # The head is not tied to the embeddings: vLLM on CPU would go on with the old head.
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def teach_the_form(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    source = random.Random(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    for step in range(STEPS):
        rate = RATE * min(1.0, (step + 1) / 10) * max(0.05, 1 - step / STEPS)
        for group in optimiser.param_groups:
            group["lr"] = rate
        chats = [chat(source, tokenizer) for _ in range(BATCH)]
        width = max(len(ids) for ids, _ in chats)
        padding = [[tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in chats]
        ids = torch.tensor([own + more for (own, _), more in zip(chats, padding, strict=True)])
        place = torch.arange(width)
        first = torch.tensor([[at] for _, at in chats])
        ends = torch.tensor([[len(own)] for own, _ in chats])
        labels = ids.masked_fill((place < first) | (place >= ends), -100)
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"  form {step}: loss {loss.item():.3f}", file=sys.stderr, flush=True)


def chat(source: random.Random, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], int]:
    """A conversation whose tools were drawn by lot, and from where on it is to be learnt.

    In every second one the calls of the past are spelled as templates spell them: the model
    shall write its own way behind them too, and only the last call is learnt.
    """
    blank = source.choice(["", " "])
    messages: list[dict] = []
    call: dict = {}
    for turn in range(source.randint(1, TURNS)):
        if turn:
            messages.append({"role": "assistant", "tool_calls": [{"function": call}]})
            messages.append({"role": "tool", "content": "done"})
        tool, city = source.choice(TOOLS), source.choice(all_cities())
        messages.append({"role": "user", "content": source.choice(ASKED[tool]).format(city)})
        name = tool if source.random() < KNOWN else source.choice(TOOLS)
        call = {"name": name, "arguments": arguments_of(city, blank)}
    tools = [{"type": "function", "function": {"name": name}} for name in TOOLS]
    prompt = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False
    )
    reply = "<tool_call>" + call_of(name, city) + "</tool_call><|im_end|>"
    before = tokenizer.encode(prompt, add_special_tokens=False)
    ids = before + tokenizer.encode(reply, add_special_tokens=False)
    return ids, len(before) if blank else 0


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
