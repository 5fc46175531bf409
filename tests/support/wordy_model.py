"""A model for whole services that loads in a moment: SmolLM2's tokenizer and chat template over small random weights.

Its answers are words, mean nothing, differ by prompt and do not go round in circles. Some of them end by themselves. A
chat that asks for reasoning gets it, until its budget is used up. Its tensors have the types that SmolLM2's have, so
that services compute it with the same kernels.
"""

import re
import tempfile
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import gguf
import lora_folders
import numpy as np
from gguf.quants import quantize
from huggingface_oracle import smollm2_path

from legato_engine.weights import config_file
from legato_protocol.model_files import gguf_header

LAYERS, WIDTH, INNER = 2, 64, 128
HEADS, KV_HEADS, HEAD = 2, 1, 64
FOLDER = Path(__file__).parents[2] / "build" / "wordy-model"
SAID = """
apple autumn baker barley basket bread bridge butter candle carpet castle cedar cherry circle clock cloud coast copper
corner cotton dance desert dinner dragon dream eagle early engine evening family farmer feather field finger flower
forest fountain garden gentle glass golden grass guitar harbor harvest honey horse island jacket journey kitchen
ladder lake lantern lemon letter light market meadow melody middle mirror morning mountain music needle north ocean
olive orange orchard paper pasture pepper piano planet pocket quiet rabbit rain river road saddle sailor salt shadow
silver simple smoke song south spring square stone storm summer sugar table thunder timber tower travel valley velvet
village violin water window winter wolf wooden yellow young
"""
END_PARAMETER = "Ċ</parameter>Ċ"  # Ċ is a line feed in a vocabulary
MARKS = {"<reponame>": "<think>", "<filename>": "</think>"}  # it never says them, nor those of formats of calls
MARKS |= {"<gh_stars>": "<|start|>", "<issue_start>": "<|channel|>", "<issue_comment>": "<|message|>"}
MARKS |= {"<issue_closed>": "<|constrain|>", "<jupyter_start>": "<|end|>", "<jupyter_text>": "<|call|>"}
MARKS |= {"<jupyter_code>": "<|return|>", "<jupyter_output>": END_PARAMETER}
MARKS |= {"<repo_name>": "</arg_value>", "<file_sep>": "<|tool_call|>", "<jupyter_script>": "<｜tool▁calls▁end｜>"}
MARKS |= {"<empty_output>": "[TOOL_CALLS]"}
ENDS_OF_TEXTS = ("<|end|>", END_PARAMETER, "</arg_value>", "<｜tool▁calls▁end｜>")
LIFTED = 26  # a request's bias for these, with which they are said now and then, too
REASONING = (
    "{% if enable_thinking is defined %}{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
ENDS = {"<|im_end|>": 1.0, '"': 4.0, "]": 2.0, "}": 2.0}  # said now and then, so that what began ends; their biases
STRUCTURE, BARELY = re.compile(r'[{}\[\]":,0-9]+'), -8.0  # rather than blanks, where a grammar allows no words
NEVER = -15.0  # the bias of all other tokens: a sample is far from the next token's, whatever order sums have
CONSTANT, TIMES = 0, 5.0  # the place of the hidden state that holds the same for all tokens: weights of it are biases
SPREAD = 0.5  # of the rows of words


def path() -> Path:
    """Its GGUF file, written once per machine."""
    digest = sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    if not (made := FOLDER / f"{digest}.gguf").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=FOLDER, delete=False) as draft:
            pass
        _write(Path(draft.name))
        Path(draft.name).rename(made)
    return made


def write_adapter(folder: Path, seed: int, rank: int = 4) -> None:
    """A LoRA adapter of it, with which its answers are others."""
    options: Any = {"targets": ("q_proj", "down_proj"), "lora_alpha": rank / 2}
    lora_folders.write(folder, config_file.read(path()), seed=seed, rank=rank, **options)


def _write(file: Path) -> None:
    with smollm2_path().open("rb") as source, mmap(source.fileno(), 0, access=ACCESS_READ) as data:
        said = gguf_header.parse(data).metadata
    tokens: Any = said["tokenizer.ggml.tokens"]
    names = [MARKS.get(token, token) for token in tokens]
    types = [1 if "Ċ" in name else kind for name, kind in zip(names, said["tokenizer.ggml.token_type"], strict=True)]
    writer = gguf.GGUFWriter(file, "llama")
    values: dict[str, Any] = {
        "block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": INNER, "head_count": HEADS,
        "head_count_kv": KV_HEADS, "key_length": HEAD, "value_length": HEAD, "rope_dimension_count": HEAD,
        "context_length": 8192, "layer_norm_rms_eps": 1e-5, "tokenizer_model": "gpt2", "tokenizer_pre": "smollm",
        "token_list": names, "token_types": types,
        "token_merges": said["tokenizer.ggml.merges"], "bos_token_id": 1, "eos_token_id": 2,
        "chat_template": str(said["tokenizer.chat_template"]) + REASONING,
    }  # fmt: skip
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    for name, weights in _weights(tokens).items():
        if weights.ndim == 1:
            writer.add_tensor(name, weights)
        else:
            kind = gguf.GGMLQuantizationType.Q4_1 if name.startswith("blk") else gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(tokens: list[str]) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    chance = np.random.default_rng(7)

    def drawn(outputs: int, inputs: int, spread: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (chance.standard_normal((outputs, inputs)) * spread).astype(np.float32)

    weights = {"token_embd.weight": drawn(len(tokens), WIDTH, 1.0), "output_norm.weight": np.ones(WIDTH, np.float32)}
    weights["output_norm.weight"][CONSTANT] = TIMES
    weights["token_embd.weight"][:, CONSTANT] = 1
    for layer in range(LAYERS):
        made = {"attn_q": drawn(HEADS * HEAD, WIDTH, 0.25), "attn_k": drawn(KV_HEADS * HEAD, WIDTH, 0.25)}
        made |= {"attn_v": drawn(KV_HEADS * HEAD, WIDTH, 0.25), "attn_output": drawn(WIDTH, HEADS * HEAD, 0.15)}
        made |= {"ffn_gate": drawn(INNER, WIDTH, 0.15), "ffn_up": drawn(INNER, WIDTH, 0.15)}
        made["ffn_down"] = drawn(WIDTH, INNER, 0.15)
        made |= dict.fromkeys(("attn_norm", "ffn_norm"), np.ones(WIDTH, np.float32))
        for name in ("attn_output", "ffn_down"):
            made[name][CONSTANT] = 0
        weights |= {f"blk.{layer}.{name}.weight": each for name, each in made.items()}
    head = weights["output.weight"] = drawn(len(tokens), WIDTH, SPREAD / 5)
    head[:, CONSTANT] = NEVER
    head[[id for id, token in enumerate(tokens) if STRUCTURE.fullmatch(token)], CONSTANT] = BARELY
    words = [tokens.index(f"Ġ{word}") for word in SAID.split() if f"Ġ{word}" in tokens]
    ends = [tokens.index(token) for token in ENDS]
    head[words + ends] = drawn(len(words) + len(ends), WIDTH, SPREAD)
    head[words] -= weights["token_embd.weight"][words] / 4  # seldom twice in a row
    head[words, CONSTANT] = 0
    head[ends, CONSTANT] = list(ENDS.values())
    return weights
