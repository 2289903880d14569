r"""An exact last layer above symmetrised hidden units: does it beat either alone?

    python asv_bench/studies/collapsed_last_layer.py [--kinds KIND ...] [--each N]

Let q(W) be independent normals over the weights into d hidden units, and integrate the last layer
v out given W, as `LayerwiseVIRegressor` does. An exchange g of units (and a flip of an odd one)
permutes the columns of the features, so p(gv | gW, y) = p(v | W, y), and log p(y | W) is the same
for all gW. Average the joint posterior q(W) p(v | W, y) over the group:

    q_G(W, v) = 1/|G| sum_g q(g^-1 W) p(g^-1 v | g^-1 W, y) = q_G(W) p(v | W, y).

Its gap is that of q(W) alone, log |G| plus E log q(W) less the expected log permanent of the
densities of *incoming* weights, and

    E_q log p(y | W) - KL[q(W) || p(W)] + I(g; W) <= log p(y).

Ten tanh units. Arms: ``layerwise`` is `LayerwiseVIRegressor`, ``collapsed`` the same trained on the
bound with the gap (exact, its gradient held five steps); both with learned scales, or with a prior
of 1 (", 1"). Each is compared with the defaults of `SymmetrizedVIRegressor`: nats a row, means with
standard errors over problems; how much the gap adds; CPU seconds of a fit.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from compare_starts import Problem, problems
from sklearn.model_selection import KFold
from threadpoolctl import threadpool_limits
from timing import cpu_seconds, mean_and_error

from skbayes_sym import LayerwiseVIRegressor, SymmetrizedVIRegressor
from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.numerics.optimise import OptimiseResult
from skbayes_sym.numerics.random import Estimate, generator_from
from skbayes_sym.symmetry.gaps.unit_gap import Exact, UnitGap
from skbayes_sym.symmetry.units import Units
from skbayes_sym.variational import layerwise as layerwise_vi
from skbayes_sym.variational.elbo import GatedGap
from skbayes_sym.variational.layerwise_posterior import LayerwiseElbo

WIDTH = 10


def gap_of(n_hidden_weights: int, n_draws: int = 4) -> UnitGap:
    """Gap of the weights into the units, which lie input by input."""
    index = torch.arange(n_hidden_weights).view(-1, WIDTH).T
    return UnitGap(Units(index, flip=True), Exact(), n_draws=n_draws)


class SymmetrizedLayerwiseElbo(LayerwiseElbo):
    """The bound of `LayerwiseElbo` for one hidden layer, with the gap of its units."""

    def __init__(self, family: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(family, *args, **kwargs)
        self._n = family.hidden.layout.n_params // 2
        self._gap = GatedGap(gap_of(self._n), generator=generator_from(1), hold=5)

    def __call__(self, step: int) -> torch.Tensor:
        loss = super().__call__(step)
        share = min(1.0, step / self._warm_up) if self._warm_up else 1.0
        loc, log_variance = self.params[: 2 * self._n].split(self._n)
        return loss - self._gap.add_gradient(loc, log_variance, self.gradient, step, share)


def evaluate(self: Any, result: OptimiseResult) -> layerwise_vi.LayerwiseAscent:
    """Evaluate the bound of a start, with the gap."""
    plain = original_evaluate(self, result)
    n = self.family.hidden.layout.n_params // 2
    loc, log_variance = (t.numpy() for t in result.params[: 2 * n].split(n))
    posterior = MeanFieldGaussian(loc, np.exp(0.5 * log_variance))
    gap = gap_of(n).estimate(posterior, 512, generator=generator_from(2))
    elbo = Estimate(plain.elbo.value + gap.value, plain.elbo.standard_error)
    return plain._replace(objective=plain.objective + gap.value, elbo=elbo)


original_evaluate = layerwise_vi.LayerwiseProblem.evaluate


@contextmanager
def symmetrised() -> Iterator[None]:
    """Train and choose by the bound with the gap."""
    with (
        patch.object(layerwise_vi, "LayerwiseElbo", SymmetrizedLayerwiseElbo),
        patch.object(layerwise_vi.LayerwiseProblem, "evaluate", evaluate),
    ):
        yield


class Arm(NamedTuple):
    make: Callable[..., Any]
    settings: dict[str, Any]
    context: Callable[[], Any] = nullcontext


ARMS = {
    "symmetrised": Arm(SymmetrizedVIRegressor, {}),
    "layerwise, 1": Arm(LayerwiseVIRegressor, {"prior": 1.0}),
    "collapsed, 1": Arm(LayerwiseVIRegressor, {"prior": 1.0}, symmetrised),
    "layerwise": Arm(LayerwiseVIRegressor, {}),
    "collapsed": Arm(LayerwiseVIRegressor, {}, symmetrised),
}


class Fit(NamedTuple):
    elbo: float  # nats a row, as is the next
    log_density: float
    noise: float  # over the targets' spread
    seconds: float


def fitted(arm: Arm, problem: Problem) -> Fit:
    model = arm.make((WIDTH,), "tanh", random_state=problem.seed, **arm.settings)
    with warnings.catch_warnings(), arm.context():
        warnings.simplefilter("ignore")
        _, seconds = cpu_seconds(lambda: model.fit(problem.x, problem.y))
    density = model.log_predictive_density(problem.x_test, problem.y_test)
    noise = model.noise_std_ / problem.y.std()
    return Fit(model.elbo_ / len(problem.y), float(density.mean()), noise, seconds)


def all_problems() -> Iterator[Problem]:
    """Problems of `compare_starts` with numbers, and the forty points of the front page."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-4.0, 4.0, size=(40, 1))
    y = np.sin(x[:, 0]) + 0.3 * rng.standard_normal(40)
    for train, test in KFold(5).split(x):
        yield Problem("old folds", 0, x[train], x[test], y[train], y[test])
    yield from (p for p in problems() if p.kind != "classes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=["old folds", "folds", "sines", "tables"])
    parser.add_argument("--each", type=int, default=99, help="problems of a kind, at most")
    args = parser.parse_args()
    by_kind: dict[str, list[Problem]] = {}
    for problem in all_problems():
        if problem.kind in args.kinds:
            by_kind.setdefault(problem.kind, []).append(problem)
    print(
        f"{'kind':11s}{'n':>3s}  {'arm':14s}{'log density':>11s}{'against symm.':>18s}"
        f"{'ELBO a row':>12s}{'against symm.':>18s}{'noise':>7s}{'CPU s':>7s}"
    )
    for kind, all_of_kind in by_kind.items():
        some = all_of_kind[:: -(-len(all_of_kind) // args.each)]
        fits = {name: [fitted(arm, p) for p in some] for name, arm in ARMS.items()}
        base = fits["symmetrised"]
        for name, found in fits.items():
            d = [a.log_density - b.log_density for a, b in zip(found, base, strict=True)]
            e = [a.elbo - b.elbo for a, b in zip(found, base, strict=True)]
            (d_mean, d_error), (e_mean, e_error) = mean_and_error(d), mean_and_error(e)
            elbo, density, noise, seconds = np.mean(found, axis=0)
            print(
                f"{kind:11s}{len(some):3d}  {name:14s}{density:11.3f}{d_mean:+10.3f} "
                f"({d_error:.3f}){elbo:12.3f}{e_mean:+10.3f} ({e_error:.3f})"
                f"{noise:7.2f}{seconds:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
