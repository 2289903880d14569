"""Mean-field variational inference with the symmetrised ELBO (Gelberg et al. 2024).

    ELBO_G(q) = E_q[log p(y | theta)] - KL[q || p] + I(g; theta)      (their eq. 5)

(the minibatch estimate in their section 4 prints + KL for - KL). The likelihood term uses local
reparametrisation; the gap I has its own random stream, so that runs with and without it share
every other random number.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.gaussian_vi.gated import GatedGap
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Batches
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import ElboLikelihood, LayerViews
from skbayes_sym.models.priors import GaussianPrior, ScalesByGroup
from skbayes_sym.symmetry.group import SymmetryGroup


class GaussianMLP(NamedTuple):
    """A `Model` whose passes and KL are written out: an MLP with independent normal weights."""

    network: MLP
    likelihood: Likelihood
    prior: GaussianPrior | ScalesByGroup
    group: SymmetryGroup


def pack(loc: Tensor, log_variance: Tensor, likelihood: Likelihood) -> Tensor:
    """The optimiser's vector ``[loc | log variance | likelihood parameters]``."""
    return torch.cat([loc, log_variance, likelihood.params.to(loc)])


def learned_scales(
    prior: GaussianPrior | ScalesByGroup, device: torch.device
) -> ScalesByGroup | None:
    """Scales that the prior learns, on the device."""
    scales = prior.learned
    if scales is None:
        return None
    reference = scales.reference_variance.to(device)
    return replace(scales, group=scales.group.to(device), reference_variance=reference)


class SymmetrizedElbo:
    """Negative symmetrised ELBO and its gradient over one flat vector; a `BufferedLoss`.

    ``batches``: rows of every step; the likelihood's noise comes from their generator, too.
    ``params`` (2 P + n_params,): see `pack`; read at every call. ``n_draws``: local
    reparametrisation draws averaged a step. ``gap``: adds the symmetrisation gap; without it this
    is plain mean-field variational inference. ``warm_up``: steps over which the weights of KL and
    gap rise to 1 in the gradient; the loss that is returned has both in full.

    Scales of the prior that are learned go, every tenth step, to where the bound plus their
    hyperprior is highest for the posterior of that step, in closed form (`ScalesByGroup.update`).
    """

    def __init__(
        self,
        model: GaussianMLP,
        batches: Batches,
        params: Tensor,
        *,
        n_draws: int,
        gap: GatedGap | None = None,
        warm_up: int = 1,
    ) -> None:
        self._warm_up = warm_up
        network, likelihood, prior, _ = model
        n_params, n_rows = network.layout.n_params, batches.batch_size
        self.params, self.gradient = params, torch.zeros_like(params)
        self._likelihood, self._gap = likelihood.to(params), gap
        self._loc, self._log_variance = params[:n_params], params[n_params : 2 * n_params]
        self._own_params = params[2 * n_params :]
        self._d_loc = self.gradient[:n_params]
        self._d_variance = self.gradient[n_params : 2 * n_params]
        self._d_own = self.gradient[2 * n_params :]
        self._variance = torch.empty_like(self._loc)
        vectors = self._loc, self._variance, self._d_loc, self._d_variance
        self._views = LayerViews(*map(network.layers, vectors))
        self._precision = prior.precision.to(params)
        log_scale = float(prior.scale.double().log().sum())
        self._kl_constant = params.new_tensor(log_scale - 0.5 * n_params)
        self._scales = learned_scales(prior, params.device)
        self._minus_half = params.new_tensor(-0.5)
        self._inference_mode = torch.inference_mode()
        self._batches = batches
        self._log_lik = ElboLikelihood(network, n_rows, n_draws, params)
        widths = (*network.hidden_layer_sizes, likelihood.n_noise(network.n_outputs))
        # A step's normals, seen layer by layer; drawn in float32, as `standard_normal`.
        n = n_rows * n_draws
        self._drawn = params.new_empty(n * sum(widths), dtype=torch.float32)
        self._noise = torch.empty_like(self._drawn, dtype=params.dtype)
        stretches = self._noise.split([n * width for width in widths])
        self._layer_noise = [t.view(n, w) for t, w in zip(stretches, widths, strict=True)]

    def __call__(self, step: int) -> Tensor:
        if self._scales is not None and step % 10 == 0:  # an update costs as much as a small step
            found = self._scales.update(self._loc, self._log_variance.exp())
            self._precision.copy_(found.precision)
            self._kl_constant.copy_(found.scale.log().sum() - 0.5 * len(self._loc))
        with self._inference_mode:  # spares a twelfth of the time of tensors this small
            share = min(1.0, (step + 1) / self._warm_up)
            loss = self._mean_field(share)
        if self._gap is None:
            return loss
        moments = self._loc, self._log_variance
        return loss - self._gap.add_gradient(*moments, self.gradient, step, share)

    def _mean_field(self, share: float) -> Tensor:
        """Negative ELBO of the posterior itself; overwrites the gradient, the KL's by a share."""
        likelihood, batch = self._likelihood.at(self._own_params), self._batches.next()
        variance = torch.exp(self._log_variance, out=self._variance)
        self._noise.copy_(self._drawn.normal_(generator=self._batches.generator))
        log_lik = self._log_lik(likelihood, self._views, batch, self._layer_noise, self._d_own)
        return self._add_kl(variance, share).sub_(log_lik)

    def _add_kl(self, variance: Tensor, share: float) -> Tensor:
        """Closed-form KL[q || prior]; turns derivatives by variances into ones by log variances."""
        scaled_loc = self._loc * self._precision
        self._d_loc.add_(scaled_loc, alpha=share)
        twice = self._d_variance.add_(self._precision, alpha=share)
        constant = self._minus_half if share == 1.0 else share * self._minus_half
        torch.addcmul(constant, twice, variance, value=0.5, out=self._d_variance)
        quadratic = torch.dot(scaled_loc, self._loc).add_(torch.dot(variance, self._precision))
        quadratic.sub_(self._log_variance.sum())
        return torch.add(self._kl_constant, quadratic, alpha=0.5)
