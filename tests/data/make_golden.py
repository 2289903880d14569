"""Write the golden files: one saved model a family, and what it predicts.

Run it from the repository's root, with ``tests`` on the path, only when the file format changes on
purpose (and `FORMAT` rises with it): the files stand for what users of this release have on disk.
Those of earlier formats stay as they were written.

    PYTHONPATH=.:tests python tests/data/make_golden.py
"""

import json
import warnings
from pathlib import Path

from fits import FITS, everything_predicted, fitted

from skbayes_sym import save
from skbayes_sym.saving.file import FORMAT

GOLDEN = [
    "vi-regressor", "vi-collapsed", "mcmc-evidence", "ensemble-classifier", "laplace-kronecker",
    "lila-table", "factors", "linear-many-features", "laplace-modes-ard", "laplace-classes",
    "bayesian-mlp",
]  # fmt: skip
N_ROWS = 5


def predicted(model, X):
    """What doesn't depend on a random stream of NumPy's or torch's that may change."""
    found = everything_predicted(model, X)
    return {k: v for k, v in found.items() if k not in {"sample_y", "quantiles"}}


def main() -> None:
    folder, expected = Path(__file__).parent / f"format{FORMAT}", {}
    folder.mkdir(exist_ok=True)
    for name in GOLDEN:
        model, rows = fitted(name), FITS[name].X[:N_ROWS]
        save(model, folder / f"{name}.safetensors")
        values = {k: v.tolist() for k, v in predicted(model, rows).items()}
        expected[name] = {"X": rows.tolist(), "predictions": values}
    (folder / "golden.json").write_text(json.dumps(expected, indent=0), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
