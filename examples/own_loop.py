"""A training loop of your own over two pipeline stages: ``torchrun --nproc-per-node 2 examples/own_loop.py``.

A Llama of six blocks learns the bytes of this file. Every rank runs the same lines and reads the same batch.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig

import fullbore

text = torch.tensor(list(Path(__file__).read_bytes()))
sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6, "num_attention_heads": 4}

with fullbore.Pipeline(LlamaConfig(vocab_size=256, **sizes), num_microbatches=4, schedule="1f1b") as pipeline:
    optimizer = torch.optim.AdamW(pipeline.parameters(), lr=3e-3)
    for step in range(20):
        torch.manual_seed(step)  # every rank draws the same samples
        window = torch.randint(len(text) - 64, (8, 1)) + torch.arange(65)
        loss = pipeline.step({"input_ids": text[window[:, :-1]], "labels": text[window[:, 1:]]})
        pipeline.clip_grad_norm(1.0)  # over all stages
        if pipeline.finite:  # on every rank, or on none
            optimizer.step()
        pipeline.zero_grad()
    timeline = pipeline.timeline()  # the last step of all ranks, on one clock
    if pipeline.rank == 0:
        print(f"loss {loss:.2f} after {step + 1} steps")
        print(fullbore.render_text(timeline, width=100, scale=fullbore.TimeScale.milliseconds()))
