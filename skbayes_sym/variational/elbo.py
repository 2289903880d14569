"""Mean-field variational inference with the symmetrised ELBO (Gelberg et al. 2024).

    ELBO_G(q) = E_q[log p(y | theta)] - KL[q || p] + I(g; theta)      (their eq. 5)

(the minibatch estimate in their section 4 prints + KL for - KL). The likelihood term uses local
reparametrisation; the gap I has its own random stream, so that runs with and without it share
every other random number.
"""

from collections.abc import Sequence
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
from skbayes_sym.models.priors import GaussianPrior, GroupScalePrior
from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.symmetry.gaps.gap import Gap, GapGradient, MeanField
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap
from skbayes_sym.symmetry.group import SymmetryGroup


class _Normals(NamedTuple):
    """Independent normals where the optimiser stands, (P,) or (R, P), float64."""

    loc: Tensor
    scale: Tensor


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
    ``takes_several``: whether ``gap`` takes posteriors (R, P), and not each alone.
    ``generator``: the gap's own stream. ``hold``: steps that a value and its gradient stand for.
    ``block``: steps of a block. ``every``, ``max_every``: fewest and most steps between two checks.
    ``tol``: nats, and at least 1e-4 of ``log |G|``, with which draws scatter.
    """

    def __init__(
        self, gap: Gap[MeanField], certificate: UnitGap | None = None, *,
        generator: torch.Generator, takes_several: bool = True, hold: int = 1, block: int = 10,
        every: int = 25, max_every: int = 100, tol: float = 1e-2,
    ) -> None:  # fmt: skip
        if gap.side == "upper":
            raise ValueError(f"{gap!r} bounds the gap from above: train on a lower bound.")
        self.gap = gap
        self.certificate = certificate
        self.n_skipped = 0
        self._generator = generator
        self._takes_several = takes_several
        self._hold = hold
        self._block = block
        self._every = every
        self._max_every = max_every
        self._tol = max(tol, 1e-4 * gap.group.log_order)
        self._held: tuple[Tensor, Tensor] | None = None
        self._period = every
        self._next_check = 0
        self._closed = False
        self._settled: Tensor  # nats, what the certificate said of a saturated gap

    def add_gradient(
        self, loc: Tensor, log_variance: Tensor, gradient: Tensor, step: int,
        share: float | Tensor = 1.0,
    ) -> Tensor:  # fmt: skip
        """Subtract a share of the gap's gradient from the loss's; returns the estimates (nats).

        ``loc``, ``log_variance``: one posterior's (P,), or (R, P) of several, which one gate serves
        as long as it is open for one of them; ``gradient``: theirs come first in it, by both.
        """
        if step >= self._next_check and step % self._block == 0:
            self._look(loc, log_variance, step)
        if self._closed:
            self.n_skipped = self.n_skipped + 1
            self._held = None
            return self._settled
        if self._held is None or step % self._hold == 0:
            posterior = _Normals(loc.double(), (0.5 * log_variance.double()).exp())
            estimate = self._estimate(posterior)
            # By log variances: the variance times the derivative by it.
            d_log_variance = -0.5 * posterior.scale.square() * estimate.added_precision
            both = torch.stack([estimate.d_mean, d_log_variance])
            self._held = estimate.value.to(gradient.dtype), both.to(gradient.dtype)
        value, held = self._held
        gradient[: held.numel()].view_as(held).sub_(held * share)
        return value

    def _estimate(self, posterior: _Normals) -> GapGradient:
        """Evaluate the gap and its gradient at every posterior."""
        if self._takes_several:
            return self.gap.value_and_gradients(posterior, generator=self._generator)
        each = [
            self.gap.value_and_gradients(_Normals(*moments), generator=self._generator)
            for moments in zip(*posterior, strict=True)
        ]
        return GapGradient(*map(torch.stack, zip(*each, strict=True)))

    def _look(self, loc: Tensor, log_variance: Tensor, step: int) -> None:
        """Open or close as the certificate says."""
        if self.certificate is None:
            return
        mean = loc.double()
        scale = (0.5 * log_variance.double()).exp()
        noise = standard_normal((1, mean.shape[-1]), generator=self._generator, like=mean)
        values = self.certificate.values(mean, scale, noise, generator=self._generator)[..., 0]
        self._settled = values.to(loc.dtype)
        self._closed = self.gap.group.log_order - float(values.min()) < self._tol
        self._period = min(2 * self._period, self._max_every) if self._closed else self._every
        self._next_check = step + self._period


class GaussianNetwork(NamedTuple):
    """A `Model` with independent normal weights, whose KL is written out."""

    network: Network
    likelihood: Likelihood
    prior: GaussianPrior | GroupScalePrior
    group: SymmetryGroup


class Moments(NamedTuple):
    """Means and variances of the weights, (R, P), and where a loss's derivatives by them go."""

    loc: Tensor
    variance: Tensor
    d_loc: Tensor
    d_variance: Tensor  # twice the derivative


def pack(loc: Tensor, log_variance: Tensor, likelihood: Likelihood) -> Tensor:
    """The optimiser's vector ``[loc | log variance | likelihood parameters]`` of one start."""
    return torch.cat([loc, log_variance, likelihood.params.to(loc)])


def unpack(params: Tensor, n_starts: int, n_params: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views (R, P), (R, P) and (R, n) of the vector of R starts: all means come first."""
    parts = params.tensor_split([n_starts * n_params, 2 * n_starts * n_params])
    loc, log_variance, learned = (part.view(n_starts, -1) for part in parts)
    return loc, log_variance, learned


def pack_starts(starts: Sequence[Tensor], n_params: int) -> Tensor:
    """Join the vectors of several starts."""
    parts = zip(*(unpack(start, 1, n_params) for start in starts), strict=True)
    return torch.cat([torch.cat(part).flatten() for part in parts])


def learned_scales(
    prior: GaussianPrior | GroupScalePrior, device: torch.device
) -> GroupScalePrior | None:
    """Scales that the prior learns, on the device."""
    scales = prior.learned_scales
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

    def __call__(
        self, likelihoods: Sequence[Likelihood], batches: Batches, d_params: Tensor
    ) -> Tensor:
        batch = batches.next()
        self._noise.copy_(self._drawn.normal_(generator=batches.generator))
        return self._log_lik(likelihoods, self._views, batch, self._layer_noise, d_params)


class DrawTerm:
    """The expected log likelihood of any network by draws of its weights, by autograd.

    All rows of a step share a draw; draws come in pairs of opposite noise. A step costs what as
    many steps of the network cost.
    """

    @property
    def context(self) -> AbstractContextManager[object]:
        return torch.enable_grad()

    def __init__(self, network: Network, n_draws: int, moments: Moments) -> None:
        self._network = network
        self._n_draws = n_draws
        self._moments = moments

    def __call__(
        self, likelihoods: Sequence[Likelihood], batches: Batches, d_params: Tensor
    ) -> Tensor:
        x, y, weight = batches.next()
        loc, variance, d_loc, d_variance = self._moments
        shape = -(-self._n_draws // 2), loc.shape[1]  # pairs
        noise = standard_normal(shape, generator=batches.generator, like=loc)
        noise = torch.cat([noise, -noise])[: self._n_draws]
        sd = variance.sqrt()
        theta = torch.addcmul(loc.unsqueeze(1), sd.unsqueeze(1), noise).detach().requires_grad_()
        params = [likelihood.params.detach().requires_grad_() for likelihood in likelihoods]
        outputs = self._network.forward(theta.flatten(0, 1), x).unflatten(0, theta.shape[:2])
        pairs = zip(likelihoods, params, outputs, strict=True)
        log_lik = torch.stack([lik.at(p).log_prob(f, y) @ weight for lik, p, f in pairs])
        values = log_lik.mean(1)
        slope, *by_params = torch.autograd.grad(
            values.sum(), (theta, *params), materialize_grads=True
        )
        d_params.copy_(-torch.stack(by_params))
        torch.sum(-slope, 1, out=d_loc)
        torch.div((slope * noise).sum(1), -sd, out=d_variance)
        return values.detach()


class SymmetrizedElbo:
    """Negative symmetrised ELBOs of R starts and their gradients over one flat vector.

    A `BufferedLoss`, (R,). A step of three starts of ten units takes about two of one.

    ``batches``: rows of every step; the likelihood's noise comes from their generator, too. All
    random numbers are shared by the starts. ``params`` (R (2 P + n_params),): see `unpack`; read at
    every call. ``n_draws``: draws averaged a step, of the hidden units of an MLP, of the weights of
    another network. ``gap``: adds the symmetrisation gap; without it this is plain mean-field
    variational inference. ``warm_up`` (R,): steps over which the weights of KL and gap rise to 1
    in the gradient of every start; the loss that is returned has both in full.

    Scales of the prior that are learned go, every tenth step, to where the bound plus their
    hyperprior is highest for the posterior of that step, in closed form (`GroupScalePrior.update`).
    """

    def __init__(
        self, model: GaussianNetwork, batches: Batches, params: Tensor, *, n_draws: int,
        gap: GatedGap | None = None, warm_up: Sequence[int] = (1,),
    ) -> None:  # fmt: skip
        self._warm_up = params.new_tensor(warm_up).unsqueeze(1)
        self._last_share = max(warm_up)
        network, likelihood, prior, _ = model
        n_params = network.layout.n_params
        n_rows = batches.batch_size
        n_starts = len(warm_up)
        self.params, self.gradient = params, torch.zeros_like(params)
        self._likelihood = likelihood.to(params)
        self._gap = gap
        self._loc, self._log_variance, self._own_params = unpack(params, n_starts, n_params)
        gradients = unpack(self.gradient, n_starts, n_params)
        self._d_loc, self._d_variance, self._d_own = gradients
        self._variance = torch.empty_like(self._loc)
        moments = Moments(self._loc, self._variance, self._d_loc, self._d_variance)
        self._term: MomentTerm | DrawTerm = (
            MomentTerm(network, likelihood, n_rows, n_draws, moments)
            if isinstance(network, MLP)
            else DrawTerm(network, n_draws, moments)
        )
        self._context = self._term.context
        self._precision = prior.precision.to(params).expand_as(self._loc).clone()
        log_scale = float(prior.scale.double().log().sum())
        self._kl_constant = params.new_full((n_starts,), log_scale - 0.5 * n_params)
        self._scales = learned_scales(prior, params.device)
        self._set_penalty_weight(0)
        self._batches, self._losses = batches, torch.zeros_like(self._kl_constant)

    def _set_penalty_weight(self, step: int) -> None:
        """Weight of KL and gap in the gradient, (R, 1)."""
        self._share = ((step + 1) / self._warm_up).clamp_(max=1.0)
        self._minus_half = -0.5 * self._share

    def __call__(self, step: int) -> Tensor:
        if self._scales is not None and step % 10 == 0:  # an update costs as much as a small step
            for r, moments in enumerate(zip(self._loc, self._log_variance.exp(), strict=True)):
                scales = self._scales.update(*moments)
                self._precision[r] = scales.precision
                self._kl_constant[r] = scales.scale.log().sum() - 0.5 * self._loc.shape[1]
        if step < self._last_share:
            self._set_penalty_weight(step)
        with self._context:
            self._losses = self._mean_field()
        if self._gap is not None:
            moments = self._loc, self._log_variance
            gap = self._gap.add_gradient(*moments, self.gradient, step, self._share)
            self._losses = self._losses - gap
        return self._losses

    def start(self, r: int | None = None) -> Tensor:
        """Vector of a start, see `pack`; by default of the one whose last loss was the lowest."""
        r = int(self._losses.argmin()) if r is None else r
        return torch.cat([part[r] for part in (self._loc, self._log_variance, self._own_params)])

    def _mean_field(self) -> Tensor:
        """Negative ELBOs of the posteriors themselves; overwrites the gradient."""
        likelihoods = [self._likelihood.at(params) for params in self._own_params]
        variance = torch.exp(self._log_variance, out=self._variance)
        log_lik = self._term(likelihoods, self._batches, self._d_own)
        return self._add_kl(variance).sub_(log_lik)

    def _add_kl(self, variance: Tensor) -> Tensor:
        """Closed-form KL[q || prior]; turns derivatives by variances into ones by log variances."""
        scaled_loc = self._loc * self._precision
        self._d_loc.addcmul_(scaled_loc, self._share)
        twice = self._d_variance.addcmul_(self._precision, self._share)
        torch.addcmul(self._minus_half, twice, variance, value=0.5, out=self._d_variance)
        terms = scaled_loc.mul_(self._loc).addcmul_(variance, self._precision)
        return torch.add(self._kl_constant, terms.sub_(self._log_variance).sum(1), alpha=0.5)
