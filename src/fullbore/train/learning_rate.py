"""The learning rate of a step: warm-up, then one of three ends. Pure functions of the step.

Steps count from 0. The warm-up's first step already learns, its last reaches the full rate; the last step of the run
has the final one. wsd is warm-up, stable, decay: S. Hu et al., "MiniCPM: Unveiling the Potential of Small Language
Models with Scalable Training Strategies", arXiv 2404.06395, section 4. The cosine is that of I. Loshchilov,
F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", arXiv 1608.03983, without restarts.
"""

from __future__ import annotations

import math

from fullbore.config.run import OptimizerConfig

__all__ = ["cosine_factor", "learning_rate", "warmup_factor", "wsd_factor"]


def learning_rate(step: int, *, config: OptimizerConfig, steps: int) -> float:
    """The learning rate of step ``step`` of ``steps``."""
    if step < config.warmup_steps:
        return config.lr * warmup_factor(step, warmup_steps=config.warmup_steps)
    match config.decay:
        case "none":
            return config.lr
        case "cosine":
            final = config.final_lr_fraction
            return config.lr * cosine_factor(step, first=config.warmup_steps, steps=steps, final=final)
        case "wsd":
            decay_steps = round(config.wsd_decay_fraction * steps)
            return config.lr * wsd_factor(step, decay_steps=decay_steps, steps=steps, final=config.final_lr_fraction)


def warmup_factor(step: int, *, warmup_steps: int) -> float:
    """Linear: 1 / ``warmup_steps`` at step 0, 1 at step ``warmup_steps`` - 1."""
    return (step + 1) / warmup_steps


def cosine_factor(step: int, *, first: int, steps: int, final: float) -> float:
    """Half a cosine: 1 at step ``first``, ``final`` at the last step and after it."""
    progress = min(1.0, (step - first) / max(1, steps - 1 - first))
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def wsd_factor(step: int, *, decay_steps: int, steps: int, final: float) -> float:
    """1, then linear over the last ``decay_steps`` steps to ``final`` at the last step and after it."""
    into_decay = step - (steps - decay_steps) + 1
    if decay_steps == 0 or into_decay <= 0:
        return 1.0
    return 1 - (1 - final) * min(1.0, into_decay / decay_steps)
