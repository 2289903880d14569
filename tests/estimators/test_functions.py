"""Draws of noise-free functions: joint over rows, the same for other rows, of the law's moments."""

import numpy as np
import pytest
from fits import FITS, X, fitted
from sklearn.inspection import permutation_importance
from sklearn.linear_model import BayesianRidge, LogisticRegression

from skbayes_sym import predictive
from skbayes_sym.model_selection import log_predictive_density_scorer

PREDICTS = [name for name, case in FITS.items() if hasattr(case.estimator, "predict")]
REGRESSORS = [name for name in PREDICTS if hasattr(FITS[name].estimator, "sample_y")]
N = 2000
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# Their laws are no average over weights alone: logits have another scale, or are shrunk.
OF_ANOTHER_LAW = {"lila-images", "linear-labels", "linear-three"}


def share_of_error(model):
    """Standard error of a mean, in deviations: of these draws, and of those that are the law."""
    n_own = {"n_predict_samples", "predictive"} & set(model.get_params())
    few = 200 if "predictive" in n_own else model.n_predict_samples if n_own else np.inf
    return (1.0 / N + 1.0 / few) ** 0.5


@pytest.mark.parametrize("name", PREDICTS)
def test_functions_are_the_same_for_other_rows_and_have_the_moments_of_the_law(name):
    model, rows = fitted(name), FITS[name].X
    drawn = predictive(model, rows).functions(N, 1)
    np.testing.assert_allclose(model.sample_f(rows[::3], N, 1), drawn[::3], rtol=1e-6, atol=1e-9)
    is_certain = drawn.std(-1).max() < 1e-9  # of a posterior whose variance was taken off
    assert is_certain or not np.array_equal(model.sample_f(rows, N, 2), drawn)
    mean = model.predict(rows) if name in REGRESSORS else model.predict_proba(rows)
    if name not in REGRESSORS:
        np.testing.assert_allclose(drawn.sum(1), 1.0, rtol=1e-6)
    if name not in OF_ANOTHER_LAW:
        error = drawn.std(-1) * share_of_error(model) + 1e-6 * np.abs(mean).max()
        assert (np.abs(drawn.mean(-1) - mean) < 5.0 * error).all()


@pytest.mark.parametrize("name", REGRESSORS)
def test_their_spread_is_epistemic_and_noise_comes_on_top(name):
    model, rows = fitted(name), FITS[name].X
    drawn, parts = model.sample_f(rows, N), model.predict_uncertainty(rows)
    std = model.predict(rows, return_std="function")[1]
    np.testing.assert_allclose(std**2, parts.epistemic, rtol=1e-5)
    # A variance of N draws is off by sqrt((kurtosis - 1) / N): of mixtures up to some tenths.
    kurtosis = ((drawn - drawn.mean(-1, keepdims=True)) ** 4).mean(-1) / drawn.var(-1) ** 2
    error = 6.0 * np.sqrt(kurtosis) * share_of_error(model) + 1e-6
    assert (np.abs(parts.epistemic / drawn.var(-1) - 1.0) < error).all()
    noisy = model.sample_y(rows, N)
    assert (noisy.var(-1) > 0.8 * parts.aleatoric).all()


def test_functions_of_a_linear_model_have_its_covariance():
    model = fitted("linear-gaussian")
    drawn = model.sample_f(X, N)
    _, covariance = model.predict(X, return_cov=True)
    exact = covariance - model.noise_std_**2 * np.eye(len(X))
    scale = np.sqrt(np.diag(exact))
    assert np.abs(np.cov(drawn) - exact).max() < 6.0 * scale.max() ** 2 / (N / 2) ** 0.5


def test_who_draws_no_functions_says_so_and_words_are_checked():
    ridge = BayesianRidge().fit(X, X[:, 0])
    with pytest.raises(TypeError, match=r"how rows vary together.*models of this package"):
        predictive(ridge, X).functions(2)
    with pytest.raises(TypeError, match="draws no functions"):
        predictive(LogisticRegression().fit(X, X[:, 0] > 0), X).functions(2)
    with pytest.raises(ValueError, match="return_std must be True, False or 'function', got 'f'"):
        fitted("linear-gaussian").predict(X, return_std="f")


def test_scipy_s_names_are_the_same_answers():
    law, y = predictive(fitted("linear-gaussian"), X), FITS["linear-gaussian"].y
    np.testing.assert_array_equal(law.logpdf(y), law.log_prob(y))
    np.testing.assert_array_equal(law.pdf(y), np.exp(law.log_prob(y)))
    np.testing.assert_array_equal(law.ppf([0.1, 0.9]), law.quantile([0.1, 0.9]))


@pytest.mark.parametrize("name", [n for n in REGRESSORS if FITS[n].X.dtype != object])
def test_functions_spread_far_from_all_rows(name):
    """Eight times as far from the middle of the rows, in the mean over rows."""
    model, rows = fitted(name), FITS[name].X
    far = rows.mean(axis=0) + 8.0 * (rows - rows.mean(axis=0))
    (_, near), (_, distant) = (model.predict(x, return_std="function") for x in (rows, far))
    assert distant.mean() > 1.3 * near.mean()


def test_importance_of_a_column_in_nats():
    """By scikit-learn's permutations: the density of others' values is what is lost."""
    result = permutation_importance(
        fitted("linear-gaussian"), X, FITS["linear-gaussian"].y, n_repeats=5, random_state=0,
        scoring=log_predictive_density_scorer,
    )  # fmt: skip
    assert result.importances_mean.argmax() == 0  # whose slope is 1, the others' -0.5 and 0
    assert result.importances_mean[0] > 0.1
