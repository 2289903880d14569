"""Estimators as scikit-learn's checks fit them, and who watches a fit."""

from typing import Any

import numpy as np
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym.factorization.solvers import VI
from skbayes_sym.models import Categorical, ColumnShift, Invariances

_LAPLACE = {"hidden_layer_sizes": (5,), "max_iter": 80, "tol": None, "random_state": 0}
_EIGHT = sk.EvidenceAdam(updates=sk.Updates(8))
_INVARIANT = {**_LAPLACE, "invariances": Invariances([ColumnShift()], 3)}

# What scikit-learn's checks fit, one of each class, some 50 times: as small as they let pass.
# Most ask nothing of what was learned, and get `hurried` ones.
_VARIATIONAL = {
    "hidden_layer_sizes": (5,), "max_iter": 150, "n_predict_samples": 50, "tol": None,
    "random_state": 0,
}  # fmt: skip
_TINY = {
    "hidden_layer_sizes": (3,), "max_iter": 40, "optimizer": sk.EvidenceAdam(updates=sk.Updates(2)),
    "tol": None, "invariances": Invariances([ColumnShift()], 2, n_predict_augmentations=2),
    "random_state": 0,
}  # fmt: skip
_MODES = {
    "hidden_layer_sizes": (2,),
    "optimizer": sk.GaussNewton(2),
    "max_iter": 10,
    "random_state": 0,
}
_MEMBERS = {"hidden_layer_sizes": (5,), "n_members": 2, "max_iter": 50, "random_state": 0}
_FEW = {"hidden_layer_sizes": (2,), "n_chains": 4, "sampler": sk.Chains(n_warmup=10), "n_draws": 4,
        "remove_symmetries": sk.ModeWeights("uniform"), "random_state": 0}  # fmt: skip
_FROM_THE_PRIOR = {
    **_FEW, "prior": 1.0, "sampler": sk.Chains(sk.HMC(max_leapfrog=8), init="prior", n_warmup=10),
}  # fmt: skip
_LAYERWISE = {"hidden_layer_sizes": (4,), "activation": "tanh", "max_iter": 40, "tol": None,
              "n_predict_samples": 40, "random_state": 0}  # fmt: skip
CHECKED = [
    sk.SymmetrizedVIRegressor(**_VARIATIONAL), sk.SymmetrizedVIClassifier(**_VARIATIONAL),
    sk.LayerwiseVIRegressor(**_LAYERWISE),
    sk.LaplaceRegressor(**_MODES), sk.LaplaceClassifier(**_MODES),
    sk.LILARegressor(**_TINY), sk.LILAClassifier(**_TINY),
    sk.BayesianLinearRegressor(random_state=0),
    sk.BayesianLinearClassifier(Categorical(n_points=16), prior=1.0, random_state=0),
    sk.DeepEnsembleRegressor(**_MEMBERS), sk.DeepEnsembleClassifier(**_MEMBERS),
    sk.MCMCRegressor(**_FROM_THE_PRIOR), sk.MCMCClassifier(**_FROM_THE_PRIOR),
    sk.SymVIMatrixFactorization(1, max_iter=10, random_state=0),  # few copies of themselves
    sk.PredictiveStackingRegressor([("a", "linear"), ("b", "gaussian_process")], random_state=0),
    sk.PredictiveStackingClassifier([("a", "linear"), ("b", "gaussian_process")], random_state=0),
]  # fmt: skip
# Other options of the same classes.
VARIANTS = [
    sk.LaplaceRegressor(**_LAPLACE, optimizer=_EIGHT),
    sk.LaplaceClassifier(**_LAPLACE, optimizer=_EIGHT),
    sk.LILAClassifier(**_LAPLACE, optimizer=_EIGHT, invariances=None),
    sk.LILARegressor(**_INVARIANT, optimizer=_EIGHT),
    sk.LILAClassifier(
        **_INVARIANT, optimizer=sk.EvidenceAdam(updates=sk.Updates(8, gradient="exact"))
    ),
    sk.BayesianLinearRegressor("student_t", random_state=0),
    sk.BayesianLinearClassifier(random_state=0),
    sk.BayesianLinearClassifier(Categorical(n_points=16), random_state=0),
    sk.LayerwiseVIRegressor(**_LAYERWISE, hidden_posterior=20),
    sk.MCMCRegressor(**_FEW), sk.MCMCClassifier(**_FEW),  # from modes
    sk.SymVIMatrixFactorization(1, solver=VI("diag"), max_iter=30, random_state=0),
]  # fmt: skip
_FEWEST = {
    "optimizer__updates__n": 1, "optimizer__n_restarts": 1, "sampler__n_warmup": 4, "n_draws": 2,
    "n_predict_samples": 10,
}  # fmt: skip


def hurried(estimator: Any) -> Any:
    """With hardly a step: predictions of the right kind, that nothing was learned for."""
    given, usual = estimator.get_params(), type(estimator)().get_params()
    few = {k: n for k, n in _FEWEST.items() if k in given and given[k] != usual.get(k)}
    return clone(estimator).set_params(**few, **({"max_iter": 3} if "max_iter" in given else {}))


_POOL = {"hidden_layer_sizes": (2,), "n_modes": 1, "n_members": 1, "random_state": 0}
POOLS = [sk.BayesianMLPRegressor(**_POOL), sk.BayesianMLPClassifier(**_POOL)]


# One entry per row given: repeated rows have more of them than weighted ones.
PER_ROW_GIVEN = {"site_location_", "site_variance_"}


def assert_same_fit(a: Any, b: Any, X: Any) -> None:
    """Bit for bit: the weights, what they predict, and all fitted numbers and arrays."""
    assert np.array_equal(weights(a), weights(b))
    assert np.array_equal(a.predict(X), b.predict(X))
    first, second = fitted_numbers(a), fitted_numbers(b)
    assert first.keys() == second.keys()
    assert {"elbo_", "log_evidence_", "log_posterior_samples_"} & first.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name, strict=True)


def weights(fitted: Any) -> Any:
    """Of the posterior's centre, of the members or of the draws."""
    return fitted.posterior_.loc if hasattr(fitted, "posterior_") else fitted.samples_


def fitted_numbers(estimator: Any) -> dict[str, Any]:
    """Attributes that a fit has set and that are numbers or arrays of them."""
    found = {
        name: getattr(estimator, name)
        for name in vars(estimator)
        if name.endswith("_") and not name.startswith("_")
    }
    return {
        k: v
        for k, v in found.items()
        if isinstance(v, int | float | np.ndarray) and k not in PER_ROW_GIVEN
    }


class Watch:
    """Sees every task; asks to stop after so many blocks of every fit."""

    def __init__(self, n_blocks: int = 10**9) -> None:
        self.n_blocks, self.begun, self.ended, self.set_up = n_blocks, 0, 0, 0

    def setup(self, estimator: Any, context: Any) -> None:
        self.set_up += 1

    def teardown(self, estimator: Any, context: Any) -> None:
        self.set_up -= 1

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.begun += 1

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        self.ended += 1
        return context.task_name == "block" and context.task_id + 1 >= self.n_blocks
