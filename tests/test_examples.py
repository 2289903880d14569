"""Every example runs to its end, with fewer steps, and its pictures can be drawn."""

import ast
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted([
    *EXAMPLES.rglob("plot_*.py"), *EXAMPLES.glob("papers/reproduce_*.py"),
    EXAMPLES / "papers/on_a_gpu.py",
])  # fmt: skip

# Of a few CPU seconds each, even with less to do: not in the default suite, but in every run of CI.
LONGER = {
    "plot_calibration.py", "plot_elbo.py", "plot_invariance_gap.py", "plot_loss_barrier.py",
    "plot_modes.py", "plot_symmetry.py", "plot_width_collapse.py",
    "reproduce_wiese_baselines.py", "reproduce_wiese_table1.py", "plot_compare_models.py",
    "plot_functional_modes.py", "plot_implicit_regularization.py",
    "plot_invariance.py", "plot_invariance_data_efficiency.py", "plot_invariance_of_a_table.py",
    "plot_learned_invariance.py", "plot_matrix_factorization.py", "plot_mode_seeking.py",
    "plot_noise_of_the_input.py", "plot_symmetry_removal.py", "plot_two_weight_network.py",
    "reproduce_gelberg_mnist.py", "reproduce_gelberg_small_data.py",
    "reproduce_gelberg_two_weights.py", "reproduce_immer_augerino.py", "reproduce_immer_claims.py",
    "reproduce_immer_curvature.py", "reproduce_immer_mnist.py", "reproduce_immer_table1.py",
    "on_a_gpu.py", "reproduce_gelberg_cnn.py", "reproduce_kurle_data_bound.py",
    "reproduce_moore_figures.py", "reproduce_ratings.py", "plot_image_augmentations.py",
    "plot_predictive.py", "plot_merged_networks.py", "plot_groups.py", "plot_dates.py",
}  # fmt: skip
MARKED = [
    pytest.param(script, marks=[pytest.mark.slow] if script.name in LONGER else [],
                 id=str(script.relative_to(EXAMPLES)))
    for script in SCRIPTS
]  # fmt: skip

# What a reader sees takes minutes; here it runs with less: text, and what replaces it. Scripts
# named reproduce_* have an option --fast.
LESS = {
    "plot_attribution.py": {"[:100]": "[:10]"},
    "plot_compare_models.py": {
        "VIRegressor(": "VIRegressor(max_iter=20, ", "leRegressor(": "leRegressor(max_iter=20, ",
        "cv=5": "cv=2", "n_warmup=300": "n_warmup=10", 'ns": 32': 'ns": 8, "n_draws": 8',
    },
    "plot_groups.py": {
        '("boosting", "boosting"), ': "", "range(2)": "range(1)",
        "make_rows(25, 8": "make_rows(12, 4",
    },
    "plot_elbo.py": {
        '"tanh", random': '"tanh", max_iter=50, random',
        'optimizer="adam", random': 'optimizer="adam", max_iter=100, random',
    },
    "plot_functional_modes.py": {
        "n_warmup=300": "n_warmup=10", '"n_chains": 64': '"n_chains": 8, "n_draws": 8',
        "n_warmup=100": "n_warmup=2",
    },
    "plot_implicit_regularization.py": {"NOISE = 80,": "NOISE = 2,"},
    "plot_invariance_data_efficiency.py": {
        "500, 3\n": "500, 1\n", "tol=None,": "tol=None, max_iter=20,", "Updates(": "Updates(4, ",
    },
    "plot_invariance_of_a_table.py": {
        "N_SEEDS = 3": "N_SEEDS = 1", "tol=None,": "tol=None, max_iter=20,",
    },
    "plot_learned_invariance.py": {
        '"standardize": False,': '"standardize": False, "max_iter": 20,',
    },
    "plot_loss_barrier.py": {
        "n_warmup=50": "n_warmup=10", "n_draws=50": "n_draws=4",
        "n_hot=1500, n_settle=375": "n_hot=30, n_settle=7",
    },
    "plot_merged_networks.py": {
        "range(600)": "range(5)", "128)": "8)", "(128,": "(8,", "n_members=16": "n_members=4",
    },
    "plot_matrix_factorization.py": {
        "load_digits().data": "load_digits().data[:200]",
        "random_state=0)": "random_state=0, max_iter=5)",
        '"max_iter": 600': '"max_iter": 5',
    },
    "plot_next_experiment.py": {"N_SEEDS, N_ROUNDS = 2, 11": "N_SEEDS, N_ROUNDS = 1, 2",
                                "N_BATCHES = 9": "N_BATCHES = 1"},
    "plot_noise_of_the_input.py": {
        "VIRegressor(": "VIRegressor(max_iter=50, ", "leRegressor(": "leRegressor(max_iter=50, ",
        "ceRegressor(": "ceRegressor(max_iter=50, ", "n_chains=16": "n_chains=2",
        "n_warmup=500": "n_warmup=30",
    },
    "plot_quickstart.py": {
        "symmetry=symmetry, ": "symmetry=symmetry, max_iter=20, ",
    },
    "plot_symmetry_removal.py": {
        "n_warmup=400": "n_warmup=10", "n_warmup=100": "n_warmup=2", "n_warmup=300": "n_warmup=10",
        "n_draws=100": "n_draws=10",
    },
    "plot_two_weight_network.py": {"n_nodes: int = 40": "n_nodes: int = 10"},
    "plot_width_collapse.py": {
        "range(3)": "range(2)", "(10, 50, 200, 1000)": "(2, 5, 10, 20)", "1000, 20_000": "5, 500",
    },
    "plot_modes.py": {
        "n_warmup=300": "n_warmup=20", '"n_chains": 64': '"n_chains": 8, "n_draws": 8',
    },
    "plot_predictive.py": {
        "n_chains=32": "n_chains=8, n_draws=8", "n_warmup=300": "n_warmup=10",
        '(5,), "tanh", r': '(5,), "tanh", max_iter=20, r',
    },
    "plot_symmetry.py": {"n_warmup=300": "n_warmup=20", '"tanh", r': '"tanh", max_iter=20, r'},
}  # fmt: skip


@pytest.fixture
def figures() -> Iterator[None]:
    """None before and none after, drawn by a backend that shows nothing."""
    backend = plt.get_backend()
    plt.switch_backend("agg")
    with plt.rc_context():
        yield
    plt.close("all")
    plt.switch_backend(backend)


# In one process, since importing takes longer than most of them. They warn as they do for a user:
# a few steps don't converge.
@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("script", MARKED)
def test_runs(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = script.read_text(encoding="utf-8")
    if "load_dataset" in text and not os.environ.get("SKBAYES_SYM_DATA"):
        pytest.skip("needs the data of SKBAYES_SYM_DATA")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--fast"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    for much, less in LESS.get(script.name, {}).items():
        assert much in text, much
        text = text.replace(much, less)
    shortened = tmp_path / script.name
    shortened.write_text(text, encoding="utf-8")
    for results in script.parent.glob("*.json"):
        shutil.copy(results, tmp_path)
    runpy.run_path(str(shortened), run_name="__main__")
    numbers = plt.get_fignums()
    for number in numbers:  # a wrong formula in a label is found by drawing
        plt.figure(number).canvas.draw()
    assert numbers or capsys.readouterr().out.strip(), "nothing was printed and no figure drawn"


def test_there_is_something_to_run() -> None:
    assert len(SCRIPTS) > 20
    assert {script.name for script in SCRIPTS} >= LONGER


def test_what_a_reader_learns_from_has_no_branch_for_tests() -> None:
    for script in EXAMPLES.rglob("plot_*.py"):
        assert "--fast" not in script.read_text(encoding="utf-8"), script.name


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("plot_*.py")), ids=lambda path: path.stem)
def test_a_figure_is_complete_at_the_end_of_its_block(script: Path) -> None:
    """The gallery saves and closes all figures after each block."""
    closed: set[str] = set()
    for block in re.split(r"(?m)^# %%.*$", script.read_text(encoding="utf-8")):
        nodes = list(ast.walk(ast.parse(block)))
        stored = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        used = {
            node.value.id
            for node in nodes
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name)
        }
        assert (used & closed) - stored == set()
        for node in nodes:
            if isinstance(node, ast.Assign) and "plt.subplot" in ast.unparse(node.value):
                targets = ast.walk(node.targets[0])
                closed |= {name.id for name in targets if isinstance(name, ast.Name)} - {"_"}
