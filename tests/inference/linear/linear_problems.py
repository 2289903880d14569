"""Data of linear models, and their sites."""

import numpy as np
import torch

from skbayes_sym.inference.linear.sites import (
    LinearData,
    converge,
    first_sites,
    full_covariance,
    solve,
)
from skbayes_sym.models.likelihoods.categorical import SoftmaxSites
from skbayes_sym.numerics.gaussian import sobol_normal


def linear_data(X, y, *, n_outputs=1, fit_intercept=False, weight=None):
    X = torch.as_tensor(X, dtype=torch.float64)
    weight = torch.ones(len(X)) if weight is None else torch.as_tensor(weight)
    return LinearData(X, torch.as_tensor(y), weight.double(), n_outputs, X.shape[1], fit_intercept)


def fit(data, likelihood, prior_variance, family=full_covariance, tol=1e-11):
    """The fixed point, starting at a constant function."""
    variance = torch.as_tensor(prior_variance, dtype=torch.float64)
    sites = first_sites(data, likelihood, torch.zeros(data.n_outputs, dtype=torch.float64))
    state = solve(data, sites, variance, likelihood, family)
    return converge(data, state, family, tol=tol, max_iter=300).state


def problem(n=25, k=3):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, k))
    return X, X @ rng.normal(size=k), rng


def class_data():
    X, f, rng = problem()
    return linear_data(X, (f + rng.logistic(size=25) > 0).astype(np.int64))


def softmax(n_outputs=3, n_points=256):
    return SoftmaxSites(sobol_normal(n_points, n_outputs - 1, seed=0))
