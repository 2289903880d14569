"""Mean-field variational inference with the symmetrised ELBO (Gelberg et al. 2024).

    ELBO_G(q) = E_q[log p(y | theta)] - KL[q || p] + I(g; theta)      (their eq. 5)

(the minibatch estimate in their section 4 prints + KL for - KL). The likelihood term uses local
reparametrisation; the gap I has its own random stream, so that runs with and without it share
every other random number.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Batches
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import ElboLikelihood, LayerViews
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GaussianPrior, ScalesByGroup
from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.symmetry.gaps.gap import Gap, MeanField
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap
from skbayes_sym.symmetry.group import SymmetryGroup


class GatedGap:
    """A gap's value and gradient, skipped while a certificate says that both are settled.

    The certificate bounds ``log |G| - i(theta)`` from above at one draw, so a value below ``tol``
    certifies that this draw's gap is saturated and its gradient negligible. It is looked at before
    the first step, then at the first beginning of a block of steps that lies T steps or more beyond
    the last look: a GPU has been waited for there. While the certificate passes the term is
    skipped, and T backs off from ``every`` to ``max_every``; T falls back when it fails, so the
    gate never latches.

    ``gap``: exact or a lower bound. ``certificate``: of the same group, never above the gap at any
    draw: ``UnitGap(group, Soules())``. Without one the gap is evaluated at every step.
    ``generator``: the gap's own stream. ``hold``: steps that a value and its gradient stand for.
    ``block``: steps of a block. ``every``, ``max_every``: fewest and most steps between two checks.
    ``tol``: nats, and at least 1e-4 of ``log |G|``, with which draws scatter.
    """

    def __init__(
        self,
        gap: Gap[MeanField],
        certificate: UnitGap | None = None,
        *,
        generator: torch.Generator,
        hold: int = 1,
        block: int = 10,
        every: int = 25,
        max_every: int = 100,
        tol: float = 1e-2,
    ) -> None:
        if gap.side == "upper":
            raise ValueError(f"{gap!r} bounds the gap from above: train on a lower bound.")
        self.gap, self.certificate = gap, certificate
        self.n_skipped = 0
        self._generator = generator
        self._hold, self._block, self._every, self._max_every = hold, block, every, max_every
        self._tol = max(tol, 1e-4 * gap.group.log_order)
        self._held: tuple[Tensor, Tensor] | None = None
        self._period, self._next_check, self._closed = every, 0, False
        self._settled = 0.0  # nats, what the certificate said of a saturated gap

    def add_gradient(
        self, loc: Tensor, log_variance: Tensor, gradient: Tensor, step: int, share: float = 1.0
    ) -> Tensor:
        """Subtract a share of the gap's gradient from the loss's; returns the estimate (nats)."""
        if step >= self._next_check and step % self._block == 0:
            self._look(loc, log_variance, step)
        if self._closed:
            self.n_skipped, self._held = self.n_skipped + 1, None
            return loc.new_full((), self._settled)
        if self._held is None or step % self._hold == 0:
            posterior = _Normals(loc.double(), (0.5 * log_variance.double()).exp())
            estimate = self.gap.value_and_gradients(posterior, generator=self._generator)
            # By log variances: the variance times the derivative by it.
            d_log_variance = -0.5 * posterior.scale.square() * estimate.added_precision
            both = torch.cat([estimate.d_mean, d_log_variance])
            self._held = estimate.value.to(gradient.dtype), both.to(gradient.dtype)
        value, held = self._held
        gradient[: len(held)].sub_(held, alpha=share)
        return value

    def _look(self, loc: Tensor, log_variance: Tensor, step: int) -> None:
        """Open or close as the certificate says."""
        if self.certificate is None:
            return
        mean, scale = loc.double(), (0.5 * log_variance.double()).exp()
        noise = standard_normal((1, len(mean)), generator=self._generator, like=mean)
        value = float(self.certificate.values(mean, scale, noise, generator=self._generator))
        self._closed = self.gap.group.log_order - value < self._tol
        self._settled = value
        self._period = min(2 * self._period, self._max_every) if self._closed else self._every
        self._next_check = step + self._period


class _Normals(NamedTuple):
    """Independent normals where the optimiser stands, float64."""

    loc: Tensor
    scale: Tensor


class GaussianNetwork(NamedTuple):
    """A `Model` with independent normal weights, whose KL is written out."""

    network: Network
    likelihood: Likelihood
    prior: GaussianPrior | ScalesByGroup
    group: SymmetryGroup


class Moments(NamedTuple):
    """Means and variances of the weights, (P,), and where a loss's derivatives by them go."""

    loc: Tensor
    variance: Tensor
    d_loc: Tensor
    d_variance: Tensor  # twice the derivative


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


class MomentTerm:
    """The expected log likelihood of an MLP by local reparametrisation, passes written out."""

    @property
    def context(self) -> AbstractContextManager[object]:
        """Spares a twelfth of the time of tensors this small."""
        return torch.inference_mode()

    def __init__(
        self, network: MLP, likelihood: Likelihood, n_rows: int, n_draws: int, moments: Moments
    ) -> None:
        like = moments.loc
        self._views = LayerViews(*map(network.layers, moments))
        self._log_lik = ElboLikelihood(network, n_rows, n_draws, like)
        widths = (*network.hidden_layer_sizes, likelihood.n_noise(network.n_outputs))
        # A step's normals, seen layer by layer; drawn in float32, as `standard_normal`.
        n = n_rows * n_draws
        self._drawn = like.new_empty(n * sum(widths), dtype=torch.float32)
        self._noise = torch.empty_like(self._drawn, dtype=like.dtype)
        stretches = self._noise.split([n * width for width in widths])
        self._layer_noise = [t.view(n, w) for t, w in zip(stretches, widths, strict=True)]

    def __call__(self, likelihood: Likelihood, batches: Batches, d_params: Tensor) -> Tensor:
        batch = batches.next()
        self._noise.copy_(self._drawn.normal_(generator=batches.generator))
        return self._log_lik(likelihood, self._views, batch, self._layer_noise, d_params)


class DrawTerm:
    """The expected log likelihood of any network by draws of its weights, by autograd.

    All rows of a step share a draw; draws come in pairs of opposite noise. A step costs what as
    many steps of the network cost.
    """

    @property
    def context(self) -> AbstractContextManager[object]:
        return torch.enable_grad()

    def __init__(self, network: Network, n_draws: int, moments: Moments) -> None:
        self._network, self._n_draws, self._moments = network, n_draws, moments

    def __call__(self, likelihood: Likelihood, batches: Batches, d_params: Tensor) -> Tensor:
        x, y, weight = batches.next()
        loc, variance, d_loc, d_variance = self._moments
        n_pairs = -(-self._n_draws // 2)
        noise = standard_normal((n_pairs, len(loc)), generator=batches.generator, like=loc)
        noise, sd = torch.cat([noise, -noise])[: self._n_draws], variance.sqrt()
        theta = torch.addcmul(loc, sd, noise).detach().requires_grad_()
        params = likelihood.params.detach().requires_grad_()
        log_lik = likelihood.at(params).log_prob(self._network.forward(theta, x), y) @ weight
        value = log_lik.mean()
        slope, slope_params = torch.autograd.grad(value, (theta, params), materialize_grads=True)
        d_params.copy_(-slope_params)
        torch.sum(-slope, 0, out=d_loc)
        torch.div((slope * noise).sum(0), -sd, out=d_variance)
        return value.detach()


class SymmetrizedElbo:
    """Negative symmetrised ELBO and its gradient over one flat vector; a `BufferedLoss`.

    ``batches``: rows of every step; the likelihood's noise comes from their generator, too.
    ``params`` (2 P + n_params,): see `pack`; read at every call. ``n_draws``: draws averaged a
    step, of the hidden units of an MLP, of the weights of another network. ``gap``: adds the
    symmetrisation gap; without it this is plain mean-field variational inference. ``warm_up``:
    steps over which the weights of KL and gap rise to 1 in the gradient; the loss that is returned
    has both in full.

    Scales of the prior that are learned go, every tenth step, to where the bound plus their
    hyperprior is highest for the posterior of that step, in closed form (`ScalesByGroup.update`).
    """

    def __init__(
        self,
        model: GaussianNetwork,
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
        moments = Moments(self._loc, self._variance, self._d_loc, self._d_variance)
        self._term: MomentTerm | DrawTerm = (
            MomentTerm(network, likelihood, n_rows, n_draws, moments)
            if isinstance(network, MLP)
            else DrawTerm(network, n_draws, moments)
        )
        self._context = self._term.context
        self._precision = prior.precision.to(params)
        log_scale = float(prior.scale.double().log().sum())
        self._kl_constant = params.new_tensor(log_scale - 0.5 * n_params)
        self._scales = learned_scales(prior, params.device)
        self._minus_half = params.new_tensor(-0.5)
        self._batches = batches

    def __call__(self, step: int) -> Tensor:
        if self._scales is not None and step % 10 == 0:  # an update costs as much as a small step
            scales = self._scales.update(self._loc, self._log_variance.exp())
            self._precision.copy_(scales.precision)
            self._kl_constant.copy_(scales.scale.log().sum() - 0.5 * len(self._loc))
        with self._context:
            share = min(1.0, (step + 1) / self._warm_up)
            loss = self._mean_field(share)
        if self._gap is None:
            return loss
        moments = self._loc, self._log_variance
        return loss - self._gap.add_gradient(*moments, self.gradient, step, share)

    def _mean_field(self, share: float) -> Tensor:
        """Negative ELBO of the posterior itself; overwrites the gradient, the KL's by a share."""
        likelihood = self._likelihood.at(self._own_params)
        variance = torch.exp(self._log_variance, out=self._variance)
        log_lik = self._term(likelihood, self._batches, self._d_own)
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
