"""Simulation-based calibration (Talts et al. 2018): where the truth stands among posterior draws.

Parameters are drawn from the prior, data given the parameters, and a model is fitted to the data.
If the posterior is right, the share of draws below the truth is uniform, whatever the quantity.

    python tests/sbc.py CASE [FIRST LAST]       prints p-values of a Kolmogorov-Smirnov test each

Pieces of a long run may be printed apart: ``python tests/sbc.py CASE 0 50 >> ranks.txt`` and later
``python tests/sbc.py pool ranks.txt``.
"""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from factorization.factorization_problems import model_of
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

import skbayes_sym as sk
from skbayes_sym.factorization.factor_model import FactorProblem
from skbayes_sym.factorization.gibbs import sample_factors
from skbayes_sym.factorization.sparse_entries import group_entries
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.priors import LayerScales

Ranks = dict[str, float]

_AS_GIVEN = {"standardize": False}
_SIGMA_RANGE = (0.3, 1.5)  # of the factorisation's noise, uniform in its logarithm
_SCATTER = 1.0  # what the learned prior of rows knows of a variance, per sqrt(k)


def mcmc(init: str, seed: int) -> Ranks:
    """A network of two units: a function value, the noise, the first layer's squares."""
    prior = LayerScales(shape=4.0)
    network = MLP(1, (2,), 1, TANH)
    bound = prior.bind(network.layout)
    generator = torch.Generator().manual_seed(seed)
    x = np.linspace(-2, 2, 12)
    theta = bound.collapse().sample(1, generator=generator)
    sigma = float(torch.randn(1, generator=generator, dtype=torch.float64).abs())
    f = network.forward(theta, torch.as_tensor(x)[:, None])[0, :, 0]
    y = f + sigma * torch.randn(12, generator=generator, dtype=torch.float64)
    reg = sk.MCMCRegressor(
        (2,), prior=prior, n_chains=8, n_draws=40, random_state=seed,
        sampler=sk.Chains(sk.HMC(), init=init, n_warmup=300, thinning=3),
        remove_symmetries=sk.ModeWeights("evidence"),
        **_AS_GIVEN,
    ).fit(x[:, None], y.numpy())  # fmt: skip
    draws = torch.as_tensor(reg.samples_).flatten(0, 1)
    at = torch.tensor([[0.7]], dtype=torch.float64)
    weight = reg._draw_weights()
    pairs = {
        "f(0.7)": (network.forward(draws, at)[:, 0, 0], network.forward(theta, at)[0, 0, 0]),
        "noise": (torch.as_tensor(reg.noise_std_samples_).flatten(), sigma),
        "|W1|^2": (
            bound.sum_by_group(draws.square())[:, 0],
            bound.sum_by_group(theta.square())[0, 0],
        ),
    }
    return {name: float(weight @ (d < truth).numpy()) for name, (d, truth) in pairs.items()}


def gibbs(learns: str, seed: int) -> Ranks:
    """Factors, 6 x 5 and two components: an entry seen, one missing, the squares of all.

    Entries don't tell how size is shared between U and V; draws are put where it is equal.
    """
    rng = np.random.default_rng(seed)
    n, m, k = 6, 5, 2
    sides = _factors(learns == "prior", (n, m), k, rng)
    low, high = np.log(_SIGMA_RANGE)
    sigma = float(np.exp(rng.uniform(low, high))) if learns == "noise" else 0.5
    truth = torch.as_tensor(np.concatenate(sides))
    X = truth[:n] @ truth[n:].mT / k**0.5 + sigma * torch.as_tensor(rng.standard_normal((n, m)))
    seen = torch.as_tensor(rng.random((n, m)) < 0.7)
    seen[:, 0], seen[0, :], seen[1, 1] = True, True, False
    rows, columns = seen.nonzero(as_tuple=True)
    data = group_entries(rows, columns, X[rows, columns], (n, m))
    model = model_of(
        k, "learn" if learns == "prior" else 1.0, sigma**2,
        (1e-6, 1e6) if learns == "noise" else None, scatter=_SCATTER,
    )  # fmt: skip
    problem = FactorProblem(data, data, model, max_iter=1200, seed=seed)
    rows, variance, *_ = sample_factors(
        problem, problem.initial_state, n_warmup=200, n_draws=250, on_sweep=lambda *told: False
    )
    noise = variance.sqrt()
    # The sampler's noise is uniform in its logarithm far beyond the range that the truth is from:
    # draws within it are draws of the posterior under the truth's prior.
    within = torch.ones(len(noise), dtype=torch.bool)
    if learns == "noise":
        within = (noise > _SIGMA_RANGE[0]) & (noise < _SIGMA_RANGE[1])
    drawn, expected = (_figures(f, n) for f in (rows[within], truth[None]))
    if learns == "noise":
        drawn["noise"], expected["noise"] = noise[within], torch.tensor([sigma])
    return {name: float((drawn[name] < value).double().mean()) for name, value in expected.items()}


def _factors(
    learned: bool, shape: tuple[int, int], k: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Rows of U and of V from their prior, normal or normal-Wishart."""
    if not learned:
        return [rng.standard_normal((size, k)) for size in shape]
    sides = []
    for size in shape:
        precision = stats.wishart(k, np.eye(k) / (_SCATTER * k**0.5)).rvs(random_state=rng)
        root = np.linalg.inv(np.linalg.cholesky(precision)).T  # root root' is the covariance
        sides.append((rng.standard_normal(k) + rng.standard_normal((size, k))) @ root.T)
    return sides


def _figures(rows: torch.Tensor, n: int) -> dict[str, torch.Tensor]:
    left, right = rows[:, :n], rows[:, n:]
    return {
        "seen": (left[:, 0] * right[:, 0]).sum(-1),
        "missing": (left[:, 1] * right[:, 1]).sum(-1),
        "|UV'|^2": (left @ right.mT).square().sum((1, 2)),
    }


def linear(likelihood: str, seed: int) -> Ranks:
    """A linear model with given scales: a coefficient and an output, ranked by the posterior."""
    rng = np.random.default_rng(seed)
    n, d = 40, 4
    X = rng.standard_normal((n, d))
    w = 0.7 * rng.standard_normal(d)
    f = X @ w
    settings = {"prior": 0.7, "fit_intercept": False, "standardize": False, "tol": 1e-8}
    if likelihood == "logistic":
        y = (rng.random(n) < 1 / (1 + np.exp(-f))).astype(int)
        y[:2] = 0, 1  # both classes are there, or there is nothing to fit
        X[:2] = 0.0  # rows that say nothing of the weights
        model = sk.BayesianLinearClassifier(variance_scale=1.0, random_state=0, **settings)
        model.fit(X, y)
        mean, cov = np.ravel(model.posterior_.loc), model.posterior_.dense_covariance()
    else:
        if likelihood == "poisson":
            y, own = rng.poisson(np.exp(f)).astype(float), {}
        elif likelihood == "student_t":
            y, own = f + 0.5 * rng.standard_t(4, n), {"noise_std": 0.5}
        else:
            y, own = f + 0.5 * rng.standard_normal(n), {"noise_std": 0.5}
        model = sk.BayesianLinearRegressor(likelihood, **own, **settings).fit(X, y)
        mean, cov = model.coef_, model.coef_cov_
    return {
        "w1": float(stats.norm.cdf(w[0], mean[0], cov[0, 0] ** 0.5)),
        "f(1)": float(stats.norm.cdf(w.sum(), mean.sum(), cov.sum() ** 0.5)),
        # Of the whole vector: chi-squared with d degrees of freedom.
        "all": float(stats.chi2.cdf((w - mean) @ np.linalg.solve(cov, w - mean), d)),
    }


CASES: dict[str, Callable[[int], Ranks]] = {
    "mcmc-prior": partial(mcmc, "prior"),
    "mcmc-laplace": partial(mcmc, "laplace"),
    "gibbs": partial(gibbs, "nothing"),
    "gibbs-noise": partial(gibbs, "noise"),
    "gibbs-prior": partial(gibbs, "prior"),
    **{f"linear-{name}": partial(linear, name)
       for name in ("gaussian", "student_t", "poisson", "logistic")},
}  # fmt: skip
N_REPLICATIONS = 200


def ranks(case: str, seeds: Sequence[int]) -> list[Ranks]:
    """Of every replication."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        return [CASES[case](seed) for seed in seeds]


def p_values(found: Sequence[Ranks]) -> Ranks:
    """That ranks are uniform, quantity by quantity."""
    return {
        name: float(stats.kstest([r[name] for r in found], "uniform").pvalue) for name in found[0]
    }


def _print(title: str, found: Sequence[Ranks]) -> None:
    figures = ", ".join(f"{name} {p:.3f}" for name, p in p_values(found).items())
    print(f"{title}: {len(found)} replications, p = {figures}")


if __name__ == "__main__":
    if sys.argv[1] == "pool":
        pieces = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
        for case in dict.fromkeys(piece["case"] for piece in pieces):
            _print(case, [r for p in pieces if p["case"] == case for r in p["ranks"]])
    elif len(sys.argv) == 2:
        _print(sys.argv[1], ranks(sys.argv[1], range(N_REPLICATIONS)))
    else:
        span = range(*map(int, sys.argv[2:4]))
        print(json.dumps({"case": sys.argv[1], "ranks": ranks(sys.argv[1], span)}))
