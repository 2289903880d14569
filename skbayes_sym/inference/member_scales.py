r"""Modes of a posterior whose prior learns its scales, every mode its own.

A mode of weights and scales together would shrink every group that the data don't hold: at

.. math:: \alpha_g = \frac{n_g + 2a}{|\theta_g|^2 + 2 a s_g^2}

(the mode in :math:`\log \alpha_g`, at which the hyperprior's rate :math:`a s_g^2` alone keeps the
precision finite) all :math:`n_g` weights count as determined by the data, also those that only
follow their prior. The evidence of the scales integrates the weights out. By Laplace's
approximation at the mode :math:`\theta`, with the covariance C of `determined`, its maximum
under the hyperprior is at

.. math:: \alpha_g = \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2}
          \iff
          \alpha_g = \frac{n_g + 2a}{|\theta_g|^2 + \operatorname{tr}_g C + 2 a s_g^2}, \qquad
          \gamma_g = n_g - \alpha_g \operatorname{tr}_g C

(MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 21; the form on the
right is what mean-field inference maximises in closed form, with the posterior's variances for
those of C). A group that no row speaks for has :math:`\gamma_g = 0`, and at weights of zero its
precision is the hyperprior's :math:`1 / s_g^2` instead of :math:`n_g / (2 a s_g^2)` times as much.

Normal noise whose precision the evidence sets, too, follows
:math:`\beta_t = (N - \gamma_t) / \sum_n w_n r_{nt}^2`, with :math:`\gamma_t` the sum of the rows'
leverages (the same, eq. 22): trained as a parameter it would be too small by what the weights have
taken, and the scales would follow it, since all that it calls determined counts.
"""

from collections.abc import Callable, Container
from dataclasses import replace

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.determined import Determined, determined
from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.map import MapObjective
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import ScalesByGroup

_FIRST, _EVERY = 10, 20  # updates begin after a tenth of the steps, and come each twentieth
_DAMPING = 0.7  # share of a logarithmic step, as of modes that Gauss-Newton steps find
_LEAST_FREEDOMS = 1.0  # rows that are left to the noise, at least


def update_steps(max_iter: int) -> range:
    """Steps of ``max_iter`` at which scales move: eighteen, the weights alone before."""
    every, first = max(1, max_iter // _EVERY), max(1, max_iter // _FIRST)
    return range(-(-first // every) * every, max_iter, every)


class ScaledModes(MapObjective):
    """`MapObjective` under a prior whose scales follow the evidence of every position.

    ``posterior``: with a prior of learned scales, those to start from: (G,), or (M, G).
    ``density``: what training sees of it: all rows, or minibatches. ``position`` (M, D): where the
    searches start. ``rows``: all rows in float64, for the curvature. ``steps``: when scales move,
    as `update_steps` has it. ``log_noise_range``: where the evidence sets the noise, which must be
    normal and learned: its logarithm's ends. By default it is trained as a parameter.

    An update takes M times `determined`; between updates scales (and noise) stay.
    """

    def __init__(
        self, posterior: NetworkPosterior, density: Callable[[NetworkPosterior], LogDensity],
        position: Tensor, rows: Data, steps: Container[int],
        log_noise_range: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        prior: ScalesByGroup = posterior.prior  # type: ignore[assignment]
        self._posterior, self._make, self._rows, self._steps = posterior, density, rows, steps
        self._log_noise_range, self._holds_noise = log_noise_range, False
        self.prior = replace(prior, hyper=prior.hyper.expand(len(position), -1))
        super().__init__(self._density(), posterior.network.layout.n_params, position)

    def __call__(self, step: int) -> Tensor:
        if step in self._steps:
            self._update()
        value = super().__call__(step)
        if self._holds_noise:
            self.gradient[self.n_theta :] = 0.0
        return value

    def _update(self) -> None:
        position, n = self.position.double(), self._posterior.network.layout.n_params
        variance, taken = determined_by_each(self._posterior, self.prior, position, self._rows)
        self.prior = learned(self.prior, position[:, :n], variance)
        self._log_density = self._density()
        if self._log_noise_range is not None:
            log_noise = learned_noise(self._posterior, position, taken, self._rows)
            self.params[self.n_theta :] = log_noise.clamp(*self._log_noise_range).flatten()
            self._holds_noise = True

    def _density(self) -> LogDensity:
        self._posterior = replace(self._posterior, prior=self.prior)
        return self._make(self._posterior)


def determined_by_each(
    posterior: NetworkPosterior, prior: ScalesByGroup, position: Tensor, rows: Data
) -> Determined:
    """`determined` of every position (M, D), under scales of its own: (M, P) and (M, K)."""
    network, n = posterior.network, posterior.network.layout.n_params
    likelihood, scale = posterior.likelihood.to(rows.x), prior.scale.to(rows.x)
    each = [
        determined(network, likelihood.at(one[n:]), one[:n], rows, prior_scale)
        for one, prior_scale in zip(position, scale, strict=True)
    ]
    return Determined(*(torch.stack(t) for t in zip(*each, strict=True)))


def learned(prior: ScalesByGroup, theta: Tensor, variance: Tensor) -> ScalesByGroup:
    """The prior after one damped step of the scales (M, G) of weights (M, P)."""
    hyper = prior.evidence_step(theta, variance, prior.hyper.to(theta), _DAMPING)
    return replace(prior, hyper=hyper.to(prior.hyper))


def learned_noise(
    posterior: NetworkPosterior, position: Tensor, taken: Tensor, rows: Data
) -> Tensor:
    """Logarithms of the noise (M, T) after one damped step, of ``taken`` rows (M, T)."""
    n = posterior.network.layout.n_params
    residual = rows.y - posterior.network.forward(position[:, :n], rows.x)
    squares = torch.einsum("n,mnt->mt", rows.weight, residual.square_())
    freedoms = (rows.weight.sum() - taken).clamp_min(_LEAST_FREEDOMS)
    goal = 0.5 * (squares.clamp_min(torch.finfo(squares.dtype).tiny) / freedoms).log()
    return torch.lerp(position[:, n:], goal, _DAMPING)
