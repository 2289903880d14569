"""Evidence of one small network, three ways: modes with their copies, chains, a symmetrised bound.

    python asv_bench/studies/evidence_and_symmetry.py [--problems 20] [--first 0]

Tanh networks of two or three units under an N(0, 1) prior and a known noise. Laplace's evidence of
a mode counts none of its copies. Here every distinct mode counts with the gap of its normal
distribution, which is log |G| where no copies overlap and less where they do, a lower bound on
what they add:

    log sum_r exp(log_evidence_modes_[r] + gap_r).

Beside it stand the evidence of chains with its standard error, which counts all copies, and the
symmetrised mean-field ELBO, a lower bound that is loose by what a diagonal covariance costs. A line
a problem; at the end mean and spread of the differences from the chains'.
"""

import argparse
import warnings

import numpy as np
import torch

from skbayes_sym import LaplaceRegressor, MCMCRegressor, SymmetrizedVIRegressor
from skbayes_sym.inference.laplace.laplace_posterior import ModeMixture
from skbayes_sym.symmetry.fundamental_domain import enumerate_group

N_DRAWS = 500


def table(seed: int) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Rows, targets, noise and units: more rows and less noise with every other seed."""
    rng = np.random.default_rng(seed)
    n, noise = (20, 40, 80)[seed % 3], (0.5, 0.2)[seed % 2]
    x = rng.uniform(-2.0, 2.0, (n, 1 + seed % 2))
    y = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, -1] + noise * rng.standard_normal(n)
    return x, y, noise, 2 + (seed // 2) % 2


def with_copies(model: LaplaceRegressor) -> tuple[float, float]:
    """Log evidence with every mode's copies, and the gap of the best mode."""
    group = model.network_.symmetry()
    orbit = enumerate_group(group, model.network_.layout.n_params)
    generator, gaps = torch.Generator().manual_seed(0), []
    for loc, factor in zip(model.posterior_.loc, model.posterior_.factor, strict=True):
        q = ModeMixture(loc[None], factor[None])
        theta = q.sample(N_DRAWS, generator=generator)
        log_q = q.log_prob(orbit.orbit(theta))
        average = log_q.logsumexp(1) - group.log_order
        gaps.append(float((log_q[:, 0] - average).mean()))
    total = np.logaddexp.reduce(model.log_evidence_modes_ + gaps)
    return float(total), gaps[int(model.log_evidence_modes_.argmax())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print("seed  rows units modes  log|G|   gap | Laplace  with copies   chains +- error |  bound")
    found = []
    for seed in range(chosen.first, chosen.first + chosen.problems):
        x, y, noise, units = table(seed)
        common = {"activation": "tanh", "noise_std": noise, "prior": 1.0, "standardize": False,
                  "random_state": seed}  # fmt: skip
        laplace = LaplaceRegressor((units,), **common).fit(x, y)
        chains = MCMCRegressor((units,), **common).fit(x, y)
        bound = SymmetrizedVIRegressor((units,), max_iter=1500, **common).fit(x, y).elbo_
        total, gap = with_copies(laplace)
        error = chains.log_evidence_std_error_
        found.append((laplace.log_evidence_, total, chains.log_evidence_, error, bound))
        print(
            f"{seed:4d} {len(x):5d} {units:5d} {laplace.n_modes_:5d} "
            f"{laplace.network_.symmetry().log_order:7.2f} {gap:6.2f} | {found[-1][0]:7.2f} "
            f"{total:11.2f} {chains.log_evidence_:9.2f} +- {error:5.2f} | {bound:6.2f}",
            flush=True,
        )
    away = np.array(found)[:, [0, 1, 4]] - np.array(found)[:, 2:3]
    away = away[np.isfinite(away).all(1)]
    for name, each in zip(("one mode", "with copies", "bound"), away.T, strict=True):
        print(f"{name:12s} less the chains': mean {each.mean():6.2f}, root mean square "
              f"{np.sqrt((each**2).mean()):5.2f}, largest {np.abs(each).max():5.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
