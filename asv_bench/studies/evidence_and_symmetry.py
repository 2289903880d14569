"""Evidence of one small network: modes with their copies, draws around them, chains, a bound.

    python asv_bench/studies/evidence_and_symmetry.py [--problems 20] [--first 0]
                                                      [--activation tanh]

Networks of two or three units under an N(0, 1) prior and a known noise. ``one mode`` is the best of
``log_evidence_modes_``. ``reported`` is ``log_evidence_``, in which every mode counts with the gap
of its normal distribution, which is log |G| where no copies overlap and less where they do:

    log sum_r exp(log_evidence_modes_[r] + gap_r).

Its normals have the generalised Gauss-Newton matrix; ``Hessian`` the whole second derivative where
the weights have converged. ``draws`` are importance sampling: heavy
tails around these modes and all their copies, fitted anew to its own weighted draws, so that it has
no error but its own, which is printed. ``chains`` count all copies, too. The symmetrised mean-field
ELBO is a lower bound, loose by what a diagonal covariance costs.

A relu unit can be rescaled: incoming weights times s, outgoing ones divided by s. A normal
distribution has a straight line for this curve; `rescaling_orbit` has the whole of it, and
``curves`` and ``Hessian`` have its integral instead of the line's. (Other networks have no curves.)

A line a problem; at the end the differences from the chains'.
"""

import argparse
import warnings
from math import lgamma, log, pi

import numpy as np
import torch
from scipy.special import kve
from torch import Tensor

from skbayes_sym import LaplaceRegressor, MCMCRegressor, SymmetrizedVIRegressor
from skbayes_sym.laplace.posterior import ModeMixture
from skbayes_sym.mcmc.bridge import GaussianMixture, fit_gaussian_mixture
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.fundamental_domain import enumerate_group
from skbayes_sym.symmetry.gaps.monte_carlo_gap import MonteCarloGap

N_DRAWS, ROUNDS, N_LAST, DOF, COMPONENTS = 10_000, 6, 40_000, 8.0, 6


def table(seed: int) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Rows, targets, noise and units: more rows and less noise with every other seed."""
    rng = np.random.default_rng(seed)
    n, noise = (20, 40, 80)[seed % 3], (0.5, 0.2)[seed % 2]
    x = rng.uniform(-2.0, 2.0, (n, 1 + seed % 2))
    y = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, -1] + noise * rng.standard_normal(n)
    return x, y, noise, 2 + (seed // 2) % 2


def rescaling_orbit(a: float, b: float, m: int) -> float:
    r"""Log of :math:`\int_0^\infty e^{-(a s^2 + b / s^2) / 2} s^{m - 1} ds`.

    ``(b / a)^(m / 4) K_(m / 2)(sqrt(a b))``. With a unit's incoming weights (bias and all) and its
    outgoing ones in units of their prior's scale, ``a`` and ``b`` are their squared norms, and
    ``m`` is the number of incoming less that of outgoing ones.
    """
    root = (a * b) ** 0.5
    return 0.25 * m * log(b / a) + log(kve(0.5 * m, root)) - root


class Problem:
    """The posterior of one network, and its modes."""

    def __init__(self, x: np.ndarray, y: np.ndarray, noise: float, model: LaplaceRegressor) -> None:
        assert isinstance(model.network_, MLP)
        self.x = torch.tensor(x)
        self.y = torch.tensor(y)
        self.noise = noise
        self.network = model.network_
        self.p = model.network_.layout.n_params
        self.group = model.network_.symmetry()
        self.orbit = enumerate_group(self.group, self.p).orbit
        self.generator = torch.Generator().manual_seed(0)

    def outputs(self, theta: Tensor) -> Tensor:
        return self.network.forward(theta, self.x)[..., 0]

    def log_joint(self, theta: Tensor) -> Tensor:
        """Log density of targets and weights (*B, P), nats."""
        squares = ((self.y - self.outputs(theta)) / self.noise).square().sum(-1)
        constant = len(self.y) * log(2 * pi * self.noise**2) + self.p * log(2 * pi)
        return -0.5 * (squares + theta.square().sum(-1) + constant)

    def hessian(self, theta: Tensor) -> Tensor:
        return -torch.func.hessian(self.log_joint)(theta)

    def converged(self, theta: Tensor) -> Tensor:
        """The mode uphill of ``theta`` (P,), by damped Newton steps."""
        damping, height = 1e-2, self.log_joint(theta)
        for _ in range(200):
            values, vectors = torch.linalg.eigh(self.hessian(theta))
            slope = vectors.mT @ torch.func.grad(self.log_joint)(theta)
            if slope.norm() < 1e-8 or damping > 1e10:
                break
            moved = theta + vectors @ (slope / (values.abs() + damping))
            if self.log_joint(moved) > height:
                theta, height, damping = moved, self.log_joint(moved), damping / 3
            else:
                damping *= 4
        return theta

    def gap(self, loc: np.ndarray, factor: np.ndarray) -> float:
        """Gap of one normal distribution."""
        gap = MonteCarloGap(self.group, self.p, n_draws=500)
        return gap.estimate(ModeMixture(loc[None], factor[None]), generator=self.generator).value

    def distinct(self, modes: list[Tensor]) -> list[Tensor]:
        """Without copies of one another."""
        kept: list[Tensor] = []
        for theta in modes:
            images = self.orbit(theta)
            if all(float((images - other).norm(dim=1).min()) > 1e-3 for other in kept):
                kept.append(theta)
        return kept

    def curved(self, theta: Tensor, precision: Tensor) -> float:
        """Log of the integrals over relu units' curves less those over a normal's lines, nats."""
        w, bias, v, _ = self.network.layout.unflatten(theta).values()
        total = 0.0
        for i in range(len(w) if self.network.activation.name == "relu" else 0):
            line = torch.zeros_like(theta)
            along = self.network.layout.unflatten(line)
            along["W1"][i], along["b1"][i], along["W2"][:, i] = w[i], bias[i], -v[:, i]
            a, b = float(w[i].square().sum() + bias[i] ** 2), float(v[:, i].square().sum())
            if a * b < 1e-6:  # a unit that does nothing has no curve
                continue
            straight = 0.5 * (log(2 * pi / float(line @ precision @ line)) - a - b)
            total += rescaling_orbit(a, b, w.shape[1] + 1 - len(v)) - straight
        return total

    def with_copies(self, modes: list[Tensor], precisions: list[Tensor]) -> float:
        """Log evidence of normals at modes, each with its copies; nan of one that is no maximum."""
        total = -np.inf
        for theta, precision in zip(modes, precisions, strict=True):
            factor, failed = torch.linalg.cholesky_ex(precision)
            if failed:
                return np.nan
            alone = (
                self.log_joint(theta) + 0.5 * self.p * log(2 * pi) - factor.diagonal().log().sum()
            )
            added = self.gap(theta.numpy(), factor.numpy()) + self.curved(theta, precision)
            total = np.logaddexp(total, float(alone) + added)
        return total

    def sampled(self, modes: list[Tensor], precisions: list[Tensor]) -> tuple[float, float]:
        """Log evidence by draws around modes and their copies, and its standard error."""
        theta = torch.stack(modes)
        factor = torch.linalg.cholesky(torch.stack(precisions).inverse())
        height = self.log_joint(theta) + factor.diagonal(dim1=1, dim2=2).log().sum(1)
        mixture = GaussianMixture((0.5 * height).log_softmax(0), theta, factor)
        for last in [False] * ROUNDS + [True]:
            n = N_LAST if last else N_DRAWS
            gamma = torch._standard_gamma(torch.full((n, 1), 0.5 * DOF).double(), self.generator)
            width = (0.5 * DOF / gamma).sqrt()
            which = mixture.log_weights.exp().multinomial(n, True, generator=self.generator)
            noise = torch.randn(n, self.p, generator=self.generator, dtype=torch.float64)
            step = torch.einsum("npq,nq->np", mixture.cholesky[which], noise)
            draws = mixture.loc[which] + width * step
            by_copy = torch.cat([self._log_tails(part, mixture) for part in draws.split(1000)])
            log_ratio = self.log_joint(draws) - by_copy.logsumexp(1) + self.group.log_order
            share = log_ratio.softmax(0)
            if last:
                break
            chosen = share.multinomial(n // 2, True, generator=self.generator)
            copy = by_copy[chosen].softmax(1).multinomial(1, generator=self.generator)
            aligned = self.orbit(draws[chosen])[torch.arange(len(chosen)), copy[:, 0]]
            mixture = fit_gaussian_mixture(aligned, COMPONENTS)
        error = max(n * float(share.square().sum()) - 1.0, 0.0) / n
        return float(log_ratio.logsumexp(0)) - log(n), error**0.5

    def _log_tails(self, draws: Tensor, mixture: GaussianMixture) -> Tensor:
        """Log densities of Student's t in place of the normals, at all copies: (n, |G|)."""
        away = self.orbit(draws).unsqueeze(-2) - mixture.loc
        z = torch.einsum("kpq,ngkq->ngkp", mixture.cholesky.inverse(), away)
        constant = lgamma(0.5 * (DOF + self.p)) - lgamma(0.5 * DOF) - 0.5 * self.p * log(DOF * pi)
        log_det = mixture.cholesky.diagonal(dim1=1, dim2=2).log().sum(1)
        tails = 0.5 * (DOF + self.p) * torch.log1p(z.square().sum(-1) / DOF)
        return (mixture.log_weights + constant - log_det - tails).logsumexp(-1)


WAYS = "one mode", "reported", "curves", "Hessian", "draws", "bound"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--activation", default="tanh")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print("seed  rows units modes log|G| " + "".join(f"{way:>18s}" if way == "draws" else
          f"{way:>9s}" for way in WAYS) + f"{'chains':>18s}")  # fmt: skip
    found = []
    for seed in range(chosen.first, chosen.first + chosen.problems):
        x, y, noise, units = table(seed)
        common = {"activation": chosen.activation, "noise_std": noise, "prior": 1.0,
                  "standardize": False, "random_state": seed}  # fmt: skip
        laplace = LaplaceRegressor((units,), **common).fit(x, y)
        chains = MCMCRegressor((units,), **common).fit(x, y)
        bound = SymmetrizedVIRegressor((units,), max_iter=1500, **common).fit(x, y).elbo_
        problem = Problem(x, y, noise, laplace)
        modes = [torch.tensor(theta) for theta in laplace.posterior_.loc]
        normals = [torch.tensor(factor @ factor.T) for factor in laplace.posterior_.factor]
        summits = problem.distinct([problem.converged(theta) for theta in modes])
        curvatures = [problem.hessian(theta) for theta in summits]
        value, error = problem.sampled(modes, normals)
        alone = laplace.log_evidence_modes_.max()
        row = [alone, laplace.log_evidence_, problem.with_copies(modes, normals),
               problem.with_copies(summits, curvatures), value, bound]  # fmt: skip
        found.append([*row, error, chains.log_evidence_, chains.log_evidence_std_error_])
        shown = [f"{v:9.2f} +- {error:5.2f}" if v is value else f"{v:9.2f}" for v in row]
        start = f"{seed:4d} {len(x):5d} {units:5d} {len(modes):5d} {problem.group.log_order:6.2f} "
        end = f"{found[-1][-2]:9.2f} +- {found[-1][-1]:5.2f}"
        print(start + "".join(shown) + end, flush=True)
    values = np.array(found)
    print("less the chains'")
    for way, each in zip(WAYS, (values[:, :6] - values[:, 7:8]).T, strict=True):
        known = each[np.isfinite(each)]  # a mode at a kink has no curvature
        print(f"{way:9s} mean {known.mean():6.2f}, root mean square "
              f"{np.sqrt((known**2).mean()):5.2f}, largest {np.abs(known).max():5.2f}, of "
              f"{len(known)} problems")  # fmt: skip
    z = (values[:, 4] - values[:, 7]) / np.hypot(values[:, 6], values[:, 8])
    print(f"draws within two errors of the chains: {(np.abs(z) < 2).sum()}")


if __name__ == "__main__":
    main()
