"""A parameter that doesn't apply is refused by name, with what to do; none is silently ignored."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

import skbayes_sym as sk
from skbayes_sym import Adam, EvidenceAdam, GaussNewton, Symmetrized, Updates, VariationalAdam
from skbayes_sym.factorization.solvers import VI, Gibbs
from skbayes_sym.models import (
    ARD,
    MLP,
    TANH,
    Affine,
    Bernoulli,
    Categorical,
    ColumnShift,
    HalfNormal,
    Invariances,
    Normal,
    Poisson,
    Rotation2D,
    StudentT,
)
from skbayes_sym.symmetry import Bethe, Importance, InfoNCE, Soules, Trivial, UnitGap

rng = np.random.default_rng(0)
X = rng.standard_normal((12, 3))
COUNTS = rng.poisson(2.0, 12).astype(float)
LABELS = np.where(X[:, 0] > 0, "a", "b")
IMAGES = rng.random((12, 30))

LINEAR = nn.Linear(3, 1)


class Mine(Adam):
    pass


class NoLayers:
    """Has a forward pass, and shows nothing of it."""

    def forward(self, theta, x):
        return x[:, :1]


Case = tuple[type, Mapping[str, Any], str]

OF_NETWORKS: list[tuple[Mapping[str, Any], str]] = [
    ({"network": LINEAR, "hidden_layer_sizes": (7,)}, r"hidden_layer_sizes=\(7,\) does not apply"),
    ({"network": LINEAR, "activation": "sigmoid"}, "activation='sigmoid' does not apply"),
]
NO_LAYOUT = {"network": NoLayers()}, "network=.*NoLayers.* has no layout and no .*BaseNetwork"
OF_NOISE: list[tuple[Mapping[str, Any], str]] = [
    ({"likelihood": Poisson(), "noise_std": 0.3}, "noise_std=0.3 does not apply")
]
OF_SAMPLED_NOISE: list[tuple[Mapping[str, Any], str]] = [
    (
        {"likelihood": Poisson(), "noise_std": HalfNormal(2.0)},
        r"noise_std=HalfNormal\(.*does not apply: the likelihood has no noise",
    )
]
OF_GAPS: list[tuple[Mapping[str, Any], str]] = [
    ({"symmetry": Symmetrized(None, Soules())}, r"gap=Soules\(.*\) does not apply: symmetry=None"),
    ({"symmetry": Symmetrized(gap=Bethe())}, r"gap=Bethe\(.* is an upper bound on the gap"),
    (
        {"symmetry": Symmetrized("permutation", UnitGap(Trivial(), Soules()))},
        "symmetry='permutation', but gap=UnitGap has a group of its own: leave symmetry='auto'",
    ),
]
OF_COUNTS_OF_NOTHING: list[tuple[Mapping[str, Any], str]] = [
    ({"n_modes": 0, "prior": Normal(1.0)}, r"prior=Normal\(.* does not apply: n_modes=0"),
    ({"n_modes": 0, "hidden_layer_sizes": (3,)}, r"hidden_layer_sizes=\(3,\) does not apply"),
]

FROM_A_MODE = VariationalAdam(init="laplace")
REFUSED: dict[type, list[tuple[Mapping[str, Any], str]]] = {
    sk.SymmetrizedVIRegressor: [
        *OF_NETWORKS,
        ({"network": nn.Linear(3, 2)}, "network has 2 outputs.*need 1"),
        ({"network": LINEAR, "optimizer": FROM_A_MODE}, "fully connected"),
        *OF_NOISE,
        *OF_GAPS,
        ({"optimizer": FROM_A_MODE, "likelihood": "poisson"}, "likelihood=Poisson.*init='random'"),
    ],
    sk.SymmetrizedVIClassifier: [
        *OF_NETWORKS,
        ({"network": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}, "couples the rows"),
        *OF_GAPS,
        (
            {"optimizer": FROM_A_MODE, "likelihood": "bernoulli"},
            "likelihood=Bernoulli.*init='random'",
        ),
    ],
    sk.LayerwiseVIRegressor: [
        ({"optimizer": FROM_A_MODE}, "init='laplace' is not for Layerwise"),
        *(({"hidden_posterior": given}, "hidden_posterior") for given in ("full", 0)),
        ({"optimizer": Adam(batch_size=4)}, "batch_size=4.*all 12 distinct rows.*'auto'"),
    ],
    sk.MCMCRegressor: [*OF_NETWORKS, *OF_NOISE, *OF_SAMPLED_NOISE, NO_LAYOUT],
    sk.MCMCClassifier: OF_NETWORKS,
    sk.DeepEnsembleRegressor: [
        *OF_NETWORKS,
        *OF_NOISE,
        *OF_SAMPLED_NOISE,
        NO_LAYOUT,
        ({"network": nn.Linear(3, 2)}, "network has 2 outputs.*need 1"),
    ],
    sk.DeepEnsembleClassifier: [
        *OF_NETWORKS,
        ({"network": nn.Linear(3, 2), "correction": "gaussian"}, "only members of network='mlp'"),
        ({"likelihood": Categorical(), "correction": "gaussian"}, "only members with the softmax"),
    ],
    sk.BayesianMLPRegressor: OF_COUNTS_OF_NOTHING,
    sk.BayesianMLPClassifier: OF_COUNTS_OF_NOTHING,
    sk.LaplaceRegressor: [
        *OF_NETWORKS,
        *OF_NOISE,
        ({"noise_std": [1.0, 2.0]}, "noise_std"),
        ({"network": NoLayers()}, "network=.*has no layout.*Linear and Conv2d"),
        ({"network": MLP(5, (2,), 1, TANH)}, r"inputs of shape \(5,\), but X has 3 columns"),
        ({"optimizer": GaussNewton(), "likelihood": Poisson()}, "Poisson.*[Nn]ormal noise"),
        ({"optimizer": GaussNewton(0)}, "n_restarts"),
        ({"optimizer": EvidenceAdam(updates=Updates(objective="map"))}, "LILA"),
        ({"optimizer": Mine()}, "is not for this estimator: give EvidenceAdam"),
        ({"optimizer": "gauss-newton", "network": LINEAR}, "fully connected"),
        ({"optimizer": "adam", "prior": ARD()}, "learns its scales by Gauss-Newton"),
        ({"optimizer": "adam", "prior": Normal(np.arange(1.0, 102.0))}, "prior scale per layer"),
    ],
    sk.LaplaceClassifier: [
        *OF_NETWORKS,
        ({"network": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}, "couples the rows"),
        ({"network": nn.Sequential(nn.Linear(3, 2), nn.Dropout())}, "random"),
        ({"network": nn.Linear(3, 5)}, "must give 2 outputs"),
        ({"network": nn.Linear(7, 2)}, r"doesn't take inputs of shape \(3,\)"),
        ({"prior": [1.0, 2.0, 3.0]}, "prior.*2 layers"),
        ({"optimizer": EvidenceAdam(curvature="kfac")}, "curvature"),
        ({"optimizer": EvidenceAdam(layers="first")}, "layers"),
        ({"optimizer": EvidenceAdam(updates=Updates(burn_in=1.0))}, "burn_in"),
        ({"optimizer": EvidenceAdam(updates=Updates(0))}, "'n'"),
    ],
    sk.LILARegressor: [*OF_NETWORKS, *OF_NOISE, ({"invariances": Affine()}, "give image_shape")],
    sk.LILAClassifier: [
        *OF_NETWORKS,
        ({"network": "cnn"}, "network='cnn' .*give image_shape"),
        ({"image_shape": (8, 8)}, r"\(8, 8\) has 64 pixels, but X has 30"),
        ({"image_shape": (30,)}, r"\(H, W\) or \(C, H, W\)"),
        ({"image_shape": (6.5, 5)}, "image_shape"),
        ({"image_shape": (-6, -5)}, "image_shape"),
        ({"network": "cnn", "image_shape": (6, 5), "activation": "relu"}, "activation='relu'"),
        ({"invariances": [3]}, "invariances=3 has no half_width"),
        ({"invariances": "rotations"}, "invariances='rotations' has no half_width"),
        ({"invariances": [Rotation2D(columns=(0, 30))]}, "between 0 and 29"),
        ({"invariances": [nn.Linear(2, 2)]}, "no parameter `eta`"),
        ({"invariances": Affine("polar"), "image_shape": (6, 5)}, "basis must be"),
        ({"optimizer": EvidenceAdam(updates=Updates(objective="elbo"))}, "has no transforms"),
        ({"optimizer": EvidenceAdam(updates=Updates(gradient="fast"))}, "gradient"),
        ({"optimizer": EvidenceAdam(layers="last")}, "covers all layers"),
        ({"network": nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 2))}, "couples"),
    ],
    sk.PredictiveStackingRegressor: [
        ({"estimators": []}, "at least one"),
        ({"estimators": [("a", "tree")]}, "'a' is 'tree', which is no member of the default list"),
        ({"estimators": [("a", "linear"), ("a", "trees")]}, "names of their own, got 'a' twice"),
        ({"estimators": ["linear"]}, "must hold pairs"),
        ({"estimators": [("a", LogisticRegression())]}, "'a' must be a regressor"),
        ({"estimators": [("a", LinearRegression)]}, "'a' must be a regressor"),
        ({"estimators": [("a", 3)]}, "'a' must be a regressor, got 3"),
        *(({"cv": cv}, "^cv=.* splits no rows .*Give an int, a splitter") for cv in (b"x", [1])),
    ],
    sk.BayesianLinearRegressor: [
        *(({name: "guess"}, name) for name in ("noise_std", "prior", "likelihood")),
        ({"likelihood": "poisson", "noise_std": 0.3}, "noise_std=0.3 does not apply"),
        ({"likelihood": Poisson(), "noise_std": 0.3}, "noise_std=0.3 does not apply"),
    ],
    sk.SymVIMatrixFactorization: [
        ({"likelihood": "poisson", "noise_std": 0.3}, "noise_std=0.3 does not apply"),
        ({"likelihood": StudentT(), "solver": Gibbs(5)}, "likelihood=StudentT.* needs solver='vi'"),
        ({"likelihood": Categorical()}, "likelihood=Categorical.* isn't supported by SymVIMatrix"),
    ],
}
# All its parameters apply whatever the others are.
NOTHING_TO_REFUSE = {
    sk.BayesianLinearClassifier, sk.PredictiveStackingClassifier
}  # fmt: skip
CASES: list[Case] = [(kind, *case) for kind, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    CASES,
    ids=[f"{kind.__name__}-{'-'.join(given)}" for kind, given, _ in CASES],
)
def test_what_does_not_apply_is_refused_by_name(
    kind: type, parameters: Mapping[str, Any], message: str
) -> None:
    y = LABELS if hasattr(kind, "predict_proba") else COUNTS
    rows = IMAGES if kind is sk.LILAClassifier else X
    with pytest.raises((TypeError, ValueError), match=message):
        kind(**parameters).fit(rows, y)


def test_every_estimator_is_asked() -> None:
    public = {found for name in sk.__all__ if hasattr(found := getattr(sk, name), "fit")}
    assert public - NOTHING_TO_REFUSE == set(REFUSED)


KINDS = [
    kind for kind in REFUSED
    if "likelihood" in kind._get_param_names() and not issubclass(kind, sk.SymVIMatrixFactorization)
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_likelihood_of_the_other_kind_is_refused(kind: type) -> None:
    is_classifier = hasattr(kind, "predict_proba")
    own, other = ("classes", "numbers") if is_classifier else ("numbers", "classes")
    for given in [Poisson(), StudentT()] if is_classifier else [Categorical(), Bernoulli()]:
        message = rf"^likelihood=\w+\(.*\) is of {other}, but {kind.__name__} predicts {own}"
        with pytest.raises(ValueError, match=message):
            kind(likelihood=given).fit(X, LABELS if is_classifier else COUNTS)


@pytest.mark.parametrize(
    ("given", "dtype", "sample_weight", "message"),
    [
        ({"noise_std": 1e300}, float, None, r"^noise_std=1e\+300 is .* between 1e-100 and 1e\+100"),
        ({"noise_std": 1e20}, np.float32, None, "between 1e-12 and"),
        ({}, float, 1e300, r"^sample_weight lies between 1e\+300 and 1e\+300"),
        ({}, np.float32, 1e-30, "^sample_weight lies between .* or give X as float64"),
        ({"prior": 1e-200}, float, None, "^prior must lie between 1e-100 and"),
    ],
)
def test_numbers_beyond_arithmetic_are_refused(
    given: Mapping[str, Any], dtype: type, sample_weight: float | None, message: str
) -> None:
    weight = None if sample_weight is None else np.full(len(X), sample_weight)
    for kind in (sk.SymmetrizedVIRegressor, sk.BayesianLinearRegressor):
        with pytest.raises(ValueError, match=message):
            kind(**given).fit(X.astype(dtype), 1e-20 * COUNTS, sample_weight=weight)


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_inputs_too_wide_or_narrow_to_shift_are_refused(factor: float) -> None:
    lila = sk.LILARegressor(invariances=ColumnShift())
    with pytest.raises(ValueError, match=r"^column \d of X spreads by .* rescale it"):
        lila.fit(factor * X, COUNTS)


OBJECTS: list[Case] = [
    (Importance, {"n_permutations": 0}, "Importance: n_permutations must be .* got 0"),
    (InfoNCE, {"n_permutations": 0}, "InfoNCE: n_permutations must be .* got 0"),
    (InfoNCE, {"n_permutations": 2.5}, "InfoNCE: n_permutations must be .* got 2.5"),
    *((Invariances, given, message) for given, message in [
        ({"n_augmentations": 0}, "n_augmentations must be an int of at least 1, got 0"),
        ({"n_augmentations": 2.5}, "n_augmentations must be an int of at least 1, got 2.5"),
        ({"n_predict_augmentations": 0}, "n_predict_augmentations .* must be an int .*, got 0"),
        ({"n_predict_augmentations": "all"}, "n_predict_augmentations .* must be .*, got 'all'"),
        ({"learning_rate": 0.0}, "learning_rate .'auto' or a number. must be a positive .*, got 0"),
        ({"learning_rate": "fast"}, "learning_rate .'auto' or a number. must be a positive number"),
    ]),
    (Gibbs, {"n_draws": 0}, "n_draws must be an int of at least 1, got 0"),
    (VI, {"covariance": "banded"}, "covariance must be one of .* got 'banded'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "message"), OBJECTS)
def test_objects_refuse_what_makes_no_sense(
    kind: type, settings: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**settings)


@pytest.mark.parametrize("kind", [Importance, InfoNCE])
def test_counts_may_be_those_of_a_search(kind: type) -> None:
    assert kind(np.int64(4)) == kind(4)
