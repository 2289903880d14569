"""What isn't finished says so."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from thin import some

import skbayes_sym as sk
from skbayes_sym.base.messages import warn_moving_mode, warn_unless_converged
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.factorization.fit import Factorization
from skbayes_sym.factorization.solvers import Gibbs
from skbayes_sym.numerics.optimise import OptimiseResult

IRIS = load_iris(return_X_y=True)
SHORT = {"hidden_layer_sizes": (5,), "max_iter": 20, "random_state": 0}
UNFINISHED = {
    "adam": sk.LaplaceClassifier(optimizer="adam", **SHORT),
    "adam-fixed": sk.LaplaceClassifier(optimizer="adam", prior=1.0, **SHORT),
    "lila": sk.LILAClassifier(invariances=None, **SHORT),
    "ensemble": sk.DeepEnsembleClassifier(n_members=2, **SHORT),
    "vi": sk.SymmetrizedVIClassifier((5,), max_iter=40, random_state=0),
    "modes": sk.LaplaceClassifier((5,), max_iter=4, optimizer=sk.GaussNewton(1), random_state=0),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_twenty_steps_are_not_enough(name):
    """Accuracies from 0.5 to 0.9, which reach 0.97."""
    with pytest.warns(ConvergenceWarning, match="not converged"):
        UNFINISHED[name].fit(*IRIS)


def test_short_last_steps_do_not_hide_a_bound_that_rises():
    """A last tenth within its noise; the last fifth is 2 nats higher, of 100 rows at tol=.001."""
    noise = np.where(np.arange(100) % 2, 0.3, -0.3)
    rising = np.concatenate([np.zeros(80), np.full(20, 2.0)]) + noise
    told = pytest.warns(ConvergenceWarning, match="last fifth of the 1000 steps.* by 0.02 nats")
    for curve, words in ((rising, told), (0.5 * rising, nullcontext())):
        with words:
            result = OptimiseResult(torch.zeros(1), 1000, [(-curve).tolist()], "max_iter")
            warn_unless_converged(result, 1e-3, 100.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "regressor",
    [
        sk.DeepEnsembleRegressor((5,), "tanh", n_members=2, tol=1e-2),
        sk.SymmetrizedVIRegressor((3,), "tanh", tol=5e-2),
    ],
)
def test_what_gains_no_more_stops(regressor):
    regressor.set_params(max_iter=4000, random_state=0).fit(*make_sinusoidal(random_state=0))
    assert regressor.stop_reason_ == "tol"
    assert regressor.n_iter_ < 4000


@pytest.mark.parametrize("max_iter", [1, 5, None])
def test_modes_of_numbers(max_iter):
    """Cut short, and as long as by default, which warns of nothing."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    reg = sk.LaplaceRegressor((4,), optimizer=sk.GaussNewton(2), random_state=0)
    if max_iter is None:
        assert reg.fit(X, y).score(X, y) > 0.9
        return
    with pytest.warns(ConvergenceWarning, match="not converged"):
        reg.set_params(max_iter=max_iter).fit(X, y)


def test_a_search_that_has_settled_is_not_told():
    for curve, stopped, tol in [
        ([-9.0, -1.0, -1.0, -1.0], "max_iter", 1e-3),
        ([-9.0, -5.0, -1.0], "tol", 1e-3),
        ([-9.0, -5.0, -1.0], "max_iter", None),
    ]:
        warn_moving_mode(curve, stopped, tol, 10.0)
    for curve in ([-9.0, -5.0, -1.0], [-1.0], [np.nan, np.nan, -1.0, -1.0]):
        with pytest.warns(ConvergenceWarning, match="not converged"):
            warn_moving_mode(curve, "max_iter", 1e-3, 10.0)


RATINGS = np.random.default_rng(0).standard_normal((20, 2)) @ np.ones((2, 15))
RATINGS = RATINGS + 0.3 * np.random.default_rng(1).standard_normal((20, 15))


@pytest.mark.parametrize("max_iter", [5, 20])
def test_few_sweeps_of_gibbs_are_told(max_iter):
    mf = sk.SymVIMatrixFactorization(2, solver="gibbs", max_iter=max_iter, random_state=0)
    with pytest.warns(ConvergenceWarning, match="not converged: .* draws of .* sweeps"):
        mf.fit(RATINGS)


@pytest.mark.long
@some("seed", range(3), keep={0})
def test_many_are_not(seed):
    sk.SymVIMatrixFactorization(2, solver="gibbs", max_iter=400, random_state=seed).fit(RATINGS)


@pytest.mark.parametrize("drift", [0.0, 3.0])
def test_a_chain_on_its_way_is_told(drift):
    mf = sk.SymVIMatrixFactorization(2, solver="gibbs")
    data = mf._prepare_data(RATINGS, *mf._read_entries(RATINGS))
    method = Factorization(Gibbs(), max_iter=80, tol=1e-4)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(40, 35, 2, generator=generator, dtype=torch.float64)
    draws += drift * torch.linspace(1, 0, 40, dtype=torch.float64)[:, None, None]
    told = pytest.warns(ConvergenceWarning, match="split R-hat") if drift else nullcontext()
    with told:
        method._warn_unless_mixed(draws, data, 2)
