"""Labels: what the data writes beside the tokens and the losses of the models count by."""

__all__ = ["IGNORED_LABEL"]

IGNORED_LABEL = -100
"""A label that does not count, as everywhere in PyTorch and transformers."""
