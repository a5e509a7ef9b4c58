"""Forwards as transformers writes them, over and over, under many names. A class is known by this code.

So these stay as they are there, line by line; `fullbore.models.split_backward.weight_registry` compares what they
compile to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["Conv1D", "GemmaNorm", "GptOssNorm", "LlamaNorm", "T5Norm"]


class Conv1D(nn.Module):
    def forward(self: Any, x):  # type: ignore[no-untyped-def]
        size_out = x.size()[:-1] + (self.nf,)  # noqa: RUF005
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        x = x.view(size_out)
        return x


class LlamaNorm(nn.Module):
    def forward(self: Any, hidden_states):  # type: ignore[no-untyped-def]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class GptOssNorm(nn.Module):
    def forward(self: Any, hidden_states):  # type: ignore[no-untyped-def]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight * hidden_states).to(input_dtype)


class T5Norm(nn.Module):
    def forward(self: Any, hidden_states):  # type: ignore[no-untyped-def]
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)

        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)

        return self.weight * hidden_states


class GemmaNorm(nn.Module):
    def forward(self: Any, x):  # type: ignore[no-untyped-def]
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)
