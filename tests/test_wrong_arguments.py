"""Wrong arguments: every public object names the argument and what it got."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from fits import COUNTS, MATRIX, NUMBERS, SMALL, THREE, X, target
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge

import skbayes_sym as sk
from skbayes_sym import acquisition, predictive, symmetry
from skbayes_sym.callbacks import HeldOut
from skbayes_sym.factorization.solvers import VI, Gibbs
from skbayes_sym.inspection import IntervalCalibrationDisplay
from skbayes_sym.model_selection import QuantilePredictor, get_scorer
from skbayes_sym.models import (
    ARD,
    Affine,
    Categorical,
    ColumnShift,
    Composed,
    Gaussian,
    HalfNormal,
    HalfWidth,
    Heteroscedastic,
    Invariances,
    LayerScales,
    LogScale,
    NegativeBinomial,
    Normal,
    Ordinal,
    ParamLayout,
    Rotation2D,
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
    (Ordinal, "steps", {}),
    (LogScale, "joint", {}),
    (Categorical, "n_points", {}),
    (Gibbs, "n_draws", {}),
    (VI, "covariance", {}),
    (VI, "gap", {}),
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
    for value in ANYTHING:
        if isinstance(value, int | float) and value in ALLOWED.get(name, ()):
            continue
        if name == "gap" and value is None:
            continue
        with pytest.raises(ValueError, match=name):
            kind(**rest, **{name: value})


# Constructors and their arguments that take columns, axes, indices, names or parts.
SEQUENCES = [
    (LogScale, "columns", {}),
    (ColumnShift, "columns units", {}),
    (Rotation2D, "columns centre", {}),
    (HalfWidth, "names limits units", {"names": ("a",), "limits": (1.0,)}),
    (Composed, "parts", {}),
    (Affine, "image_shape", {}),
    (ParamLayout, "shapes", {}),
    (symmetry.Units, "index permute flip", {"index": torch.zeros(1, 1, dtype=torch.int64)}),
    (symmetry.Orthogonal, "index", {}),
    (symmetry.Translation, "inputs", {}),
    (symmetry.Product, "factors", {}),
    (symmetry.UnitEntries, "offset sizes strides merged",
     {"offset": 0, "sizes": (3, 4), "strides": (4, 1)}),
    (symmetry.AxisUnits, "entries n_units n_signs outer_shape permute",
     {"entries": (), "n_units": 1}),
    (symmetry.Wreath, "parts above", {"parts": (symmetry.AxisUnits((), 1),), "above": ((),)}),
    (symmetry.UnitGap, "group permanent bound n_draws",
     {"group": symmetry.Trivial(), "permanent": symmetry.Exact()}),
    (sk.LaplaceRegressor, "hidden_layer_sizes", {}),
    (sk.LILARegressor, "image_shape", {}),
]  # fmt: skip
NO_SEQUENCES = [
    -1.5, "nonsense", np.nan, object(), b"x", 1 + 2j, lambda: 0, Gaussian, [np.nan], ["a"],
    [("a", torch.nn.Linear(1, 1)), ("b",)], 10**400, [10**400, "a"], [None], np.eye(3), {1: 2},
]  # fmt: skip
VALID = {"n_draws": 10**400, "n_units": 10**400, "n_signs": 10**400, "offset": 10**400}


def _make(kind, settings):
    """Make an object, and fit it if it is an estimator, which doesn't check before."""
    made = kind(**settings)
    if isinstance(made, BaseEstimator):
        made.fit(X, NUMBERS)


@pytest.mark.parametrize(
    ("kind", "name", "rest"),
    [(kind, name, rest) for kind, names, rest in SEQUENCES for name in names.split()],
)
def test_sequences_are_checked(kind, name, rest):
    for value in NO_SEQUENCES:
        is_allowed = isinstance(value, int) and value == VALID.get(name)
        is_allowed |= name == "names" and isinstance(value, list) and value == ["a"]
        if not is_allowed:
            with pytest.raises((TypeError, ValueError), match=name):
                _make(kind, {**rest, name: value})


def test_numbers_beyond_floats_are_no_arrays():
    with pytest.raises(ValueError, match="nominal must be numbers of shape"):
        IntervalCalibrationDisplay(10**400, [0.5], 1, 0.0)


def test_columns_may_be_lists_and_arrays():
    shift = ColumnShift([0, np.int64(1)])
    assert shift == ColumnShift((0, 1)) == ColumnShift(np.array([0, 1]))
    assert hash(shift) == hash(ColumnShift(range(2)))
    assert hash(Rotation2D([1, 0], [0.0, 1])) == hash(Rotation2D((1, 0), (0.0, 1.0)))


# Every likelihood with a vector of parameters, by the name of the vector.
VECTORS = {
    "log_noise": [Gaussian, partial(Gaussian, learn=False), StudentT,
                  partial(StudentT, learn=False)],
    "log_dispersion": [NegativeBinomial, partial(NegativeBinomial, learn=False)],
    "log_tail": [StudentT, partial(StudentT, df="learn")],
    "steps": [partial(Ordinal, learn=False)],
}  # fmt: skip
BAD_SHAPES = [(2, 1), (1, 1), (1, 2), (2, 1, 1), (3,), (0,)]
WITH_LIKELIHOOD = [name for name, case in SMALL.items() if "likelihood" in case.get_params()]


def likelihood_fit(name, likelihood):
    """Return a function that fits an estimator with a likelihood, and predicts if it can."""
    model = clone(SMALL[name]).set_params(likelihood=likelihood)
    defaults = {"noise_std": getattr(type(model)(), "noise_std", None), "outliers": "keep"}
    model.set_params(**{k: v for k, v in defaults.items() if k in model.get_params()})
    if not hasattr(model, "predict"):
        return lambda: model.fit(np.abs(np.round(MATRIX)))
    if hasattr(model, "predict_proba"):
        return lambda: model.fit(X, THREE).predict(X)
    y = COUNTS if likelihood.is_discrete else NUMBERS
    return lambda: model.fit(X, y).predict(X)


@pytest.mark.parametrize("name", WITH_LIKELIHOOD)
@pytest.mark.parametrize("vector", VECTORS)
def test_parameters_of_likelihoods_are_vectors_of_the_right_length(name, vector):
    if (vector == "steps") != hasattr(SMALL[name], "predict_proba"):
        return
    if vector == "steps" and name in ("BayesianLinearClassifier", "BayesianMLPClassifier"):
        return  # no ordered classes at all
    for make in VECTORS[vector]:
        for shape in BAD_SHAPES:
            fit = likelihood_fit(name, make(**{vector: torch.zeros(shape)}))
            expected = rf"{vector}=...\) has {vector} of shape {re.escape(str(shape))}.* \(\d,\)"
            with pytest.raises(ValueError, match=expected):
                fit()
        right = torch.zeros(2 if vector == "steps" else 1)
        for value in (right + torch.nan, right + torch.inf, right.int(), right.requires_grad_()):
            fit = likelihood_fit(name, make(**{vector: value}))
            with pytest.raises(ValueError, match=rf"{vector}=...\) must hold finite floating"):
                fit()


# Values of another kind, which have attributes or lengths that arrays have, too.
WRONG_PRIORS = [{}, {"scale": 1.0}, object(), Gaussian(), torch.nn.Tanh(), HalfNormal(), b"x"]


@pytest.mark.parametrize(
    "name", [n for n, e in SMALL.items() if "prior" in e.get_params() and hasattr(e, "predict")]
)
def test_priors_of_another_kind_are_named(name):
    linear = [ARD(), LayerScales()] if name.startswith("BayesianLinear") else []
    for value in [*WRONG_PRIORS, *linear]:
        with pytest.raises((ValueError, TypeError), match="prior") as caught:
            clone(SMALL[name]).set_params(prior=value).fit(X, target(SMALL[name]))
        deepest = caught.traceback[-1].statement
        assert str(deepest).lstrip().startswith("raise"), (value, deepest)


@pytest.mark.parametrize("name", ["LILARegressor", "LILAClassifier"])
def test_lila_takes_normal_priors_as_scales(name):
    def predictions(prior):
        model = clone(SMALL[name]).set_params(prior=prior)
        return model.fit(X, target(SMALL[name])).predict_uncertainty(X)["epistemic"]

    np.testing.assert_array_equal(predictions(Normal(0.7)), predictions(0.7))
    np.testing.assert_array_equal(predictions(Normal([0.7, 2.0])), predictions([0.7, 2.0]))
    for prior in (ARD(), LayerScales()):
        with pytest.raises(ValueError, match="learns its scales by Gauss-Newton"):
            predictions(prior)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("invariances", v) for v in (np.zeros(0), np.array([1.0, np.nan]), 3.0, Gaussian)),
        *(("image_shape", v) for v in (["a", "b"], [1.5, 2.0], [np.nan, 1.0], [[1, 3]], b"xy")),
    ],
)
def test_transformations_and_images_of_another_kind_are_named(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        clone(SMALL["LILARegressor"]).set_params(**{name: value}).fit(X, NUMBERS)


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        ("LaplaceClassifier", "predictive"), ("LILAClassifier", "predictive"),
        ("LayerwiseVIRegressor", "hidden_posterior"),
    ],
)  # fmt: skip
def test_true_counts_as_one_in_parameters_with_numbers_and_names(estimator, name):
    # scikit-learn's constraints accept True as an int.
    model = clone(SMALL[estimator]).set_params(**{name: True})
    assert len(model.fit(X, target(model)).predict(X)) == len(X)


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


@pytest.mark.parametrize(
    "transformation", [LogScale(), ColumnShift(np.array([0, 1])), ColumnShift([1])]
)
def test_a_transformation_is_no_prior(transformation):
    with pytest.raises(ValueError, match=r"prior must be .* got (LogScale|ColumnShift)"):
        sk.LaplaceRegressor(prior=transformation).fit(X, NUMBERS)
