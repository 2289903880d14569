"""The data sets of the papers, read by `examples/papers/paper_data.py`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples/papers"))

from paper_data import load_dataset as load_dataset
