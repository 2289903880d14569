"""Memory of wide tables: linear in rows times weights, and released with the model."""

import ast
import json
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import skbayes_sym as sk
from skbayes_sym.ensemble.fit import MemberRefitter
from skbayes_sym.models import Categorical
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.models.priors import Normal
from skbayes_sym.numerics import memory
from skbayes_sym.symmetry.group import Trivial

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "asv_bench/studies/memory.py"

# Functions whose results don't grow with the size of a model or a table.
FIXED_CACHES = {
    "skbayes_sym/saving/values.py", "skbayes_sym/numerics/memory.py",
    "skbayes_sym/numerics/runtime.py",
    "skbayes_sym/numerics/gaussian.py", "skbayes_sym/symmetry/modules/graph_analysis.py",
    "skbayes_sym/models/augmentations/images.py", "skbayes_sym/base/quadrature.py",
}  # fmt: skip


@pytest.mark.long
def test_caches_of_functions_hold_nothing_that_grows():
    """What depends on sizes is cached by `keeps_tables`, which releases it."""
    found = set()
    for path in (ROOT / "skbayes_sym").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                name = ast.unparse(decorator).split("(")[0].split(".")[-1]
                if name in ("cache", "lru_cache"):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found <= FIXED_CACHES


class Largest(TorchDispatchMode):
    """Number of entries of the largest tensor that an operation makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.entries = max(self.entries, result.numel())
        return result


def test_a_jacobian_of_many_weights_takes_no_table_of_their_pairs(generator):
    """The Jacobian itself, 3 x 5,021 numbers, is the largest; pairs would be 25 million."""
    network = MLP(500, (10,), 1, TANH)
    theta = torch.randn(1, network.layout.n_params, generator=generator)
    x = torch.randn(3, 500, generator=generator)
    with Largest() as largest:
        _, jacobian = outputs_and_jacobian(network, theta, x)
    assert jacobian.shape == (1, 3, 1, network.layout.n_params)
    assert largest.entries == jacobian.numel()


def under_a_limit(name, table, gigabytes, *steps):
    """Outcome and peak of a fit in a process whose address space is limited."""
    arguments = ["--child", name, table, str(gigabytes), "600", *map(str, steps)]
    command = [sys.executable, "-W", "ignore", str(STUDY), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
@pytest.mark.parametrize(
    "name", ["PredictiveStacking", "BayesianMLP", "DeepEnsemble", "Laplace", "BayesianLinear"]
)
def test_a_wide_table_is_fitted_within_two_gigabytes(name):
    result = under_a_limit(f"{name}Regressor", "120 x 1,100", 2.0)
    assert result["outcome"] == "fitted"
    assert result["peak"] < 2.0


ESTIMATORS = [name for name in sk.__all__ if hasattr(getattr(sk, name), "fit")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
@pytest.mark.parametrize("table", ["120 x 1,100", "60 x 5,000"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_fits_a_wide_table_or_refuses_before_it_starts(name, table):
    """Few steps of Adam take the memory of many: every stage of the fit is run."""
    result = under_a_limit(name, table, 2.0, 5)
    if result["outcome"] == "fitted":
        assert result["peak"] < 2.0
    else:
        assert re.match(REFUSED, result["outcome"]), result["outcome"]
        assert result["seconds"] < 2.0
        assert result["peak"] < 0.1


REFUSED = r"MemoryError: this fit takes at least .* GB, but .* GB are free on cpu; .*\. \w+ .*\."


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
def test_chains_that_exceed_the_address_space_are_refused_before_they_start():
    result = under_a_limit("MCMCRegressor", "60 x 5,000", 0.7)
    assert re.match(REFUSED, result["outcome"])
    assert "Lower n_chains, n_draws or hidden_layer_sizes" in result["outcome"]
    assert result["seconds"] < 2.0


def wide_ensemble(**settings):
    """Ensemble of ten members of 5,000 columns, whose refit takes 1.7 GB, at 60 rows."""
    X = np.zeros((60, 5000))
    X[:, :60] = np.eye(60)
    return sk.DeepEnsembleClassifier(max_iter=1, **settings), X, np.arange(60) % 2


def test_a_refit_that_cannot_fit_is_refused_before_training(monkeypatch):
    ensemble, X, y = wide_ensemble(correction=1.0)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1.2e9)
    with pytest.raises(MemoryError, match=r"the refit of .* members .*correction=None"):
        ensemble.fit(X, y)


def test_the_default_refit_is_skipped_where_its_roots_are_large():
    network = MLP(5000, (50,), 2, TANH)
    model = Model(network, Categorical(), Normal(1.0).bind(network.layout), Trivial())
    refitter = MemberRefitter("loo", is_optional=True)
    assert refitter.is_affordable(3, 60, model)
    assert not refitter.is_affordable(10, 60, model)
    assert refitter.allocation(10, 60, model).n_bytes == 0
    always = replace(refitter, is_optional=False)
    assert always.allocation(10, 60, model).n_bytes > 10 * network.layout.n_params * 60 * 8


_GROWTH = """
import ctypes
import gc
from pathlib import Path
import numpy as np
import skbayes_sym as sk

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

random, sizes = np.random.default_rng(0), []
for n_columns in range(200, 220):
    X = random.normal(size=(60, n_columns))
    y = X[:, 0] + 0.1 * random.normal(size=60)
    {model}.fit(X, y).predict(X[:5])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # return what the allocator keeps; the rest is in use
    sizes.append(resident())
print(max(sizes) - sizes[1])
"""


FEW_STEPS = "max_iter=30, tol=None, random_state=0"
_slow = pytest.mark.slow


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="reads /proc, trims glibc's heap")
@pytest.mark.parametrize(
    "model",
    [
        f"sk.DeepEnsembleRegressor(n_members=3, {FEW_STEPS})",
        "sk.LaplaceRegressor((3,), optimizer=sk.GaussNewton(2), max_iter=3, random_state=0)",
        pytest.param(f"sk.LILARegressor((3,), {FEW_STEPS})", marks=_slow),
        pytest.param(f"sk.SymmetrizedVIRegressor((5,), {FEW_STEPS})", marks=_slow),
        pytest.param(f"sk.LayerwiseVIRegressor((5,), {FEW_STEPS})", marks=_slow),
        pytest.param(
            "sk.MCMCRegressor((3,), n_chains=4, n_draws=5, random_state=0, "
            "sampler=sk.Chains(sk.HMC(max_leapfrog=8), init='prior', n_warmup=12))",
            marks=_slow,
        ),
        pytest.param("sk.BayesianLinearRegressor('student_t')", marks=_slow),
    ],
)
def test_twenty_widths_leave_nothing_behind(model):
    """Megabytes by which the process grows; a table of the pairs of weights takes 40 to 400."""
    command = [sys.executable, "-W", "ignore", "-c", _GROWTH.format(model=model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    assert float(done.stdout.splitlines()[-1]) < 100.0
