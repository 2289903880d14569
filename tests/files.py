"""Saved models with something changed in them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skbayes_sym.saving.files import checksum


def rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    """The file with its header changed, and the checksum that goes with it."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["skbayes_sym"])
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    header = change(header) or header
    text = json.dumps(header)
    metadata = {"skbayes_sym": text, "skbayes_sym_sha256": checksum(text, arrays)}
    save_file(arrays, path, metadata)
