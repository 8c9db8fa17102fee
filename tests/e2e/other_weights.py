"""Run by the engine's Python: other weights for a model, as a trainer would save them.

``python tests/e2e/other_weights.py lora|full MODEL FOLDER SEED``
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dragoman.trainer.weights import save_policy


def main(kind: str, source: str, folder: str, seed: str) -> None:
    torch.manual_seed(int(seed))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source)
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or (kind == "full" and "proj" in name):
                weight.add_(torch.randn_like(weight), alpha=0.05)
    save_policy(model, tokenizer, Path(folder), "lora" if kind == "lora" else "full")


if __name__ == "__main__":
    main(*sys.argv[1:])
