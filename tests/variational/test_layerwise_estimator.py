"""LayerwiseVIRegressor: wide networks with an exact last layer and global inducing points."""

from functools import cache

import numpy as np
import pytest
from paper_data import load_dataset
from scipy import stats
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from skbayes_sym import LayerwiseVIRegressor, SymmetrizedVIRegressor, invariance_gap
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.models import ARD, LayerScales, Normal

KINDS = {"normal": {}, "inducing": {"hidden_posterior": 20}}
QUICK = {"hidden_layer_sizes": (4,), "activation": "tanh", "max_iter": 20, "tol": None,
         "n_predict_samples": 40, "random_state": 0}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def quick(**kwargs):
    return LayerwiseVIRegressor(**(QUICK | kwargs))


DIABETES = tuple(a[:60] for a in load_diabetes(return_X_y=True))


@cache
def _fitted(name):
    return quick(**KINDS[name]).fit(*DIABETES)


def fitted(kind):
    """A quick one of a kind, made once; read only."""
    return _fitted(next(name for name, settings in KINDS.items() if settings is kind))


def test_without_hidden_layers_it_is_bayesian_linear_regression():
    X, y = DIABETES
    reg = quick(hidden_layer_sizes=(), noise_std=50.0, prior=0.7)
    reg.fit(X, y)
    Z = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(60)]) * y.std()
    covariance = 0.7**2 * Z @ Z.T + 50.0**2 * np.eye(60)
    evidence = stats.multivariate_normal(np.full(60, y.mean()), covariance).logpdf(y)
    assert reg.elbo_ == pytest.approx(evidence, abs=1e-8)
    weights = np.linalg.solve(covariance, y - y.mean())
    mean = y.mean() + 0.7**2 * Z @ Z.T @ weights
    np.testing.assert_allclose(reg.predict(X), mean, rtol=1e-9)


@pytest.mark.parametrize("prior", [LayerScales(), ARD()], ids=["layers", "columns"])
def test_the_bound_is_that_of_the_scales_found_without_their_hyperprior(prior):
    """Without hidden layers it is the evidence of the linear model under them."""
    X, y = DIABETES
    reg = quick(hidden_layer_sizes=(), prior=prior, max_iter=60).fit(X, y)
    Z = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(60)]) * y.std()
    columns = reg.relevance_ if prior == ARD() else np.full(10, reg.prior_scale_[0])
    scale = np.append(columns, reg.prior_scale_[-1])
    covariance = Z * scale**2 @ Z.T + reg.noise_std_**2 * np.eye(60)
    evidence = stats.multivariate_normal(np.full(60, y.mean()), covariance).logpdf(y)
    assert reg.elbo_ == pytest.approx(evidence, abs=1e-8)
    assert reg.prior_groups_[-1] == "b1"
    assert len(reg.prior_groups_) == len(reg.prior_scale_)


@pytest.mark.long
@pytest.mark.kept("inducing")
@every_kind
def test_scales_are_learned_given_or_one_per_column(kind):
    X, y = DIABETES
    learned = fitted(kind)
    assert learned.prior_groups_.tolist() == ["W1", "b1", "W2", "b2"]
    assert not hasattr(learned, "relevance_")
    start = np.array([1.5 / 10**0.5, 1.0, 4**-0.5, 1.0])
    assert (learned.prior_scale_ != start).all()
    ard = quick(**kind, prior=ARD()).fit(X, y)
    assert ard.relevance_.shape == (10,)
    given = quick(**kind, prior=1.0).fit(X, y)
    assert not hasattr(given, "prior_scale_")
    same = quick(**kind, prior=Normal(1.0)).fit(X, y)
    assert np.array_equal(given.predict(X), same.predict(X))
    by_column = np.ones(given.network_.layout.n_params)
    by_column[given.network_.layout.positions("W1")[:, 3]] = 0.1  # of all units alike
    assert not np.allclose(quick(**kind, prior=by_column).fit(X, y).predict(X), given.predict(X))


@pytest.mark.long
@pytest.mark.kept("mean_field")
@pytest.mark.parametrize("hidden_posterior", ["mean_field", "global_inducing"])
def test_columns_without_use_are_irrelevant(hidden_posterior):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 4))
    y = np.sin(2.0 * X[:, 0]) + np.cos(2.0 * X[:, 2]) + 0.1 * rng.standard_normal(100)
    reg = LayerwiseVIRegressor(
        (10,), "tanh", hidden_posterior=hidden_posterior, prior=ARD(), max_iter=200, tol=None,
        n_predict_samples=20, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert reg.relevance_[[1, 3]].max() < 0.5 * reg.relevance_[[0, 2]].min()


def test_the_better_start_is_kept(caplog):
    with caplog.at_level("DEBUG", logger="skbayes_sym"):
        reg = quick(max_iter=60).fit(*DIABETES)
    line = next(r.message for r in caplog.records if "by start" in r.message)
    values = [float(v) for v in line.split(": ")[1].split(";")[0].split(", ")]
    assert len(values) == 2
    assert values[0] != values[1]
    assert reg.elbo_ == pytest.approx(max(values), rel=1e-4)


@pytest.mark.long
def test_wide_networks_dont_collapse():
    """Width 200: mean-field explains the data by noise, the exact last layer doesn't."""
    X, y = make_sinusoidal(random_state=0)
    common = {"hidden_layer_sizes": (200,), "activation": "tanh", "random_state": 0, "tol": None,
              "prior": [2**0.5, 200**-0.5], "max_iter": 200}  # fmt: skip
    mean_field = SymmetrizedVIRegressor(symmetry=None, **common).fit(X, y)
    collapsed = LayerwiseVIRegressor(**common).fit(X, y)
    assert mean_field.score(X, y) < 0.5
    assert collapsed.score(X, y) > 0.6
    assert collapsed.elbo_ > mean_field.elbo_ + 30
    assert collapsed.noise_std_ < 0.8 * mean_field.noise_std_


@every_kind
def test_what_does_not_apply_says_what_to_do(kind):
    X, y = DIABETES
    n = fitted(kind).network_.layout.n_params
    with pytest.raises(ValueError, match=r"the same for all units of a layer: .*prior"):
        quick(**kind, prior=np.linspace(1, 2, n)).fit(X, y)
    with pytest.raises(TypeError, match="no variational posterior with a known symmetry"):
        invariance_gap(fitted(kind))


@pytest.mark.long
def test_tol_stops_both_climbs():
    reg = quick(max_iter=1000, tol=3.0).fit(*DIABETES)
    assert reg.stop_reason_ == "tol"
    assert len(reg.elbo_curve_) == reg.n_iter_ / 10 < 100


def yacht(width, n_layers):
    """Training rows of the first split, and the settings of the published comparison."""
    try:
        data = load_dataset("yacht")
    except (OSError, ValueError):
        pytest.skip("no yacht data here")
    X, _, y, _ = train_test_split(data.data, data.target, test_size=0.2, random_state=0)
    scale = [(2 / X.shape[1]) ** 0.5] + [width**-0.5] * n_layers
    common = {"hidden_layer_sizes": (width,) * n_layers, "activation": "tanh",
              "prior": scale, "max_iter": 1500, "tol": None, "random_state": 0}  # fmt: skip

    def fit(kind=LayerwiseVIRegressor, **kwargs):
        return kind(**common, **kwargs).fit(X, y)

    return fit, y.std()


@pytest.mark.slow
def test_two_hidden_layers_gain_200_nats_on_yacht():
    fit, _ = yacht(50, 2)
    both = fit(hidden_posterior="global_inducing")
    mean_field = fit(SymmetrizedVIRegressor, symmetry=None)
    assert both.elbo_ > mean_field.elbo_ + 200
    assert both.elbo_ > fit().elbo_


@pytest.mark.slow
def test_width_200_learns_small_noise_on_yacht():
    fit, unit = yacht(200, 1)
    both = fit(hidden_posterior="global_inducing")
    assert both.noise_std_ < 0.3 * unit
