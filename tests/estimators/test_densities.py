"""What a regressor says a density is, is the density of what it draws: all targets together."""

import numpy as np
import pytest
from fits import FITS, NUMBERS, TWO_NUMBERS, X, fitted
from sklearn.base import clone
from thin import some

from skbayes_sym import EvidenceAdam, GaussNewton, LaplaceRegressor, LILARegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N_DRAWS = 10_000
ONE_TARGET = [
    name for name, case in FITS.items() if case.y is NUMBERS and hasattr(case.estimator, "sample_y")
]
# Without pools: their components are narrower than a cell, and have a test of their own.
TWO_TARGETS = {
    **{
        name: case.estimator
        for name, case in FITS.items()
        if case.y is TWO_NUMBERS and name != "bayesian-mlp"
    },
    "mcmc": FITS["mcmc-regressor"].estimator,
    "layerwise": FITS["vi-collapsed"].estimator,
    "lila": FITS["lila-regressor"].estimator,
}


def fit(estimator, y):
    """With as many draws behind a prediction as make its error small."""
    model = clone(estimator)
    if "n_predict_samples" in model.get_params():
        model.set_params(n_predict_samples=1000)
    return model.fit(X, y)


def cells(draws, n):
    """Centres of a grid over nine standard deviations of the draws (n, T), and a cell's volume."""
    middle, spread = draws.mean(0), 9.0 * draws.std(0)
    axes = [m + s * ((np.arange(n) + 0.5) / n - 0.5) for m, s in zip(middle, spread, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    return points, np.prod(spread / n)


def assert_density_of_draws(model, row):
    draws = model.sample_y(row, N_DRAWS, random_state=1)[0].reshape(-1, N_DRAWS).T
    points, volume = cells(draws, 40)
    y = points if points.shape[1] > 1 else points[:, 0]
    log_density = model.log_predictive_density(np.repeat(row, len(y), 0), y)
    mass = volume * np.exp(log_density)
    assert mass.sum() == pytest.approx(1.0, abs=0.01)
    mean = mass @ points
    covariance = (mass[:, None] * (points - mean)).T @ (points - mean)
    found = np.cov(draws.T).reshape(covariance.shape)
    scale = np.sqrt(np.outer(np.diag(found), np.diag(found)))
    # 10,000 draws, at most 1,000 of the weights behind a prediction: errors of 1.5 and 4 per cent.
    assert np.abs((covariance - found) / scale).max() < 0.12
    assert np.abs(mean - draws.mean(0)).max() < 0.1 * np.sqrt(np.diag(found)).max()


# What draws functions as another one here does: members of a family, and seconds each.
ALIKE = {"lila-regressor", "lila", "mcmc-annealed", "bayesian-mlp-ard"}


@some("name", ONE_TARGET, keep=set(ONE_TARGET) - ALIKE)
def test_one_target(name):
    case = FITS[name]
    if case.X is X:
        assert_density_of_draws(fit(case.estimator, NUMBERS), X[:1])
    else:
        assert_density_of_draws(fitted(name), case.X[:1])


@pytest.mark.long
@some("name", TWO_TARGETS, keep=set(TWO_TARGETS) - ALIKE)
def test_two_targets_together(name):
    assert_density_of_draws(fit(TWO_TARGETS[name], TWO_NUMBERS), X[:1])


def opposite(model):
    """One unit, and a second target that is the first one's negative: correlation near -1."""
    x = np.linspace(-0.3, 0.3, 8)[:, None]
    f = np.tanh(2.0 * x[:, 0])
    return model.fit(x, np.column_stack([f, -f])), np.array([[1.5]])


ONE_UNIT = {"noise_std": 0.05, "prior": 1.0, "tol": None, "random_state": 0}


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        LaplaceRegressor((1,), optimizer=EvidenceAdam(curvature="full"), max_iter=300, **ONE_UNIT),
        LaplaceRegressor((1,), optimizer=GaussNewton(2), **ONE_UNIT),
        LILARegressor(
            (1,),
            invariances=None,
            optimizer=EvidenceAdam(curvature="full"),
            max_iter=300,
            **ONE_UNIT,
        ),
    ],
    ids=["adam", "modes", "lila"],
)
def test_two_targets_of_one_unit_depend_on_each_other(model):
    model, row = opposite(model)
    assert_density_of_draws(model, row)
    draws = model.sample_y(row, N_DRAWS, random_state=1)[0]
    assert np.corrcoef(draws)[0, 1] < -0.5  # so that independent normals would be seen
