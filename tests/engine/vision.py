# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen2-VL with random weights, made on the spot: its answers depend on the image, because no weight is small."""

import json
import os
import pathlib

from once import alone

HIDDEN, VOCABULARY = 256, 512
START, END, PAD, VIDEO = 500, 501, 502, 503
SPECIAL = {START: "<|vision_start|>", END: "<|vision_end|>", PAD: "<|image_pad|>", VIDEO: "<|video_pad|>", 504: "<|endoftext|>"}
TEXT = {
    "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_theta": 10000.0, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}, "bos_token_id": 504, "eos_token_id": 504}
CONFIG = {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "torch_dtype": "bfloat16", **TEXT,
    "image_token_id": PAD, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END, "vision_token_id": 505,
    "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": HIDDEN, "num_heads": 4, "mlp_ratio": 2, "patch_size": 14,
                      "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "in_chans": 3}}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "patch_size": 14, "temporal_patch_size": 2,
    "merge_size": 2, "min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 256, "do_resize": True, "do_rescale": True, "do_normalize": True,
    "do_convert_rgb": True, "rescale_factor": 1 / 255, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3,
    "size": {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 256}}


def prompt(chance, images=1, before=8, after=4):
    """Tokens of a prompt with so many images: random text before the first one, and after each."""
    def words(count):
        return [chance.randrange(1, 400) for _ in range(count)]

    tokens = words(before)
    for _ in range(images):
        tokens += [START, PAD, END] + words(after)
    return tokens


def _tokenizer(folder):
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(VOCABULARY) if i not in SPECIAL} | {text: i for i, text in SPECIAL.items()}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "additional_special_tokens": list(SPECIAL.values())[:4]}))


def make(folder):
    """Writes the model without weights into a folder, unless it is there; returns the folder."""
    folder = pathlib.Path(folder)
    with alone(folder):
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            (folder / "config.json").write_text(json.dumps(CONFIG))
            (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
            _tokenizer(folder)
            (folder / "complete").touch()
    return folder


def with_weights(folder):
    """The same model with weights, which takes some seconds."""
    folder = make(folder)
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from transformers import AutoConfig, Qwen2VLForConditionalGeneration

    model = Qwen2VLForConditionalGeneration(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(28)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                into = weight[0].numel()
                gain = into ** 0.5 if "embed_tokens" in name else 4.0 if "lm_head" in name else 1.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * gain / into ** 0.5)
    new = folder.with_name(folder.name + ".new")
    model.to(torch.bfloat16).save_pretrained(new)
    os.replace(new / "model.safetensors", folder / "model.safetensors")
    return folder
