"""One registration of a likelihood serves every estimator that supports it, and saved files.

The likelihoods here are unknown to the package until a test registers them. Every estimator with
a parameter ``likelihood`` either fits with the new name, exactly as with the object, and comes
back from a file; or it refuses the name with an error that lists the names it takes.
"""

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import ClassifierMixin, clone

import skbayes_sym as sk
from skbayes_sym.factorization.estimators import is_entry_likelihood
from skbayes_sym.models import (
    ClassLikelihood,
    Gaussian,
    Likelihood,
    TargetLikelihood,
    register_likelihood,
)
from skbayes_sym.models.likelihoods import registry
from skbayes_sym.models.likelihoods.registry import (
    CLASSIFICATION_LIKELIHOODS,
    REGRESSION_LIKELIHOODS,
    SupportedLikelihoods,
)

# Too few steps to converge, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@dataclass(frozen=True, eq=False)
class DoubleExponential(TargetLikelihood):
    """Targets scatter around the output with density ``exp(-|y - f| / b) / (2 b)``."""

    log_scale: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    @property
    def params(self):
        return self.log_scale

    def at(self, params):
        return replace(self, log_scale=params)

    def distribution(self, outputs):
        return torch.distributions.Laplace(outputs, self.log_scale.exp(), validate_args=False)


@dataclass(frozen=True, eq=False)
class TwoHeads(TargetLikelihood):
    """Double-exponential noise whose log scale is a second output."""

    n_outputs_per_target: ClassVar[int] = 2

    def distribution(self, outputs):
        mean, log_scale = outputs.chunk(2, -1)
        scale = log_scale.clamp(-9.0, 9.0).exp()
        return torch.distributions.Laplace(mean, scale, validate_args=False)


@dataclass(frozen=True, eq=False)
class ComplementaryLogLog(ClassLikelihood):
    """``p(y = 1 | f) = 1 - exp(-exp(f))``, two classes by one output."""

    def n_outputs(self, n_targets):
        if n_targets != 2:
            raise ValueError(f"ComplementaryLogLog has two classes, y has {n_targets}.")
        return 1

    def log_prob(self, outputs, y):
        rate = outputs.squeeze(-1).clamp(-20.0, 3.0).exp()
        return torch.where(y == 1, torch.log(-torch.expm1(-rate)), -rate)


TOYS = {
    "double_exponential": DoubleExponential(),
    "two_heads": TwoHeads(),
    "cloglog": ComplementaryLogLog(),
}

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (20, 2))
Y = 3.0 + 10.0 * np.sin(X[:, 0]) + rng.laplace(0.0, 1.0, 20)
LABELS = np.where(Y > 3.0, "high", "low")
RATINGS = rng.normal(size=(8, 2)) @ rng.normal(size=(2, 6)) + rng.laplace(0.0, 0.2, (8, 6))

NETWORK = {"hidden_layer_sizes": (3,), "activation": "tanh", "random_state": 0}
STEPS = {**NETWORK, "max_iter": 12, "tol": None}
SETTINGS = {
    "SymmetrizedVI": {**STEPS, "optimizer": sk.VariationalAdam(init="random")},
    "MCMC": {
        **NETWORK, "n_chains": 2, "n_draws": 4, "remove_symmetries": sk.ModeWeights("uniform"),
        "sampler": sk.Chains(sk.HMC(max_leapfrog=4), init="prior", n_warmup=20),
    },
    "DeepEnsemble": {**STEPS, "n_members": 2},
    "Laplace": {**STEPS, "optimizer": sk.EvidenceAdam(updates=sk.Updates(4))},
    "LILA": {**STEPS, "optimizer": sk.EvidenceAdam(updates=sk.Updates(4)), "invariances": None},
    "BayesianLinear": {"max_iter": 3, "random_state": 0},
    "BayesianMLP": {"hidden_layer_sizes": (2,), "n_modes": 1, "n_members": 2, "random_state": 0},
    "LayerwiseVI": {"hidden_layer_sizes": (3,), "max_iter": 4, "random_state": 0},
    "SymVIMatrixFactorization": {"n_components": 1, "max_iter": 5, "random_state": 0},
}  # fmt: skip

NORMAL_OR_SOFTMAX = sk.BayesianMLPRegressor | sk.BayesianMLPClassifier | sk.LayerwiseVIRegressor


def has_likelihood(name):
    """Whether an estimator of the package has a parameter ``likelihood``."""
    kind = getattr(sk, name)
    return hasattr(kind, "_get_param_names") and "likelihood" in kind._get_param_names()


ESTIMATORS = [name for name in sk.__all__ if has_likelihood(name)]


def make(name):
    """An estimator that fits quickly."""
    family = name.removesuffix("Regressor").removesuffix("Classifier")
    return getattr(sk, name)(**SETTINGS[family])


def supports(model, likelihood):
    """Whether an estimator supports a likelihood by its declared needs."""
    if isinstance(model, sk.SymVIMatrixFactorization):
        return is_entry_likelihood(likelihood)
    base = ClassLikelihood if isinstance(model, ClassifierMixin) else TargetLikelihood
    if isinstance(model, NORMAL_OR_SOFTMAX):
        return False
    one_output = isinstance(model, sk.BayesianLinearRegressor | sk.BayesianLinearClassifier)
    return isinstance(likelihood, base) and not (one_output and isinstance(likelihood, TwoHeads))


def fit(model):
    """Fit, and return what the model predicts for a few rows or entries."""
    if isinstance(model, sk.SymVIMatrixFactorization):
        return model.fit(RATINGS).predict_entries(np.arange(6), np.arange(6))
    if isinstance(model, ClassifierMixin):
        return model.fit(X, LABELS).predict_proba(X[:5])
    return model.fit(X, Y).predict(X[:5])


def predict(model):
    if isinstance(model, sk.SymVIMatrixFactorization):
        return model.predict_entries(np.arange(6), np.arange(6))
    return (
        model.predict_proba(X[:5]) if isinstance(model, ClassifierMixin) else model.predict(X[:5])
    )


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """Registrations of one test end with it."""
    monkeypatch.setattr(registry, "_BY_NAME", dict(registry._BY_NAME))
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))


def test_every_family_is_tested():
    families = {n.removesuffix("Regressor").removesuffix("Classifier") for n in ESTIMATORS}
    assert families == SETTINGS.keys()


@pytest.mark.long
@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_registration_serves_every_estimator(name, toy, tmp_path):
    model = make(name).set_params(likelihood=toy)
    before = r"likelihood.* (among|takes) "
    with pytest.raises(ValueError, match=before):
        fit(clone(model))
    register_likelihood(TOYS[toy], toy)
    if not supports(model, TOYS[toy]):
        unsupported = f"{before}|{type(TOYS[toy]).__name__}"
        with pytest.raises((ValueError, TypeError), match=unsupported):
            fit(clone(model))
        return
    predicted = fit(model)
    assert np.isfinite(predicted).all()
    as_object = clone(model).set_params(likelihood=TOYS[toy])
    np.testing.assert_array_equal(predicted, fit(as_object))
    for fitted in (model, as_object):
        path = tmp_path / "model.safetensors"
        sk.save(fitted, path)
        np.testing.assert_array_equal(predict(sk.load(path)), predicted)


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if not n.endswith("Classifier")])
def test_gaussian_is_the_default_by_name(name):
    model = make(name)
    default = fit(clone(model))
    np.testing.assert_array_equal(fit(model.set_params(likelihood="gaussian")), default)


def test_unregistered_classes_are_not_loaded(tmp_path, monkeypatch):
    register_likelihood(TOYS["double_exponential"], "double_exponential")
    model = make("BayesianLinearRegressor").set_params(likelihood=TOYS["double_exponential"])
    fit(model)
    path = tmp_path / "model.safetensors"
    sk.save(model, path)
    monkeypatch.delitem(registry._CLASSES, "DoubleExponential")
    with pytest.raises(ValueError, match="is not a model saved by"):
        sk.load(path)
    with pytest.raises(TypeError, match="DoubleExponential"):
        sk.save(model, path)


def test_wrong_registrations():
    with pytest.raises(ValueError, match="'poisson' is in use"):
        register_likelihood(DoubleExponential(), "poisson")
    with pytest.raises(ValueError, match="'auto' is in use"):
        register_likelihood(DoubleExponential(), "auto")
    with pytest.raises(TypeError, match="stands for an instance"):
        register_likelihood(DoubleExponential, "double_exponential")
    with pytest.raises(TypeError, match="inherits from"):
        register_likelihood(Likelihood(), "anything")
    twin = type("Gaussian", (TargetLikelihood,), {})
    with pytest.raises(ValueError, match="there is a likelihood class Gaussian already"):
        register_likelihood(twin)


def test_the_same_class_can_be_registered_again():
    register_likelihood(DoubleExponential(), "double_exponential")
    other = DoubleExponential(torch.ones(1, dtype=torch.float64))
    register_likelihood(other, "double_exponential")
    assert REGRESSION_LIKELIHOODS["double_exponential"] is other


def test_views_follow_the_registry():
    """Views are live, keep the order of registration, and put further names first."""
    auto = Gaussian()
    one_output = SupportedLikelihoods(lambda v: v.n_outputs_per_target == 1, {"auto": auto})
    assert next(iter(one_output)) == "auto"
    assert one_output["auto"] is auto
    assert "heteroscedastic" not in one_output
    assert len(one_output) == len(list(one_output.keys()))
    register_likelihood(ComplementaryLogLog(), "cloglog")
    assert list(one_output)[-1] == "cloglog"
    assert "cloglog" in CLASSIFICATION_LIKELIHOODS
    assert "cloglog" not in REGRESSION_LIKELIHOODS


def test_every_named_likelihood_has_fields_alone_as_its_state():
    """Saved files hold the fields, so an instance must not have other state."""
    for likelihood in (*REGRESSION_LIKELIHOODS.values(), *CLASSIFICATION_LIKELIHOODS.values()):
        assert vars(likelihood).keys() == {f.name for f in fields(likelihood)}
