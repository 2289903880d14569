"""Wrong arguments: every public object names the argument and what it got."""

import numpy as np
import pytest
import torch
from fits import NUMBERS, X
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge

import skbayes_sym as sk
from skbayes_sym import acquisition, predictive
from skbayes_sym.callbacks import HeldOut
from skbayes_sym.factorization.solvers import VI, Gibbs
from skbayes_sym.model_selection import QuantilePredictor, get_scorer
from skbayes_sym.models import (
    ARD,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Invariances,
    LayerScales,
    LogScale,
    NegativeBinomial,
    Ordinal,
    StudentT,
)

ANYTHING = [
    None, -1.5, "nonsense", [], np.nan, -np.inf, object(), {}, b"x", 1 + 2j, np.eye(3), 10**400,
    lambda: 0, (1, 2, 3), Gaussian,
]  # fmt: skip

# Constructors and their arguments that take a number, a flag or an array.
CONSTRUCTORS = [
    (sk.HMC, "path_length jitter max_leapfrog min_step_factor", {}),
    (sk.Annealing, "n_adam n_hot n_settle energy_error", {}),
    (ARD, "shape output_variance", {}),
    (LayerScales, "shape output_variance", {}),
    (Gaussian, "log_noise learn", {}),
    (StudentT, "df log_noise learn log_tail", {}),
    (Heteroscedastic, "log_std spread least", {}),
    (NegativeBinomial, "log_dispersion learn", {}),
    (Ordinal, "noise_std learn", {"steps": torch.zeros(2)}),
    (Categorical, "n_points", {}),
    (Gibbs, "n_draws", {}),
    (VI, "covariance", {}),
    (Invariances, "n_augmentations learning_rate n_predict_augmentations", {}),
    (HeldOut, "patience", {"X": X, "y": NUMBERS}),
]
CASES = [(kind, name, rest) for kind, names, rest in CONSTRUCTORS for name in names.split()]
ALLOWED = {
    "path_length": (), "max_leapfrog": (10**400,), "n_adam": (10**400,), "n_hot": (10**400,),
    "n_settle": (10**400,), "log_std": (-1.5,), "n_points": (10**400,), "n_draws": (10**400,),
    "n_augmentations": (10**400,), "n_predict_augmentations": (10**400,), "patience": (10**400,),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "rest"), CASES)
def test_constructors_check_their_arguments(kind, name, rest):
    is_array = name in ("log_noise", "log_tail", "log_dispersion")
    for value in ANYTHING:
        if isinstance(value, int | float) and value in ALLOWED.get(name, ()):
            continue
        if is_array and isinstance(value, np.ndarray):
            continue
        with pytest.raises(ValueError, match=name):
            kind(**rest, **{name: value})


@pytest.mark.parametrize(
    "model",
    [
        sk.LaplaceRegressor(optimizer="adam"), sk.SymmetrizedVIRegressor(),
        sk.DeepEnsembleRegressor(), sk.BayesianLinearRegressor(), sk.MCMCRegressor(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("likelihood", [Gaussian(torch.zeros(3)), StudentT(torch.zeros(3))])
def test_noise_has_one_scale_or_one_per_target(model, likelihood):
    model = type(model)(**{**model.get_params(), "likelihood": likelihood})
    with pytest.raises(ValueError, match=r"3\s+scales, but y has 1 target|likelihood"):
        model.fit(X, NUMBERS)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_integers_beyond_floating_point_are_refused(value):
    stack = sk.PredictiveStackingRegressor([("line", "linear")], max_seconds=value)
    with pytest.raises(ValueError, match="max_seconds must lie in the range"):
        stack.fit(X, NUMBERS)
    with pytest.raises(ValueError, match="noise_std must lie in the range"):
        sk.LaplaceRegressor(noise_std=value).fit(X, NUMBERS)
    rows = X.astype(object)
    rows[3, 1] = value
    reg = sk.BayesianLinearRegressor()
    with pytest.raises(ValueError, match="range of float64"):
        reg.fit(rows, NUMBERS)
    with pytest.raises(ValueError, match="range of float64"):
        reg.fit(X, rows[:, 1])
    with pytest.raises(ValueError, match="range of float64"):
        reg.fit(X, NUMBERS, rows[:, 1])
    with pytest.raises(ValueError, match="range of float64"):
        reg.fit(X, NUMBERS).predict(rows)
    with pytest.raises(ValueError, match="best must be a finite number"):
        acquisition.expected_improvement(predictive(reg, X), value)


def test_weights_that_overflow_are_named():
    with pytest.raises(ValueError, match="sample_weight lies between"):
        sk.BayesianLinearRegressor().fit(X, NUMBERS, np.full(len(X), 1e308))


class TwoColumns(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros((len(X), 2))


class NegativeProbabilities(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return self.classes_[np.zeros(len(X), dtype=int)]

    def predict_proba(self, X):
        return np.column_stack([np.full(len(X), 1.5), np.full(len(X), -0.5)])


def test_members_that_predict_nonsense_are_left_out():
    members = [("wide", TwoColumns()), ("line", Ridge())]
    stack = sk.PredictiveStackingRegressor(members, random_state=0)
    with pytest.warns(FitFailedWarning, match=r"'wide' failed .* shape \(\d+, 2\)"):
        stack.fit(X, NUMBERS)
    assert list(stack.weights_) == ["line"]
    members = [("negative", NegativeProbabilities()), ("line", "linear")]
    stack = sk.PredictiveStackingClassifier(members, random_state=0)
    with pytest.warns(FitFailedWarning, match="'negative' failed .* probabilities from -0.5"):
        stack.fit(X, NUMBERS > 0)
    assert list(stack.weights_) == ["line"]


@pytest.mark.parametrize("level", [None, "a", 0.0, 1.0, 2.0, np.nan, [0.5], True])
def test_levels_of_scorers_are_checked(level):
    reg = sk.BayesianLinearRegressor().fit(X, NUMBERS)
    if level is not None:
        with pytest.raises(ValueError, match="quantile must be a number strictly between"):
            get_scorer("neg_pinball", quantile=level)
    with pytest.raises(ValueError, match="quantile must be a number strictly between"):
        QuantilePredictor(reg, level).predict(X)


@pytest.mark.parametrize("estimator", [None, 3.0, Ridge, "linear"])
def test_a_quantile_is_of_a_regressor(estimator):
    with pytest.raises(ValueError, match="estimator must be a regressor, got"):
        QuantilePredictor(estimator).fit(X, NUMBERS)


@pytest.mark.parametrize(
    "ask",
    [
        lambda distribution: acquisition.expected_improvement(distribution, 0.0),
        acquisition.upper_confidence_bound,
        acquisition.expected_information_gain,
        acquisition.thompson_sampling,
        lambda distribution: acquisition.select_batch(distribution, 2),
    ],
)
@pytest.mark.parametrize("distribution", [sk.BayesianLinearRegressor(), X, None, 3.0, "x"])
def test_acquisition_takes_predictive_distributions(ask, distribution):
    with pytest.raises(ValueError, match="distribution must be a predictive distribution"):
        ask(distribution)


@pytest.mark.parametrize("y", [["yes", "no"] * 12, np.array(["a", "b"] * 12, dtype=object)])
def test_labels_name_the_classifier(y):
    with pytest.raises(ValueError, match="Use BayesianLinearClassifier"):
        sk.BayesianLinearRegressor().fit(X, y)
    with pytest.raises(ValueError, match="Use PredictiveStackingClassifier"):
        sk.PredictiveStackingRegressor().fit(X, y)


def test_unexpected_keywords_name_the_user_s_class():
    for reg in (sk.PredictiveStackingRegressor(), sk.LaplaceRegressor()):
        name = type(reg).__name__
        with pytest.raises(TypeError, match=rf"{name}.fit\(\) got an unexpected keyword .*weights"):
            reg.fit(X, NUMBERS, weights=np.ones(len(X)))
    with pytest.raises(TypeError, match=r"SymVIMatrixFactorization.fit\(\) got an unexpected"):
        sk.SymVIMatrixFactorization().fit(X, weights=1.0)


def test_the_package_lists_its_own_names():
    public = {name for name in dir(sk) if not name.startswith("_")}
    assert public >= set(sk.__all__)
    assert not public & {"Any", "TYPE_CHECKING", "import_module"}


def test_a_transformation_is_no_prior():
    with pytest.raises(ValueError, match=r"prior must be .* got LogScale"):
        sk.LaplaceRegressor(prior=LogScale()).fit(X, NUMBERS)
