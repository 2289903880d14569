"""Mean-field variational inference with the symmetrised ELBO (Gelberg et al. 2024).

    ELBO_G(q) = E_q[log p(y | theta)] - KL[q || p] + I(g; theta)      (their eq. 5)

The minibatch estimate in section 4 of the paper prints + KL for - KL. The likelihood term uses
local reparametrisation. The gap I has a separate random stream, so that runs with and without the
gap share all other random numbers.
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
    """Mean and standard deviation of the weights, (P,) or (R, P), float64."""

    loc: Tensor
    scale: Tensor


class GatedGap:
    """A gap's value and gradient, skipped while a certificate shows that the gap is saturated.

    The certificate is a lower bound on the gap at one draw. If it comes within ``tol`` of
    ``log |G|``, the gap is saturated at this draw and its gradient is negligible. The certificate
    is evaluated before the first step, and then at the first start of a block of steps that is at
    least T steps after the last check. (A GPU is synchronised at the start of a block anyway.)
    While the certificate passes, the gap is skipped and T doubles from ``every`` up to
    ``max_every``. T falls back to ``every`` when the certificate fails, so that the gate always
    opens again.

    Parameters
    ----------
    gap : Gap
        Exact gap or a lower bound.
    certificate : UnitGap, optional
        Gap of the same group that is never above ``gap`` at any draw:
        ``UnitGap(group, Soules())``. By default ``gap`` is evaluated at every step.
    generator : torch.Generator
        Random stream of the gap.
    is_batched : bool, default=True
        Whether ``gap`` takes several posteriors (R, P) at once.
    hold : int, default=1
        Number of steps for which a value and its gradient are reused.
    block : int, default=10
        Number of steps per block.
    every, max_every : int
        Smallest and largest number of steps between two checks of the certificate.
    tol : float, default=0.01
        Tolerance in nats. It is at least 1e-4 of ``log |G|``, which is how far draws scatter.

    Attributes
    ----------
    n_skipped : int
        Number of steps that skipped the gap.

    Raises
    ------
    ValueError
        If ``gap`` is an upper bound.
    """

    def __init__(
        self,
        gap: Gap[MeanField],
        certificate: UnitGap | None = None,
        *,
        generator: torch.Generator,
        is_batched: bool = True,
        hold: int = 1,
        block: int = 10,
        every: int = 25,
        max_every: int = 100,
        tol: float = 1e-2,
    ) -> None:
        if gap.side == "upper":
            raise ValueError(
                f"{gap!r} is an upper bound on the gap, but training needs a lower bound."
            )
        self.gap = gap
        self.certificate = certificate
        self.n_skipped = 0
        self._generator = generator
        self._is_batched = is_batched
        self._hold = hold
        self._block = block
        self._every = every
        self._max_every = max_every
        self._tol = max(tol, 1e-4 * gap.group.log_order)
        self._held: tuple[Tensor, Tensor] | None = None
        self._period = every
        self._next_check = 0
        self._is_saturated = False
        self._saturated_value: Tensor  # nats, by the certificate

    def add_gradient(
        self,
        loc: Tensor,
        log_variance: Tensor,
        gradient: Tensor,
        step: int,
        weight: float | Tensor = 1.0,
    ) -> Tensor:
        """Subtract the weighted gradient of the gap from that of the loss, in place.

        One gate serves several posteriors. It is open as long as one of them isn't saturated.

        Parameters
        ----------
        loc : Tensor of shape (P,) or (R, P)
            Means of the weights, of one or of R posteriors.
        log_variance : Tensor of shape (P,) or (R, P)
            Log variances of the weights.
        gradient : Tensor
            Gradient of the loss, which begins with the derivatives with respect to ``loc`` and
            ``log_variance``.
        step : int
            Number of the step.
        weight : float or Tensor of shape (R, 1), default=1.0
            Weight of the gap.

        Returns
        -------
        Tensor of shape () or (R,)
            Estimates of the gap in nats.
        """
        if step >= self._next_check and step % self._block == 0:
            self._check_saturation(loc, log_variance, step)
        if self._is_saturated:
            self.n_skipped = self.n_skipped + 1
            self._held = None
            return self._saturated_value
        if self._held is None or step % self._hold == 0:
            posterior = _Normals(loc.double(), (0.5 * log_variance.double()).exp())
            estimate = self._estimate(posterior)
            # With respect to log variances: the variance times the derivative with respect to it.
            d_log_variance = -0.5 * posterior.scale.square() * estimate.added_precision
            gap_gradient = torch.stack([estimate.d_mean, d_log_variance])
            self._held = estimate.value.to(gradient.dtype), gap_gradient.to(gradient.dtype)
        value, held = self._held
        gradient[: held.numel()].view_as(held).sub_(held * weight)
        return value

    def _estimate(self, posterior: _Normals) -> GapGradient:
        """Evaluate the gap and its gradient at every posterior."""
        if self._is_batched:
            return self.gap.value_and_gradients(posterior, generator=self._generator)
        estimates = [
            self.gap.value_and_gradients(_Normals(*moments), generator=self._generator)
            for moments in zip(*posterior, strict=True)
        ]
        return GapGradient(*map(torch.stack, zip(*estimates, strict=True)))

    def _check_saturation(self, loc: Tensor, log_variance: Tensor, step: int) -> None:
        """Evaluate the certificate at one draw and schedule the next check."""
        if self.certificate is None:
            return
        mean = loc.double()
        scale = (0.5 * log_variance.double()).exp()
        noise = standard_normal((1, mean.shape[-1]), generator=self._generator, like=mean)
        values = self.certificate.values(mean, scale, noise, generator=self._generator)[..., 0]
        self._saturated_value = values.to(loc.dtype)
        self._is_saturated = self.gap.group.log_order - float(values.min()) < self._tol
        if self._is_saturated:
            self._period = min(2 * self._period, self._max_every)
        else:
            self._period = self._every
        self._next_check = step + self._period


class GaussianNetwork(NamedTuple):
    """A `Model` whose prior is normal with independent weights, so that its KL is closed-form."""

    network: Network
    likelihood: Likelihood
    prior: GaussianPrior | GroupScalePrior
    group: SymmetryGroup


class Moments(NamedTuple):
    """Means and variances of the weights, and buffers for the gradient of a loss, each (R, P).

    Attributes
    ----------
    loc : Tensor
        Means.
    variance : Tensor
        Variances.
    d_loc : Tensor
        Buffer for the derivatives of the loss with respect to the means.
    d_variance : Tensor
        Buffer for twice the derivatives of the loss with respect to the variances.
    """

    loc: Tensor
    variance: Tensor
    d_loc: Tensor
    d_variance: Tensor


def pack(loc: Tensor, log_variance: Tensor, likelihood: Likelihood) -> Tensor:
    """Concatenate ``[loc | log variance | likelihood parameters]`` of one start."""
    return torch.cat([loc, log_variance, likelihood.params.to(loc)])


def unpack(params: Tensor, n_starts: int, n_params: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the vector of R starts into views (R, P), (R, P) and (R, n).

    The means of all starts come first, then all log variances, then all likelihood parameters.

    Parameters
    ----------
    params : Tensor
        Parameters of R starts in one vector.
    n_starts : int
        Number R of starts.
    n_params : int
        Number P of weights.
    """
    parts = params.tensor_split([n_starts * n_params, 2 * n_starts * n_params])
    loc, log_variance, likelihood_params = (part.view(n_starts, -1) for part in parts)
    return loc, log_variance, likelihood_params


def pack_starts(starts: Sequence[Tensor], n_params: int) -> Tensor:
    """Join the vectors of several starts."""
    parts = zip(*(unpack(start, 1, n_params) for start in starts), strict=True)
    return torch.cat([torch.cat(part).flatten() for part in parts])


def learned_scales(
    prior: GaussianPrior | GroupScalePrior, device: torch.device
) -> GroupScalePrior | None:
    """Prior scales that are learned, on the device; None if the prior is fixed."""
    scales = prior.learned_scales
    if scales is None:
        return None
    reference = scales.reference_variance.to(device)
    return replace(scales, group=scales.group.to(device), reference_variance=reference)


class MomentTerm:
    """Expected log likelihood of an MLP by local reparametrisation, with an explicit backward pass.

    Parameters
    ----------
    network : MLP
        Network.
    likelihood : Likelihood
        Likelihood, which determines how many random numbers an output needs.
    n_rows : int
        Number of rows per step.
    n_draws : int
        Number of draws of the hidden units per row.
    moments : Moments
        Moments of the weights and buffers for the gradient.
    """

    @property
    def context(self) -> AbstractContextManager[object]:
        """Inference mode, which saves a twelfth of the time with tensors this small."""
        return torch.inference_mode()

    def __init__(
        self, network: MLP, likelihood: Likelihood, n_rows: int, n_draws: int, moments: Moments
    ) -> None:
        like = moments.loc
        self._views = LayerViews(*map(network.layers, moments))
        self._log_lik = ElboLikelihood(network, n_rows, n_draws, like)
        widths = (*network.hidden_layer_sizes, likelihood.n_noise(network.n_outputs))
        # The random numbers of a step, and views of them by layer. They are drawn in float32, as
        # by `standard_normal`.
        n = n_rows * n_draws
        self._drawn = like.new_empty(n * sum(widths), dtype=torch.float32)
        self._noise = torch.empty_like(self._drawn, dtype=like.dtype)
        blocks = self._noise.split([n * width for width in widths])
        self._layer_noise = [
            block.view(n, width) for block, width in zip(blocks, widths, strict=True)
        ]

    def __call__(
        self, likelihoods: Sequence[Likelihood], batches: Batches, d_params: Tensor
    ) -> Tensor:
        """Return the estimates (R,) in nats and write the gradient into the buffers."""
        batch = batches.next()
        self._noise.copy_(self._drawn.normal_(generator=batches.generator))
        return self._log_lik(likelihoods, self._views, batch, self._layer_noise, d_params)


class DrawTerm:
    """Expected log likelihood of any network by draws of its weights, differentiated by autograd.

    All rows of a step share a draw. Draws come in antithetic pairs. A step costs as much as a step
    of ``n_draws`` networks.

    Parameters
    ----------
    network : Network
        Network.
    n_draws : int
        Number of draws of the weights per step.
    moments : Moments
        Moments of the weights and buffers for the gradient.
    """

    @property
    def context(self) -> AbstractContextManager[object]:
        """Gradient mode, which autograd needs."""
        return torch.enable_grad()

    def __init__(self, network: Network, n_draws: int, moments: Moments) -> None:
        self._network = network
        self._n_draws = n_draws
        self._moments = moments

    def __call__(
        self, likelihoods: Sequence[Likelihood], batches: Batches, d_params: Tensor
    ) -> Tensor:
        """Return the estimates (R,) in nats and write the gradient into the buffers."""
        x, y, weight = batches.next()
        loc, variance, d_loc, d_variance = self._moments
        n_pairs = -(-self._n_draws // 2)
        shape = n_pairs, loc.shape[1]
        noise = standard_normal(shape, generator=batches.generator, like=loc)
        noise = torch.cat([noise, -noise])[: self._n_draws]
        sd = variance.sqrt()
        theta = torch.addcmul(loc.unsqueeze(1), sd.unsqueeze(1), noise).detach().requires_grad_()

        params = [likelihood.params.detach().requires_grad_() for likelihood in likelihoods]
        outputs = self._network.forward(theta.flatten(0, 1), x).unflatten(0, theta.shape[:2])
        starts = zip(likelihoods, params, outputs, strict=True)
        log_lik = torch.stack([lik.at(p).log_prob(f, y) @ weight for lik, p, f in starts])
        values = log_lik.mean(1)

        d_theta, *d_likelihood = torch.autograd.grad(
            values.sum(), (theta, *params), materialize_grads=True
        )
        d_params.copy_(-torch.stack(d_likelihood))
        torch.sum(-d_theta, 1, out=d_loc)
        torch.div((d_theta * noise).sum(1), -sd, out=d_variance)
        return values.detach()


class SymmetrizedElbo:
    """Negative symmetrised ELBOs of R starts and their gradients over one flat vector.

    It is a `BufferedLoss` of shape (R,). The starts share all random numbers. A step of three
    starts of ten units takes about as long as two steps of one start.

    Learned scales of the prior are updated every tenth step, in closed form, to the maximum of the
    bound plus their log hyperprior at the posterior of that step (`GroupScalePrior.update`).

    Parameters
    ----------
    model : GaussianNetwork
        Network, likelihood, prior and symmetry group.
    batches : Batches
        Rows of every step. The random numbers of the likelihood come from their generator, too.
    params : Tensor of shape (R * (2 * P + n_params),)
        Variational and likelihood parameters, see `unpack`. They are read at every call.
    n_draws : int
        Number of draws averaged per step: of the hidden units of an MLP, of the weights of another
        network.
    gap : GatedGap, optional
        Symmetry gap. Without it this is plain mean-field variational inference.
    warm_up : sequence of int, default=(1,)
        Number of steps, for each start, over which the weights of the KL and the gap rise to 1 in
        the gradient. The returned loss always contains both in full.
    """

    def __init__(
        self,
        model: GaussianNetwork,
        batches: Batches,
        params: Tensor,
        *,
        n_draws: int,
        gap: GatedGap | None = None,
        warm_up: Sequence[int] = (1,),
    ) -> None:
        network, likelihood, prior, _ = model
        n_params = network.layout.n_params
        n_starts = len(warm_up)
        self._warm_up = params.new_tensor(warm_up).unsqueeze(1)
        self._longest_warm_up = max(warm_up)
        self._batches = batches
        self._likelihood = likelihood.to(params)
        self._gap = gap

        # Views of the parameters and of the gradient.
        self.params = params
        self.gradient = torch.zeros_like(params)
        self._loc, self._log_variance, self._likelihood_params = unpack(params, n_starts, n_params)
        gradients = unpack(self.gradient, n_starts, n_params)
        self._d_loc, self._d_variance, self._d_likelihood = gradients
        self._variance = torch.empty_like(self._loc)

        # An MLP has a lower-variance estimate of the expected log likelihood than other networks.
        moments = Moments(self._loc, self._variance, self._d_loc, self._d_variance)
        self._term: MomentTerm | DrawTerm
        if isinstance(network, MLP):
            self._term = MomentTerm(network, likelihood, batches.batch_size, n_draws, moments)
        else:
            self._term = DrawTerm(network, n_draws, moments)
        self._context = self._term.context

        # Terms of the KL that don't depend on the posterior.
        self._precision = prior.precision.to(params).expand_as(self._loc).clone()
        log_scale = float(prior.scale.double().log().sum())
        self._kl_constant = params.new_full((n_starts,), log_scale - 0.5 * n_params)
        self._scales = learned_scales(prior, params.device)
        self._set_penalty_weight(0)
        self._losses = torch.zeros_like(self._kl_constant)

    def _set_penalty_weight(self, step: int) -> None:
        """Set the weight of the KL and the gap in the gradient, (R, 1)."""
        self._penalty_weight = ((step + 1) / self._warm_up).clamp_(max=1.0)
        self._minus_half = -0.5 * self._penalty_weight

    def __call__(self, step: int) -> Tensor:
        """Return the losses (R,) in nats and write the gradient."""
        if self._scales is not None and step % 10 == 0:  # an update costs as much as a small step
            for r, moments in enumerate(zip(self._loc, self._log_variance.exp(), strict=True)):
                scales = self._scales.update(*moments)
                self._precision[r] = scales.precision
                self._kl_constant[r] = scales.scale.log().sum() - 0.5 * self._loc.shape[1]
        if step < self._longest_warm_up:
            self._set_penalty_weight(step)
        with self._context:
            self._losses = self._mean_field_loss()
        if self._gap is not None:
            gap = self._gap.add_gradient(
                self._loc, self._log_variance, self.gradient, step, self._penalty_weight
            )
            self._losses = self._losses - gap
        return self._losses

    def start_params(self, r: int | None = None) -> Tensor:
        """Vector of a start, see `pack`; by default of the start with the lowest last loss."""
        if r is None:
            r = int(self._losses.argmin())
        parts = (self._loc, self._log_variance, self._likelihood_params)
        return torch.cat([part[r] for part in parts])

    def _mean_field_loss(self) -> Tensor:
        """Negative ELBOs of the mean-field posteriors; overwrites the gradient."""
        likelihoods = [self._likelihood.at(params) for params in self._likelihood_params]
        variance = torch.exp(self._log_variance, out=self._variance)
        log_lik = self._term(likelihoods, self._batches, self._d_likelihood)
        return self._add_kl(variance).sub_(log_lik)

    def _add_kl(self, variance: Tensor) -> Tensor:
        """Return KL[q || prior] in closed form and add its gradient.

        The derivatives with respect to variances become derivatives with respect to log variances.
        """
        scaled_loc = self._loc * self._precision
        self._d_loc.addcmul_(scaled_loc, self._penalty_weight)
        twice = self._d_variance.addcmul_(self._precision, self._penalty_weight)
        torch.addcmul(self._minus_half, twice, variance, value=0.5, out=self._d_variance)
        terms = scaled_loc.mul_(self._loc).addcmul_(variance, self._precision)
        return torch.add(self._kl_constant, terms.sub_(self._log_variance).sum(1), alpha=0.5)
