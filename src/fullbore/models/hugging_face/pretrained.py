"""Weights of a local Hugging Face folder, read lazily from its safetensors files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from fullbore.errors import ModelError

__all__ = ["PretrainedFolder"]


@dataclass(frozen=True, slots=True)
class PretrainedFolder:
    """Where each tensor of a checkpoint lies. Only exact names count: checkpoints that transformers renames
    or regroups while loading are refused."""

    files: Mapping[str, Path]
    """Tensor name -> file."""

    folder: Path

    @classmethod
    def of(cls, folder: Path) -> PretrainedFolder:
        """From ``model.safetensors.index.json`` or ``model.safetensors``.

        Raises:
            ModelError: neither is there, or they cannot be read.
        """
        index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
        try:
            if index.is_file():
                entries = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                return cls({name: folder / file for name, file in entries.items()}, folder)
            if single.is_file():
                with safe_open(single, framework="pt") as file:
                    return cls(dict.fromkeys(file.keys(), single), folder)
        except Exception as error:
            raise ModelError(f"cannot read the safetensors of {folder}: {error}") from error
        raise ModelError(f"pretrained weights are model.safetensors or its index ({folder} has neither); save them so")

    def check(self, names: Mapping[str, Collection[str]], *, ignored: Iterable[str]) -> None:
        """``names``: each tensor of the model -> all the names it may be stored under; ``ignored``: patterns of
        stored names that the family leaves unread.

        Raises:
            ModelError: a tensor is missing, or one is stored that the model does not have.
        """
        for name, aliases in names.items():
            if not any(alias in self.files for alias in aliases):
                raise ModelError(
                    f"{self.folder} lacks the tensor {name}; it is not a checkpoint of this configuration, or of a "
                    "family whose stored names differ from the model's, which is not supported yet"
                )
        known = {alias for aliases in names.values() for alias in aliases}
        patterns = [re.compile(pattern) for pattern in ignored]
        for name in self.files:
            if name not in known and not any(pattern.search(name) for pattern in patterns):
                raise ModelError(
                    f"{self.folder} holds the tensor {name}, which the model does not have; "
                    "store the weights under the model's own names"
                )

    def load(self, aliases: Collection[str], *, shape: tuple[int, ...]) -> Tensor:
        """One tensor, on the CPU in the stored dtype; the first alias that is stored.

        Raises:
            ModelError: it has another shape, or cannot be read.
        """
        name = next(alias for alias in aliases if alias in self.files)
        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except Exception as error:
            raise ModelError(f"cannot read {name} from {self.files[name]}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{name} in {self.files[name]} is {list(tensor.shape)}, but the configuration makes it {list(shape)}"
            )
        return tensor
