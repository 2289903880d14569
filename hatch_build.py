"""Hatchling's hook for the metadata: the long description is the README with absolute links."""

import runpy
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class LongDescription(MetadataHookInterface):
    """Sets ``readme``."""

    def update(self, metadata: dict) -> None:
        """Called by the build with the ``[project]`` table."""
        root = Path(self.root)
        text = runpy.run_path(str(root / ".ci/long_description.py"))["long_description"]
        source = metadata["urls"]["Source"]
        metadata["readme"] = {"content-type": "text/markdown", "text": text(root, source)}
