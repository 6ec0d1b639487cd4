#!/usr/bin/env python3
"""Whether transformers reads exported folders as ours: load_with_transformers.py GOLDEN FP32 BF16.

GOLDEN holds input_ids.safetensors and expected.safetensors of a model (tests/model/data); FP32 and BF16 are exports of
the same weights. The logits of FP32 must be the stored ones to 1e-6 of the largest, its tokenizer must map text to its
bytes and back, and BF16 must hold the rounded weights.
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ("In the beginning\n", "  two  spaces\tand a tab", "\u00fcber \u6f22\u5b57 \U0001f389", "don't\x00\x7f", "")


def check(condition, what):
    if not condition:
        sys.exit(f"load_with_transformers.py: {what}")


def main(golden, fp32, bf16):
    model, report = AutoModelForCausalLM.from_pretrained(fp32, output_loading_info=True)
    check(not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), f"loading says {report}")
    check(model.dtype == torch.float32, f"the model is {model.dtype}")
    ids = load_file(pathlib.Path(golden, "input_ids.safetensors"))["reference"]
    expected = load_file(pathlib.Path(golden, "expected.safetensors"))["logits"]
    with torch.no_grad():
        gap = (model(input_ids=ids).logits - expected).abs().max() / expected.abs().max()
    check(gap < 1e-6, f"the logits differ by {gap}")
    tokenizer = AutoTokenizer.from_pretrained(fp32)
    for text in TEXTS:
        tokens = tokenizer(text).input_ids
        check(tokens == list(text.encode()), f"{text!r} becomes {tokens}")
        check(tokenizer.decode(tokens) == text, f"{tokens} becomes {tokenizer.decode(tokens)!r}")
    out = model.generate(ids[:1, :8], max_new_tokens=3, do_sample=False)
    check(out.shape == (1, 11), f"generation gives {tuple(out.shape)}")
    halves = AutoModelForCausalLM.from_pretrained(bf16, dtype="auto")
    check(halves.dtype == torch.bfloat16, f"the bf16 export is {halves.dtype}")
    for name, weight in model.named_parameters():
        check(torch.equal(halves.get_parameter(name), weight.to(torch.bfloat16)), f"{name} is rounded otherwise")


main(*sys.argv[1:])
