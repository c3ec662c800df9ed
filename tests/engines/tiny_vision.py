"""Makes a tiny Qwen2-VL that sees pictures, and writes what the tiny Qwen3 writes.

The language model is that of `tiny_model`, without the norms that Qwen2 lacks; the eyes are
random. So what it says does not fit what it is shown, but depends on it.
"""

import array
import math
import random
import sys
from pathlib import Path

import tiny_model
from tiny_model import CONTEXT, END_OF_TEXT, END_OF_TURN, HEAD, HEADS, INNER, KV_HEADS, LAYERS
from tiny_model import NORM_EPSILON, ROPE_BASE, WIDTH, Tokenizer, write_json

NAME = "polar-tiny-vision"
START, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
SPECIAL = [START, END, IMAGE, VIDEO]
# Of the eyes: a patch has 14 by 14 pixels, and 2 by 2 patches become a token.
SIGHT, SIGHT_HEADS, PATCH, MERGED, FRAMES = 32, 2, 14, 2, 2
SIDE = PATCH * MERGED


def weights(tokenizer: Tokenizer, seed: int) -> dict:
    tensors = {
        name: tensor
        for name, tensor in tiny_model.weights(tokenizer, seed).items()
        if not name.endswith(("q_norm.weight", "k_norm.weight"))
    }
    source = random.Random(seed + 1)

    def normal(*shape: int):
        deviation = 1 / math.sqrt(math.prod(shape[1:]))
        values = (source.gauss(0.0, deviation) for _ in range(math.prod(shape)))
        return shape, array.array("f", values)

    def constant(length: int, value: float):
        return (length,), array.array("f", [value] * length)

    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn"
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{at}.{name}_proj.bias"] = constant(heads * HEAD, 0.0)

    def linear(name: str, rows: int, columns: int):
        tensors[f"visual.{name}.weight"] = normal(rows, columns)
        tensors[f"visual.{name}.bias"] = constant(rows, 0.0)

    def norm(name: str):
        tensors[f"visual.{name}.weight"] = constant(SIGHT, 1.0)
        tensors[f"visual.{name}.bias"] = constant(SIGHT, 0.0)

    tensors["visual.patch_embed.proj.weight"] = normal(SIGHT, 3, FRAMES, PATCH, PATCH)
    norm("blocks.0.norm1")
    linear("blocks.0.attn.qkv", 3 * SIGHT, SIGHT)
    linear("blocks.0.attn.proj", SIGHT, SIGHT)
    norm("blocks.0.norm2")
    linear("blocks.0.mlp.fc1", 4 * SIGHT, SIGHT)
    linear("blocks.0.mlp.fc2", SIGHT, 4 * SIGHT)
    norm("merger.ln_q")
    linear("merger.mlp.0", SIGHT * MERGED**2, SIGHT * MERGED**2)
    linear("merger.mlp.2", WIDTH, SIGHT * MERGED**2)
    return tensors


def write_configuration(folder: Path, tokenizer: Tokenizer) -> None:
    ids = tokenizer.ids
    stop, pad = ids[END_OF_TURN], ids[END_OF_TEXT]
    rope = {"rope_type": "default", "rope_theta": ROPE_BASE, "mrope_section": [4, 6, 6]}
    write_json(folder / "config.json", {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "vocab_size": len(tokenizer.tokens),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": NORM_EPSILON,
        "rope_parameters": rope,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": stop,
        "pad_token_id": pad,
        "vision_start_token_id": ids[START],
        "vision_end_token_id": ids[END],
        "image_token_id": ids[IMAGE],
        "video_token_id": ids[VIDEO],
        "vision_config": {
            "model_type": "qwen2_vl_vision",
            "depth": 1,
            "embed_dim": SIGHT,
            "hidden_size": WIDTH,
            "hidden_act": "quick_gelu",
            "mlp_ratio": 4,
            "num_heads": SIGHT_HEADS,
            # The engines name it each in its own way.
            "in_channels": 3,
            "in_chans": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGED,
            "temporal_patch_size": FRAMES,
        },
    })
    write_json(folder / "generation_config.json", {
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "eos_token_id": [stop, pad],
        "pad_token_id": pad,
    })
    write_json(folder / "preprocessor_config.json", {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "size": {"shortest_edge": SIDE**2, "longest_edge": 16 * SIDE**2},
        "patch_size": PATCH,
        "temporal_patch_size": FRAMES,
        "merge_size": MERGED,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    })


def make(folder: Path, seed: int = 0) -> Path:
    """Writes the model into `folder`, unless it is there already."""
    template = Path(__file__).with_name("chat_template_vision.jinja").read_text()
    sources = [Path(__file__), Path(tiny_model.__file__)]
    recipe = "".join(source.read_text() for source in sources) + template + str(seed)
    stamp = folder / "recipe"
    if stamp.exists() and stamp.read_text() == recipe:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(template, SPECIAL)
    tiny_model.write_safetensors(folder / "model.safetensors", weights(tokenizer, seed))
    tiny_model.write_tokenizer(folder, tokenizer, template)
    write_configuration(folder, tokenizer)
    stamp.write_text(recipe)
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
