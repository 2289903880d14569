"""Fits beside those of `fits.FITS` that reach other lines of torch code: the axis of devices."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from fits import COUNTS, IMAGES, LABELS, MATRIX, NUMBERS, THREE, TWO_NUMBERS, FitCase, X

import skbayes_sym as sk
from skbayes_sym.inference.samplers import NUTS, SMC, Annealing, Evidence
from skbayes_sym.inference.solvers import MAP, VI, Gibbs
from skbayes_sym.models import (
    Affine,
    Augerino,
    Categorical,
    ColumnShift,
    Invariances,
    LayerScales,
    LogScale,
    Rotation2D,
)
from skbayes_sym.models.learned_scales import ARD
from skbayes_sym.models.priors import Normal
from skbayes_sym.symmetry.gaps.permanent_estimates import InfoNCE

Option = tuple[str, Any, Any, Any]  # name, estimator, X, y

_SEED = {"random_state": 0}
_NET = {"hidden_layer_sizes": (3,), **_SEED}
_DEEP = {"hidden_layer_sizes": (3, 2), **_SEED}
_STEPS = {"max_iter": 10, "tol": None}
_DRAWS = {"n_warmup": 12, "n_draws": 4, "mode_weights": "uniform"}
_CHAINS = {**_SEED, "init": "prior", "n_chains": 3, **_DRAWS}
_MODES = {**_SEED, "max_iter": 8, "tol": None, "n_hyper_updates": 4, "optimizer": "adam"}
_LILA = {**_SEED, "max_iter": 6, "tol": None, "n_hyper_updates": 3}
_MEMBERS = {**_SEED, **_STEPS, "n_members": 2}
_SWEEPS = {**_SEED, "n_components": 2, "max_iter": 12, "tol": 10.0}
_TURNS = Invariances([Rotation2D()], 2)
_MODULE = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
_CLASSES_MODULE = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
_TARGETS = {
    "heteroscedastic": TWO_NUMBERS, "student_t": NUMBERS, "poisson": COUNTS,
    "negative_binomial": COUNTS,
}  # fmt: skip


def _vi() -> Iterator[Option]:
    fit, classify = sk.SymmetrizedVIRegressor, sk.SymmetrizedVIClassifier
    signed = {**_STEPS, "activation": "tanh", "symmetry": "signed_permutation"}
    for gap, net in product(("exact", "importance", "infonce", "soules"), (_NET, _DEEP)):
        depth = len(net["hidden_layer_sizes"])
        yield f"vi-{gap}-{depth}", fit(**net, **signed, gap=gap), X, NUMBERS
    small = {**_NET, **_STEPS}
    yield "vi-iid", fit(**small, gap=InfoNCE(3, replacement=True)), X, NUMBERS
    for symmetry in ("permutation", "sign_flip", None):
        yield f"vi-{symmetry}", fit(**small, activation="tanh", symmetry=symmetry), X, NUMBERS
    for name, y in _TARGETS.items():
        yield f"vi-{name}", fit(**small, likelihood=name), X, y
    yield "vi-fixed-noise", fit(**small, noise_std=0.3), X, NUMBERS
    yield "vi-scales", fit(**small, prior=Normal([0.5, 1.5])), X, NUMBERS
    yield "vi-float32", fit(**small, dtype="float32"), X, NUMBERS
    yield "vi-minibatches", fit(**_DEEP, **_STEPS, batch_size=7), X, NUMBERS
    yield "vi-linear", fit((), **_STEPS, **_SEED), X, NUMBERS
    yield "vi-laplace", fit(**small, init="laplace"), X, TWO_NUMBERS
    yield "vi-laplace-classes", classify(**small, init="laplace"), X, THREE
    yield "vi-three", classify(**small, n_weight_samples=2), X, THREE
    yield "vi-bernoulli", classify(**small, likelihood="bernoulli"), X, LABELS


def _layerwise() -> Iterator[Option]:
    fit, small, deep = sk.LayerwiseVIRegressor, {**_NET, **_STEPS}, {**_DEEP, **_STEPS}
    inducing = {"hidden_posterior": "global_inducing", "n_inducing": 4}
    averaged = {"last_layer": "averaged_kl_heuristic"}
    yield "layerwise-averaged", fit(**small, **averaged), X, TWO_NUMBERS
    yield "layerwise-deep", fit(**deep), X, TWO_NUMBERS
    yield "layerwise-ard", fit(**deep, prior=ARD()), X, TWO_NUMBERS
    yield "layerwise-given", fit(**deep, prior_scale=[0.5, 1.0, 1.5]), X, NUMBERS
    yield "layerwise-inducing", fit(**deep, **inducing), X, NUMBERS


def _ensembles() -> Iterator[Option]:
    fit, classify = sk.DeepEnsembleRegressor, sk.DeepEnsembleClassifier
    for name, y in _TARGETS.items():
        yield f"ensemble-{name}", fit((3,), **_MEMBERS, likelihood=name), X, y
    yield "ensemble-module", fit(**_MEMBERS, network=_MODULE), X, NUMBERS
    yield "ensemble-gaussian", classify((3,), **_MEMBERS, correction="gaussian"), X, THREE
    yield "ensemble-bernoulli", classify((3,), **_MEMBERS, likelihood="bernoulli"), X, LABELS
    mlp, few = sk.BayesianMLPRegressor, {**_SEED, "n_modes": 1, "n_members": 1}
    yield "mlp-layer-scales", mlp((3,), prior=LayerScales(), **few), X, NUMBERS
    yield "mlp-auto", mlp(**few), X, NUMBERS


def _chains() -> Iterator[Option]:
    fit, classify, small = sk.MCMCRegressor, sk.MCMCClassifier, {**_CHAINS, **_NET}
    kernels = {"hmc": "hmc", "nuts": "nuts", "nuts-whole": NUTS(4, skip_finished=False)}
    for name, sampler in kernels.items():
        yield f"mcmc-{name}", fit(**small, sampler=sampler), X, NUMBERS
        yield f"mcmc-{name}-three", classify(**small, sampler=sampler), X, THREE
    for name, y in _TARGETS.items():
        yield f"mcmc-{name}", fit(**small, likelihood=name), X, y
    for name, prior in {"ard": ARD(), "layers": LayerScales(), "normal": Normal(0.7)}.items():
        yield f"mcmc-{name}", fit(**small, prior=prior), X, NUMBERS
    yield "mcmc-deep-tanh", fit(**_CHAINS, hidden_layer_sizes=(3, 2)), X, TWO_NUMBERS
    yield "mcmc-module", fit(**_CHAINS, network=_MODULE), X, NUMBERS
    yield "mcmc-laplace-classes", classify(**{**small, "init": "laplace"}), X, THREE
    annealing = {**small, "init": Annealing(4, 6, n_settle=4), "likelihood": "heteroscedastic"}
    yield "mcmc-annealing", fit(**annealing), X, NUMBERS
    particles = {**_SEED, "prior_scale": 1.0, "sampler": SMC(16, 2)}
    yield "mcmc-smc-uniform", fit((2,), **particles, mode_weights="uniform"), X, NUMBERS
    weighed = {**_SEED, "prior_scale": 1.0, "sampler": SMC(64, 2), "n_draws": 20}
    yield "mcmc-smc-evidence", fit((1,), **weighed, mode_weights="evidence"), X, NUMBERS
    trees = {**weighed, "sampler": "nuts", "init": "prior", "n_chains": 2, "n_warmup": 20}
    yield "mcmc-nuts-evidence", fit((1,), **trees, mode_weights=Evidence(1, 16)), X, NUMBERS


def _curvatures() -> Iterator[Option]:
    fit, classify, small = sk.LaplaceRegressor, sk.LaplaceClassifier, {**_MODES, **_NET}
    last = {**small, "layers": "last", "predictive": "probit"}
    for curvature in ("kron-ef", "kron-exact", "kron-sketch", "full", "diag"):
        yield f"laplace-{curvature}", fit(**small, curvature=curvature), X, NUMBERS
        yield f"laplace-{curvature}-last", classify(**last, curvature=curvature), X, THREE
        lila = sk.LILAClassifier((3,), **_LILA, curvature=curvature, invariances=_TURNS)
        yield f"lila-{curvature}", lila, X, LABELS
    for name, y in _TARGETS.items():
        yield f"laplace-{name}", fit(**small, likelihood=name), X, y
    yield "laplace-module", fit(**_MODES, network=_MODULE), X, NUMBERS
    yield "laplace-module-classes", classify(**_MODES, network=_CLASSES_MODULE), X, LABELS
    yield "laplace-minibatches", fit(**small, batch_size=7), X, NUMBERS
    yield "laplace-plugin", classify(**small, predictive="plugin"), X, THREE
    yield "laplace-layers", fit(**_NET, prior=LayerScales(), n_restarts=2), X, TWO_NUMBERS
    yield "laplace-linear", fit((), **_SEED, n_restarts=1), X, NUMBERS


def _invariances() -> Iterator[Option]:
    fit, classify, small = sk.LILARegressor, sk.LILAClassifier, {**_LILA, **_NET}
    for name, objective in {
        "augerino": "augerino", "reward": Augerino(reward=0.1), "map": "map",
    }.items():  # fmt: skip
        yield f"lila-{name}", fit(**small, objective=objective, invariances=_TURNS), X, NUMBERS
    for hyper in ("exact", "online"):
        model = fit(**small, hyper=hyper, batch_size=12, invariances=_TURNS)
        yield f"lila-{hyper}", model, X, NUMBERS
    subset = {**small, "evidence": "subset", "subset_size": 12}
    yield "lila-subset", classify(**subset, invariances=_TURNS), X, LABELS
    for name, family in {
        "shift": [ColumnShift()], "scales": [LogScale(joint=False)], "turns": [Rotation2D((0, 2))],
        "composed": [Rotation2D(), ColumnShift((2,))],
    }.items():  # fmt: skip
        yield f"lila-{name}", fit(**small, invariances=Invariances(family, 2)), X, NUMBERS
    for correlated in (False, True):
        families = Invariances(Affine(correlated=correlated), 2)
        model = classify(**small, image_shape=(6, 6), invariances=families)
        yield f"lila-affine-{correlated}", model, IMAGES, LABELS
    few = {**_LILA, "max_iter": 2, "n_hyper_updates": 1, "n_predict_samples": 3}
    for network in ("cnn", "resnet"):
        families = Invariances(Affine(), 2)
        model = classify(**few, network=network, image_shape=(6, 6), invariances=families)
        yield f"lila-{network}-affine", model, IMAGES[:8], LABELS[:8]


def _factors() -> Iterator[Option]:
    fit = sk.SymVIMatrixFactorization
    symmetries = ("auto", "orthogonal", "signed_permutation", "sign_flip", None)
    for covariance, symmetry in product(("full", "diag", "isotropic"), symmetries):
        options = {"solver": VI(covariance), "symmetry": symmetry, "prior_scale": 1.0}
        yield f"factors-{covariance}-{symmetry}", fit(**_SWEEPS, **options), MATRIX, None
    plain = {**_SWEEPS, "symmetry": None, "offsets": False, "prior_scale": 1.0}
    whole = np.nan_to_num(MATRIX)
    for name, solver in {"map": MAP(), "mean-field": "mean_field"}.items():
        yield f"factors-{name}", fit(**plain, solver=solver), whole, None
    gibbs = {**_SWEEPS, "tol": None, "symmetry": None, "solver": Gibbs(4)}
    yield "factors-gibbs-learned", fit(**gibbs), MATRIX, None
    yield "factors-gibbs-ard", fit(**gibbs, prior_scale="ard"), MATRIX, None
    yield "factors-student", fit(**_SWEEPS, likelihood="student_t"), MATRIX, None
    yield "factors-ard", fit(**_SWEEPS, prior_scale="ard"), MATRIX, None
    yield "factors-columns", fit(**_SWEEPS, offsets="columns"), MATRIX, None
    yield "factors-chosen", fit(**{**_SWEEPS, "n_components": "auto"}), MATRIX, None
    yield "factors-float32", fit(**_SWEEPS, dtype="float32"), MATRIX, None


def _linear() -> Iterator[Option]:
    fit, classify = sk.BayesianLinearRegressor, sk.BayesianLinearClassifier
    for name, y in {"student-t": NUMBERS, "poisson": COUNTS, "gaussian": NUMBERS}.items():
        yield f"linear-{name}", fit(name), X, y
        yield f"linear-{name}-wide", fit(name), IMAGES, y
    yield "linear-fixed", fit(prior_scale=1.0, noise_std=0.5), X, NUMBERS
    yield "linear-no-intercept", fit("poisson", fit_intercept=False), X, COUNTS
    yield "linear-loo", classify(**_SEED), X, LABELS
    yield "linear-multinomial-loo", classify(Categorical(n_points=32), **_SEED), X, THREE


_TABLES = (_vi, _layerwise, _ensembles, _chains, _curvatures, _invariances, _factors, _linear)
OPTIONS: dict[str, FitCase] = {
    name: FitCase(estimator, rows, y)
    for table in _TABLES
    for name, estimator, rows, y in table()
}  # fmt: skip
