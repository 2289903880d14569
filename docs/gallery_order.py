"""The order of the gallery: from what one gets to what one may look up."""

from pathlib import Path

STORY = (
    "plot_quickstart.py",
    "plot_predictive.py",
    "plot_calibration.py",
    "plot_attribution.py",
    "plot_scores.py",
    "plot_compare_models.py",
    "plot_groups.py",
    "plot_noise_of_the_input.py",
    "plot_known_errors.py",
    "plot_dates.py",
    "plot_matrix_factorization.py",
    "plot_learned_invariance.py",
)


class Story:
    """Key of a script for sphinx-gallery: those named first, then the others by name."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __call__(self, filename: str) -> tuple[int, str]:
        name = Path(filename).name
        return (STORY.index(name) if name in STORY else len(STORY), name)

    def __repr__(self) -> str:
        return "Story"
