"""Hand-written passes for MLPs under a mean-field Gaussian: the fast path.

Local reparametrisation (Kingma, Salimans & Welling 2015): given the inputs ``h`` of a layer, its
pre-activations under ``W ~ N(M, V)``, ``b ~ N(m, v)`` are independent normals

    z ~ N(h M' + m,  h^2 V' + v),

so noise is drawn per unit and row instead of per weight: exact in law for every row, and one to
two orders of magnitude less gradient variance.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.linalg import layer_outputs, weight_gradient
from skbayes_sym.numerics.memory import rows_within

# Hidden units of a block of draws: 1 to 2 MB, a core's L2 cache.
_CACHE_NUMBERS = 1 << 18

Layers = Sequence[tuple[Tensor, Tensor]]


class LayerViews(NamedTuple):
    """A posterior's moments and the gradient by them, layer by layer: views of flat vectors."""

    loc: Layers
    variance: Layers
    d_loc: Layers  # receives - d value / d loc
    d_variance: Layers  # receives - 2 d value / d variance


class ElboLikelihood:
    """Expected log likelihood of an MLP with its gradient, for one batch shape.

    A call reuses the scratch arrays made here: at these sizes a fresh array an operation costs
    more in page faults than the arithmetic it holds.

    ``n_rows``, ``n_draws``: rows N of a batch, and local reparametrisation draws S averaged;
    ``like``: gives dtype and device.
    """

    def __init__(self, network: MLP, n_rows: int, n_draws: int, like: Tensor) -> None:
        self._network, self._n_draws = network, n_draws
        self._x2 = like.new_empty(n_rows, network.n_inputs)
        # Of the last call: a batch of all rows is the same at every step.
        self._squared = self._negated = self._minus = self._twice_minus = like.new_empty(0)
        # The inputs are no draws: the first layer has moments per row, the others per row and draw.
        n_moments = [n_rows, *(n_rows * n_draws for _ in network.hidden_layer_sizes[1:])]
        self._hidden = [
            _scratch(n_rows * n_draws, n, width, like)
            for n, width in zip(n_moments, network.hidden_layer_sizes, strict=False)
        ]

    def __call__(
        self,
        likelihood: Likelihood,
        views: LayerViews,
        data: Data,
        noise: Sequence[Tensor],
        d_params: Tensor,
    ) -> Tensor:
        """``sum_n weight_n mean_s E[log p(y_n | f_sn)]``, 0-d nats; its gradient into ``views``.

        The gradient comes negated. ``data``: rows of a batch, whose weights multiply each row's log
        likelihood (sample weight times N_total / N). ``noise``: standard normal, (S * N, width) for
        every hidden layer and (S * N, likelihood.n_noise(O)) for the outputs. ``d_params``
        (n_params,) receives ``-d value / d params``. Twice the matrix products of a deterministic
        network.
        """
        x, y, weight = data
        mean, var = self._forward(views, x, noise)
        shares_moments = self._n_draws > 1 and not self._hidden
        if shares_moments:  # without hidden units the draws differ in the outputs' noise alone
            mean, var = mean.repeat(self._n_draws, 1), var.repeat(self._n_draws, 1)
        if self._n_draws > 1:
            y = y.repeat(self._n_draws, *(1,) * (y.ndim - 1))
            weight = (weight / self._n_draws).repeat(self._n_draws)
        expected = likelihood.expected_log_prob(mean, var, y, noise[-1])
        if weight is not self._negated:
            self._negated, self._minus = weight, weight.neg().unsqueeze(1)
            self._twice_minus = 2.0 * self._minus
        if likelihood.n_params:
            torch.sum(expected.d_params * self._minus, 0, out=d_params)
        d_mean, d_variance = expected.d_mean * self._minus, expected.d_variance * self._twice_minus
        if shares_moments:
            by_draw = self._n_draws, -1
            d_mean, d_variance = (d.unflatten(0, by_draw).sum(0) for d in (d_mean, d_variance))
        self._backward(views, x, noise, d_mean, d_variance)
        return torch.dot(expected.value, weight)

    def _forward(
        self, views: LayerViews, x: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Moments of the outputs; the draws are folded into the rows."""
        if x is not self._squared:
            self._squared = x
            torch.mul(x, x, out=self._x2)
        h, h2 = x, self._x2
        pairs = list(zip(views.loc, views.variance, strict=True))
        for (loc, variance), units, eps in zip(pairs[:-1], self._hidden, noise, strict=False):
            layer_outputs(h, *loc, out=units.mean)
            layer_outputs(h2, *variance, out=units.sd).sqrt_()
            units.draw(eps)
            h = self._network.activation.apply_(units.h)
            h2 = torch.mul(h, h, out=units.h2)
        loc, variance = pairs[-1]
        return torch.addmm(loc[1], h, loc[0].T), torch.addmm(variance[1], h2, variance[0].T)

    def _backward(
        self, views: LayerViews, x: Tensor, noise: Sequence[Tensor], dm: Tensor, dv: Tensor
    ) -> None:
        """Carry ``dm = d/d mean`` and ``dv = 2 d/d variance`` of the outputs back to the inputs."""
        for layer in range(len(self._hidden), -1, -1):
            below = self._hidden[layer - 1] if layer else None
            weight_gradient(dm, below.h if below else x, out=views.d_loc[layer][0])
            torch.sum(dm, 0, out=views.d_loc[layer][1])
            weight_gradient(dv, below.h2 if below else self._x2, out=views.d_variance[layer][0])
            torch.sum(dv, 0, out=views.d_variance[layer][1])
            if below is None:
                return
            # With one output a product of matrices is one of numbers.
            product_of = torch.mul if dm.shape[1] == 1 else torch.mm
            product_of(dm, views.loc[layer][0], out=below.dm)
            product = product_of(dv, views.variance[layer][0], out=below.product)
            dm = below.dm.addcmul_(below.h, product)
            self._network.activation.backward_(dm, below.h)
            dv = torch.mul(dm, noise[layer - 1], out=below.dv)
            dm, dv = below.by_moment(dm), below.by_moment(dv)
            dv.div_(below.sd)


class _Units(NamedTuple):
    """Scratch of one hidden layer: draws (S * N, width), and their moments.

    The moments are (N, width) where all draws share them, as in the first layer; else one per
    draw, and ``mean`` is ``h`` itself.
    """

    mean: Tensor  # of the pre-activations
    sd: Tensor
    h: Tensor  # pre-activations, then activations
    h2: Tensor  # activations squared
    dm: Tensor
    dv: Tensor
    product: Tensor

    def draw(self, noise: Tensor) -> None:
        """Fill ``h`` with ``mean + sd * noise``."""
        if self.mean is self.h:
            self.h.addcmul_(self.sd, noise)
        else:
            eps, z = (t.unflatten(0, (-1, len(self.sd))) for t in (noise, self.h))
            torch.addcmul(self.mean, self.sd, eps, out=z)

    def by_moment(self, gradient: Tensor) -> Tensor:
        """A gradient by the draws' pre-activations, summed over draws with the same moments."""
        if len(self.sd) == len(gradient):
            return gradient
        return gradient.unflatten(0, (-1, len(self.sd))).sum(0)


def _scratch(n_draws: int, n_moments: int, width: int, like: Tensor) -> _Units:
    h, h2, dm, dv, product = (like.new_empty(n_draws, width) for _ in range(5))
    sd = like.new_empty(n_moments, width)
    mean = h if n_moments == n_draws else torch.empty_like(sd)
    return _Units(mean, sd, h, h2, dm, dv, product)


def output_moments(
    network: MLP, loc: Layers, variance: Layers, x: Tensor, noise: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the outputs given draws of the hidden units.

    ``loc``, ``variance``: posterior mean and variance, layer by layer; ``x`` (N, n_inputs);
    ``noise``: with a middle axis of 1 the rows share it: the law of every single row stays exact
    and the result doesn't depend on which other rows are asked for. Returns ``mean``, ``variance``
    (S, N, n_outputs), or (1, N, n_outputs) without hidden layers: the outputs of draw s are
    ``N(mean[s], variance[s])``, exactly, row by row.

    The first layer costs two matrix products however many draws there are; the others take the
    draws in blocks whose hidden units fit the cache.
    """
    if network.n_layers == 1:
        return _affine(x, *loc[0]).unsqueeze(0), _affine(x * x, *variance[0]).unsqueeze(0)
    n_draws = len(noise[0])
    out_mean, out_var = (x.new_empty(n_draws, len(x), network.n_outputs) for _ in range(2))
    for block, h in _hidden_units(network, loc, variance, x, noise):
        out_mean[block] = _affine(h, *loc[-1])
        out_var[block] = _affine(h.mul_(h), *variance[-1])
    return out_mean, out_var


def mean_output(
    network: MLP, loc: Layers, variance: Layers, x: Tensor, noise: Sequence[Tensor]
) -> Tensor:
    """Average of `output_moments`' means, (N, n_outputs): one product with the last layer."""
    if network.n_layers == 1:
        return _affine(x, *loc[0])
    total = x.new_zeros(len(x), network.hidden_layer_sizes[-1])
    for _, h in _hidden_units(network, loc, variance, x, noise):
        total += h.sum(0)
    return _affine(total / len(noise[0]), *loc[-1])


def _hidden_units(
    network: MLP, loc: Layers, variance: Layers, x: Tensor, noise: Sequence[Tensor]
) -> Iterator[tuple[slice, Tensor]]:
    """Units of the last hidden layer, (block, N, width), block of draws by block of draws."""
    mean, sd = _affine(x, *loc[0]), _affine(x * x, *variance[0]).sqrt_()
    size = rows_within(_CACHE_NUMBERS, len(x) * max(network.hidden_layer_sizes))
    for start in range(0, len(noise[0]), size):
        block = slice(start, start + size)
        h = network.activation.apply_(torch.addcmul(mean, sd, noise[0][block]))
        for layer in range(1, network.n_layers - 1):
            z_sd = _affine(h * h, *variance[layer]).sqrt_()
            z = _affine(h, *loc[layer]).addcmul_(z_sd, noise[layer][block])
            h = network.activation.apply_(z)
        yield block, h


def _affine(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``h W' + b`` with all leading axes folded into one matrix product."""
    flat = torch.addmm(bias, h.reshape(-1, h.shape[-1]), weight.T)
    return flat.reshape(*h.shape[:-1], weight.shape[0])
