# SPDX-License-Identifier: Apache-2.0
"""A model with the KV cache of Llama-3.1-8B (131,072 bytes a token) and little else, made on the spot.

The weights are random with a fixed seed, and large enough that the next token depends on the whole prompt.
"""

import json
import os
import pathlib

import torch
from once import alone
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, HEAD_DIM, VOCABULARY = 32, 256, 8, 128, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "attention_bias": False,
}
BYTES_A_TOKEN = LAYERS * 2 * HEADS * HEAD_DIM * 2


def with_words(folder):
    """The same model with a tokenizer, whose words are w0, w1 and so on."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = pathlib.Path(folder)
    make(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}))
    return folder


def make(folder):
    """Writes the model into a folder, unless it is there; returns the folder."""
    folder = pathlib.Path(folder)
    with alone(folder):
        if not (folder / "config.json").exists():
            folder.mkdir(exist_ok=True)
            _write(folder)
    return folder


def _write(folder):
    generator = torch.Generator().manual_seed(22)

    def weight(out, into, gain=1.0):
        return (torch.randn(out, into, generator=generator) * gain / into ** 0.5).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": weight(VOCABULARY, HIDDEN, HIDDEN ** 0.5),
               "lm_head.weight": weight(VOCABULARY, HIDDEN, 4.0), "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, out, into, gain in (("q_proj", HEADS * HEAD_DIM, HIDDEN, 2.0), ("k_proj", HEADS * HEAD_DIM, HIDDEN, 2.0),
                                      ("v_proj", HEADS * HEAD_DIM, HIDDEN, 1.0), ("o_proj", HIDDEN, HEADS * HEAD_DIM, 1.0)):
            tensors[f"{at}.self_attn.{name}.weight"] = weight(out, into, gain)
        for name in ("gate_proj", "up_proj", "down_proj"):
            tensors[f"{at}.mlp.{name}.weight"] = weight(HIDDEN, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    new = folder / "config.json.new"
    new.write_text(json.dumps(CONFIG))
    os.replace(new, folder / "config.json")
