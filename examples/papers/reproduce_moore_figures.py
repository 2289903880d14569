r"""
Moore (2016): figures 1 to 4
============================

*Symmetrized variational inference* shows its results in four figures and prints no numbers. For
each of them this script prints what can be read off it beside what the package finds:

1. ``r = u v + noise``, r = 1.5: the mean-field posterior sits at the origin, the symmetrised one in
   a mode (and its mirror image).
2. ``r = u v' + noise`` with two components, r = 2: the posterior of u is a ring. Draws of the
   symmetrised posterior have no preferred direction, those of the base posterior have one.
3. The predictive mean of u v against r: 0 for MAP up to 1 and for mean-field inference up to the
   golden ratio, never for the exact answer and the symmetrised posterior.
4. Eighty matrices of 40 x 40 and rank 20 under noise 2: singular values of the predictive mean and
   its RMSE.

Run ``python reproduce_moore_figures.py`` (three minutes; a smoke run of
seconds with ``--fast``), or one figure with ``--figure 4``; ``--figure 0`` is
the objective as printed, against the log evidence.
"""

import argparse
import warnings

import numpy as np
import torch
from printed_rotation_gap import printed_objective
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import SymVIMatrixFactorization, invariance_gap
from skbayes_sym.factorization.factor_model import FactorState
from skbayes_sym.factorization.solvers import VI, Gibbs
from skbayes_sym.models import Gaussian
from skbayes_sym.numerics.random import random_orthogonal

# The paper's model: no offsets, and a prior that is given.
KNOWN = {"standardize": False, "offsets": False, "prior": 1.0, "random_state": 0}
SCALAR = SymVIMatrixFactorization(1, noise_std=1.0, tol=1e-10, max_iter=4000, **KNOWN)
METHODS = {
    "MAP": {"solver": "map", "max_iter": 3000, "tol": 1e-8},
    "MFVI": {"solver": VI(symmetry=None), "max_iter": 3000, "tol": 1e-8},
    "MFVI isotropic": {"solver": VI("isotropic", symmetry=None), "max_iter": 3000},
    "SymVI": {"solver": VI("isotropic")},
    "SymVI full": {"solver": VI("full")},
    "Gibbs": {"solver": Gibbs(400), "max_iter": 1000},
}


def show(paper: str, here: str) -> None:
    """One line of the comparison."""
    print(f"  paper: {paper}\n  here:  {here}")


def fitted(
    model: SymVIMatrixFactorization, matrix: object, **settings: object
) -> SymVIMatrixFactorization:
    """A new fit with other settings."""
    return clone(model).set_params(**settings).fit(matrix)


def figure_1(fast: bool) -> None:
    """Means of u and v at r = 1.5."""
    plain = fitted(SCALAR, [[1.5]], solver=VI(symmetry=None))
    at = [float(abs(side.mean[0, 0])) for side in plain.posterior_]
    show("mean-field at the origin", f"mean-field at ({at[0]:.3f}, {at[1]:.3f})")
    model = fitted(SCALAR, [[1.5]])
    u, v = (float(side.mean[0, 0]) for side in model.posterior_)
    gain = model.elbo_ - plain.elbo_
    show(
        "symmetrised in the two modes",
        f"at +-({abs(u):.3f}, {abs(v):.3f}), bound {gain:.3f} nats higher",
    )


def figure_2(fast: bool) -> None:
    """How far the second moments of u's draws are from those of a ring, r = 2, k = 2."""
    # R = U V' / sqrt(k): the entry and the noise are divided by sqrt(2).
    pair = SymVIMatrixFactorization(2, noise_std=0.5**0.5, tol=1e-10, max_iter=4000, **KNOWN)
    # One row and one column would need k = 1; a second, unobserved row and column keep the prior.
    matrix = np.array([[2.0 / 2**0.5, np.nan], [np.nan, np.nan]])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no observed entry")
        model = fitted(pair, matrix, solver=VI("isotropic"))
    mean, cov = model.posterior_.rows.mean[0], model.posterior_.rows.cov[0]
    n = 2_000 if fast else 200_000
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    base = rng.multivariate_normal(mean, cov, n)
    turns = random_orthogonal((n,), 2, generator=generator).numpy()
    turned = np.einsum("sp,spq->sq", base, turns)
    off = [abs(np.linalg.eigvalsh(x.T @ x / n)) for x in (base, turned)]
    ratio = [float(values[0] / values[1]) for values in off]
    gap = invariance_gap(model)
    radius = np.sqrt(np.mean(np.sum(turned**2, axis=1)))
    show("posterior of u is a ring", f"radius {radius:.2f}, smaller axis {ratio[1]:.3f} of larger")
    show("the base posterior is one arc", f"{ratio[0]:.3f} of larger; gap {gap.value:.2f} nats")


def exact_mean(r: float) -> float:
    """E[uv | r] by the trapezoidal rule over v: with v given, r is N(0, 1 + v^2)."""
    v = np.linspace(-12.0, 12.0, 4001)
    weight = np.exp(-0.5 * v**2 - 0.5 * r**2 / (1.0 + v**2)) / np.sqrt(1.0 + v**2)
    return float(weight @ (r * v**2 / (1.0 + v**2)) / weight.sum())


def figure_3(fast: bool) -> None:
    """Predictive means of u v."""
    observed = [1.0, 2.0] if fast else [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    columns = {"MAP": {"solver": "map", "max_iter": 20_000}, "MFVI": METHODS["MFVI"], "SymVI": {}}
    print("  paper: MAP is 0 up to r = 1, MFVI up to 1.618; SymVI follows Bayes")
    print("  here:  r     Bayes" + "".join(f"{name:>9}" for name in columns))
    for r in observed:
        means = [
            abs(float(fitted(SCALAR, [[r]], **settings).reconstruct()[0, 0]))
            for settings in columns.values()
        ]
        print(f"         {r:<4g}{exact_mean(r):7.4f}" + "".join(f"{m:9.4f}" for m in means))


def figure_4(fast: bool) -> None:
    """RMSE and singular values of the predictive mean of noisy matrices."""
    generator = torch.Generator().manual_seed(0)
    u, v, noise = (
        torch.randn(80, 40, width, generator=generator, dtype=torch.float64).numpy()
        for width in (20, 20, 40)
    )
    signals = u @ v.transpose(0, 2, 1) / 20**0.5
    model = SymVIMatrixFactorization(20, noise_std=2.0, **KNOWN)
    rmse, values = {}, {}
    for name, settings in METHODS.items():
        means = [
            fitted(model, s + 2.0 * e, **settings).reconstruct()
            for s, e in zip(signals[: 2 if fast else 80], noise, strict=False)
        ]
        off = np.array(means) - signals[: len(means)]
        rmse[name] = np.sqrt(np.mean(off**2, axis=(1, 2)))
        values[name] = np.linalg.svd(np.array(means), compute_uv=False).mean(axis=0)
    print("  paper: RMSE SymVI < MAP < MFVI; only SymVI keeps all 20 singular values")
    print(f"  here:  {len(off)} matrices    RMSE    against MAP      singular values 1, 5, 10, 20")
    for name, errors in rmse.items():
        to_map = errors - rmse["MAP"]
        error = to_map.std() / len(to_map) ** 0.5
        kept = "".join(f"{values[name][i]:7.2f}" for i in (0, 4, 9, 19))
        print(f"         {name:<15}{errors.mean():7.4f} {to_map.mean():+.4f} ({error:.4f}){kept}")


# log p(R) of the first ten matrices, good to 1.5 nats: tests/oracles/factor_evidence.py.
LOG_EVIDENCE = [
    -3561.3, -3532.2, -3555.25, -3478.27, -3559.5, -3591.83, -3491.27, -3596.48, -3587.4, -3550.78,
]  # fmt: skip


def objective(fast: bool) -> None:
    """The "ELBO" of listing 1 as printed, and the corrected one, against the log evidence."""
    generator = torch.Generator().manual_seed(0)
    u, v, noise = (
        torch.randn(80, 40, width, generator=generator, dtype=torch.float64)
        for width in (20, 20, 40)
    )
    matrices = (u @ v.mT / 20**0.5 + 2.0 * noise)[: 2 if fast else 10]
    model, found = SymVIMatrixFactorization(20, noise_std=2.0, **KNOWN), []
    for matrix in matrices:
        fit = fitted(model, matrix.numpy(), solver=VI("isotropic"))
        noise = Gaussian(torch.tensor([0.5 * np.log(4.0)]), learn=False)
        state = FactorState(fit.posterior_.mean, fit.posterior_.cov, noise)
        found.append((fit.elbo_, printed_objective(matrix, state, generator=generator)))
    corrected, printed = np.array(found).T - np.array(LOG_EVIDENCE[: len(matrices)])
    show(
        "a lower bound",
        f"as printed above the log evidence on {np.sum(printed > 0)} of {len(printed)} matrices, "
        f"by {printed.mean():.1f} nats on average; corrected {corrected.mean():.1f}, above it on "
        f"{np.sum(corrected > 0)}",
    )


FIGURES = {1: figure_1, 2: figure_2, 3: figure_3, 4: figure_4, 0: objective}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--fast", action="store_true", help="a smoke run: fewer draws and matrices")
    parser.add_argument("--figure", type=int, choices=FIGURES, help="only this one")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    for number, figure in FIGURES.items():
        if args.figure in {None, number}:
            print(f"Figure {number}" if number else "Listing 1, the objective")
            figure(args.fast)


if __name__ == "__main__":
    main()
