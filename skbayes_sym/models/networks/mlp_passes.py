r"""Hand-written passes of MLPs: under a mean-field Gaussian, and with the Jacobian's factors.

Local reparametrisation (Kingma, Salimans & Welling 2015): given the inputs ``h`` of a layer, its
pre-activations under ``W ~ N(M, V)``, ``b ~ N(m, v)`` are independent normals

    z ~ N(h M' + m,  h^2 V' + v),

so noise is drawn per unit and row instead of per weight: exact in law for every row, and one to
two orders of magnitude less gradient variance.

The derivative of output k at row n by the weight of unit j of a layer for its input l is

.. math:: J_{nk,jl} = D_{nkj}\, a_{nl},

``a`` the layer's inputs (a one for the bias) and ``D`` the derivatives of the outputs by the
unit's preactivation. So an entry of :math:`J' \Lambda J` for two layers is a sum over rows

.. math:: \sum_n (D' \Lambda D)_{n,jj'} \, a_{nl} a_{nl'} .

Within a layer it is the same for (j', j) and for (l', l): only a quarter of the entries differ, and
they are one product of the pairs of units with the pairs of inputs. O(N P^2 / 4) however many
outputs there are, in place of O(N K P^2). The covariance :math:`J C J'` of a row's outputs costs
the same.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.linalg import layer_outputs, weight_gradient
from skbayes_sym.numerics.memory import n_rows_per_block

Layers = Sequence[tuple[Tensor, Tensor]]


class LayerViews(NamedTuple):
    """Moments of R posteriors and the gradient by them, layer by layer: views of (R, P)."""

    loc: Layers
    variance: Layers
    d_loc: Layers  # receives - d value / d loc
    d_variance: Layers  # receives - 2 d value / d variance


class ElboLikelihood:
    """Expected log likelihood of an MLP under R posteriors, with gradients, for one batch shape.

    A call reuses the scratch arrays made here: at these sizes a fresh array an operation costs
    more in page faults than the arithmetic it holds.

    ``n_rows``, ``n_draws``: rows N of a batch, and local reparametrisation draws S averaged;
    ``like`` (R, ...): gives dtype and device.
    """

    def __init__(self, network: MLP, n_rows: int, n_draws: int, like: Tensor) -> None:
        self._network, self._n_draws, self._n_starts = network, n_draws, len(like)
        self._x2 = like.new_empty(n_rows, network.n_inputs)
        # Of the last call: a batch of all rows is the same at every step.
        self._squared = self._negated = self._minus = self._twice_minus = like.new_empty(0)
        # The inputs are no draws: the first layer has moments per row, the others per row and draw.
        n_moments = [n_rows, *(n_rows * n_draws for _ in network.hidden_layer_sizes[1:])]
        self._hidden = [
            _scratch(len(like), n_rows * n_draws, n, width, like)
            for n, width in zip(n_moments, network.hidden_layer_sizes, strict=False)
        ]

    def __call__(
        self, likelihoods: Sequence[Likelihood], views: LayerViews, data: Data,
        noise: Sequence[Tensor], d_params: Tensor,
    ) -> Tensor:  # fmt: skip
        """``sum_n weight_n mean_s E[log p(y_n | f_sn)]``, (R,) nats; its gradient into ``views``.

        The gradient comes negated. ``likelihoods``: one a posterior. ``data``: rows of a batch,
        whose weights multiply each row's log likelihood (sample weight times N_total / N).
        ``noise``: standard normal, (S * N, width) for every hidden layer and
        (S * N, likelihood.n_noise(O)) for the outputs, shared by all posteriors. ``d_params``
        (R, n_params) receives ``-d value / d params``. Twice the matrix products of a deterministic
        network.
        """
        x, y, weight = data
        mean, var = self._forward(views, x, noise)
        shares_moments = self._n_draws > 1 and not self._hidden
        if shares_moments:  # without hidden units the draws differ in the outputs' noise alone
            mean = mean.repeat(1, self._n_draws, 1)
            var = var.repeat(1, self._n_draws, 1)
        if self._n_draws > 1:
            y = y.repeat(self._n_draws, *(1,) * (y.ndim - 1))
            weight = (weight / self._n_draws).repeat(self._n_draws)
        if weight is not self._negated:
            self._negated, self._minus = weight, weight.neg().unsqueeze(1)
            self._twice_minus = 2.0 * self._minus
        values = mean.new_empty(len(mean))
        d_mean = torch.empty_like(mean)
        d_variance = torch.empty_like(var)
        for likelihood, m, v, value, d_m, d_v, d_own in zip(
            likelihoods, mean, var, values, d_mean, d_variance, d_params, strict=True
        ):
            expected = likelihood.expected_log_prob(m, v, y, noise[-1])
            if likelihood.n_params:
                torch.sum(expected.d_params * self._minus, 0, out=d_own)
            torch.mul(expected.d_mean, self._minus, out=d_m)
            torch.mul(expected.d_variance, self._twice_minus, out=d_v)
            torch.dot(expected.value, weight, out=value)
        if shares_moments:
            by_draw = self._n_draws, -1
            d_mean, d_variance = (d.unflatten(1, by_draw).sum(1) for d in (d_mean, d_variance))
        self._backward(views, x, noise, d_mean, d_variance)
        return values

    def _forward(
        self, views: LayerViews, x: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Moments of the outputs; the draws are folded into the rows."""
        if x is not self._squared:
            self._squared = x
            torch.mul(x, x, out=self._x2)
        h = self._for_all(x)
        h2 = self._for_all(self._x2)
        pairs = list(zip(views.loc, views.variance, strict=True))
        for (loc, variance), units, eps in zip(pairs[:-1], self._hidden, noise, strict=False):
            layer_outputs(h, *loc, out=units.mean)
            layer_outputs(h2, *variance, out=units.sd).sqrt_()
            units.draw(eps)
            h = self._network.activation.apply_(units.h)
            h2 = torch.mul(h, h, out=units.h2)
        (weight, bias), (var_weight, var_bias) = pairs[-1]
        mean = torch.baddbmm(bias.unsqueeze(1), h, weight.mT)
        return mean, torch.baddbmm(var_bias.unsqueeze(1), h2, var_weight.mT)

    def _for_all(self, x: Tensor) -> Tensor:
        """Rows (N, n_inputs) as every posterior's, (R, N, n_inputs)."""
        return x.expand(self._n_starts, *x.shape)

    def _backward(
        self, views: LayerViews, x: Tensor, noise: Sequence[Tensor], dm: Tensor, dv: Tensor
    ) -> None:
        """Carry ``dm = d/d mean`` and ``dv = 2 d/d variance`` of the outputs back to the inputs."""
        for layer in range(len(self._hidden), -1, -1):
            below = self._hidden[layer - 1] if layer else None
            h = below.h if below else self._for_all(x)
            h2 = below.h2 if below else self._for_all(self._x2)
            weight_gradient(dm, h, out=views.d_loc[layer][0])
            torch.sum(dm, 1, out=views.d_loc[layer][1])
            weight_gradient(dv, h2, out=views.d_variance[layer][0])
            torch.sum(dv, 1, out=views.d_variance[layer][1])
            if below is None:
                return
            # With one output a product of matrices is one of numbers.
            product_of = torch.mul if dm.shape[2] == 1 else torch.bmm
            product_of(dm, views.loc[layer][0], out=below.dm)
            product = product_of(dv, views.variance[layer][0], out=below.product)
            dm = below.dm.addcmul_(below.h, product)
            self._network.activation.backward_(dm, below.h)
            dv = torch.mul(dm, noise[layer - 1], out=below.dv)
            dm = below.by_moment(dm)
            dv = below.by_moment(dv)
            dv.div_(below.sd)


class _Units(NamedTuple):
    """Scratch of one hidden layer: draws (R, S * N, width), and their moments.

    The moments are (R, N, width) where all draws share them, as in the first layer; else one per
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
            by_draw = -1, self.sd.shape[1]
            eps = noise.unflatten(0, by_draw)
            z = self.h.unflatten(1, by_draw)
            torch.addcmul(self.mean.unsqueeze(1), self.sd.unsqueeze(1), eps, out=z)

    def by_moment(self, gradient: Tensor) -> Tensor:
        """A gradient by the draws' pre-activations, summed over draws with the same moments."""
        n_moments = self.sd.shape[1]
        if n_moments == gradient.shape[1]:
            return gradient
        return gradient.unflatten(1, (-1, n_moments)).sum(1)


def _scratch(n_starts: int, n_draws: int, n_moments: int, width: int, like: Tensor) -> _Units:
    h, h2, dm, dv, product = (like.new_empty(n_starts, n_draws, width) for _ in range(5))
    sd = like.new_empty(n_starts, n_moments, width)
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
    mean = _affine(x, *loc[0])
    sd = _affine(x * x, *variance[0]).sqrt_()
    # Hidden units of a block of draws: 1 to 2 MB, a core's L2 cache.
    size = n_rows_per_block(1 << 18, len(x) * max(network.hidden_layer_sizes))
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


_NUMBERS = 1 << 21  # of a block's largest array: 16 MB, which caches hold


def outputs_and_jacobian(network: MLP, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (R, N, O) and their derivatives (R, N, O, P), of several weight vectors (R, P).

    One forward pass and one backward pass an output, O(R N O P) time and memory.
    """
    outputs, factors = outputs_and_factors(network, theta, x)
    return outputs, factors.dense()


def outputs_and_factors(
    network: MLP, theta: Tensor, x: Tensor
) -> tuple[Tensor, "FactoredJacobian"]:
    """Outputs (R, N, O) at weights (R, P) and rows (N, n_inputs), and their derivatives' factors.

    One forward pass and one backward pass an output.
    """
    weights = network.layers(theta)
    inputs = []
    bends = []
    h = x.T.unsqueeze(0)
    for i, (weight, bias) in enumerate(weights, start=1):
        inputs.append(torch.cat([h, h.new_ones(len(h), 1, len(x))], 1))
        h = torch.baddbmm(bias.unsqueeze(2), weight, h.expand(len(theta), -1, -1))
        if i < network.n_layers:
            h = network.activation.function(h)
            bends.append(network.activation.backward_(torch.ones_like(h), h))
    eye = torch.eye(network.n_outputs, dtype=theta.dtype, device=theta.device)
    slopes = [eye[None, :, :, None].expand(len(theta), -1, -1, len(x))]
    for (weight, _), bend in zip(weights[:0:-1], bends[::-1], strict=True):
        back = weight.mT.unsqueeze(1)  # (R, 1, H, H')
        # The outputs' own slopes are alike for all rows.
        one = back @ (eye.unsqueeze(2) if len(slopes) == 1 else slopes[-1])
        slopes.append(one * bend.unsqueeze(1))
    layers = tuple(LayerFactors(a, d) for a, d in zip(inputs, slopes[::-1], strict=True))
    return h.mT, FactoredJacobian(layers)


def jacobian_block_size(network: MLP, n_restarts: int = 1) -> int:
    """Rows whose products of pairs of units, or of inputs, stay within 16 MB; 8,192 at most."""
    most = max(16, *network.sizes[1:], 1 + max(network.sizes[:-1]))
    return n_rows_per_block(_NUMBERS, n_restarts * most**2)


def pack(matrix: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sums of the entries of symmetric matrices that `FactoredJacobian.packed` has once.

    Parameters
    ----------
    matrix : Tensor of shape (R, P, P)
    sizes : tuple of int
        Widths of all layers of the network, inputs and outputs included.

    Returns
    -------
    Tensor of shape (R, Q)
        In the order of `FactoredJacobian.packed`, so that the inner product of both is the trace
        of the product of the matrices.

    Notes
    -----
    With ``m`` the entry of the units ``j <= k`` at their inputs ``a <= b``, the entries that share
    its place are ``m[ja, kb]``, ``m[jb, ka]`` and their transposes, which are the same numbers.
    Equal units or equal inputs make pairs of them one entry, which counts once.
    """
    parts = []
    for first, second in _layer_pairs(sizes):
        alike = first is second
        block = _with_bias_as_input(matrix[:, first.params, second.params], first, second)
        n_units = (first.n_units, second.n_units)
        n_inputs = (first.n_inputs, second.n_inputs)
        block = block.permute(0, 1, 3, 2, 4).flatten(3).flatten(1, 2)  # unit pairs, input pairs
        if alike:
            j, k = torch.triu_indices(*n_units, device=matrix.device)
            a, b = torch.triu_indices(*n_inputs, device=matrix.device)
            block = block[:, j * n_units[1] + k]
            block = block[..., a * n_inputs[1] + b] + block[..., b * n_inputs[1] + a]
            repeats = torch.where(j == k, 0.5, 1.0).to(block)
            repeats = repeats.unsqueeze(1) * torch.where(a == b, 1.0, 2.0).to(block)
            block = block * repeats
        else:
            block = 2.0 * block
        parts.append(block.flatten(1))
    return torch.cat(parts, 1)


class _LayerParams(NamedTuple):
    """Where the parameters of a layer are in the flat order."""

    params: slice
    n_units: int
    n_inputs: int  # the bias counted as the weight of an input of one, the last

    @property
    def n_weights(self) -> int:
        """Number of parameters without the biases, which follow."""
        return self.n_units * (self.n_inputs - 1)


def _layer_pairs(sizes: tuple[int, ...]) -> Iterator[tuple[_LayerParams, _LayerParams]]:
    """All pairs of layers in the order of `FactoredJacobian.packed`, the earlier one first."""
    layers = []
    start = 0
    for n_inputs, n_units in pairwise(sizes):
        stop = start + n_units * (n_inputs + 1)
        layers.append(_LayerParams(slice(start, stop), n_units, n_inputs + 1))
        start = stop
    return combinations_with_replacement(layers, 2)


def _with_bias_as_input(matrix: Tensor, first: _LayerParams, second: _LayerParams) -> Tensor:
    """A block (R, P1, P2) of a matrix as (R, units, inputs, units, inputs)."""
    rows = _bias_last(matrix, 1, first)
    return _bias_last(rows, 3, second)


def _bias_last(values: Tensor, axis: int, layer: _LayerParams) -> Tensor:
    """Split an axis of a layer's parameters into units and inputs, the bias as the last input."""
    weights, biases = values.split([layer.n_weights, layer.n_units], axis)
    weights = weights.unflatten(axis, (layer.n_units, layer.n_inputs - 1))
    return torch.cat([weights, biases.unsqueeze(axis + 1)], axis + 1)


def _pair_index(n: int, m: int, alike: bool, device: torch.device) -> Tensor:
    """Index (n, m) of pairs in the order of `_products`, where (i, j) of alike ones is (j, i)."""
    if not alike:
        return torch.arange(n * m, device=device).view(n, m)
    index = torch.zeros(n, n, dtype=torch.int64, device=device)
    i, j = torch.triu_indices(n, n, device=device)
    index[i, j] = index[j, i] = torch.arange(len(i), device=device)
    return index


def unpack(packed: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Symmetric matrices (R, P, P) whose entries are those of `FactoredJacobian.packed`, (R, Q).

    Only tables of the pairs of one layer's inputs and of its units are made, not one of the pairs
    of all parameters.
    """
    n_params = sum(n_units * (n_inputs + 1) for n_inputs, n_units in pairwise(sizes))
    matrix = packed.new_empty(len(packed), n_params, n_params)
    for first, second in _layer_pairs(sizes):
        alike = first is second
        inputs = _pair_index(first.n_inputs, second.n_inputs, alike, packed.device)
        units = _pair_index(first.n_units, second.n_units, alike, packed.device)
        n_pairs = int(units.max()) + 1, int(inputs.max()) + 1
        block, packed = packed.tensor_split([n_pairs[0] * n_pairs[1]], 1)
        # Pairs of inputs first: there are fewer pairs of units than entries to copy them to.
        block = block.unflatten(1, n_pairs).index_select(2, inputs.flatten())
        block = block.unflatten(2, inputs.shape)
        rows = matrix[:, first.params, second.params]
        columns = matrix[:, second.params, first.params]
        size = n_rows_per_block(_NUMBERS, len(packed) * units.shape[1] * inputs.numel())
        for start in range(0, first.n_units, size):
            chunk = units[start : start + size]
            # (R, units, inputs, units, inputs) of some units of the first layer
            values = block.index_select(1, chunk.flatten()).unflatten(1, chunk.shape)
            values = values.transpose(2, 3)
            _copy_units(rows, values, start, first, second)
            if not alike:
                _copy_units(columns.mT, values, start, first, second)
    return matrix


def _copy_units(
    matrix: Tensor, values: Tensor, start: int, first: _LayerParams, second: _LayerParams
) -> None:
    """Write the rows of units of the first layer, (R, units, inputs, units, inputs)."""
    n_chunk = values.shape[1]
    row_shape = (n_chunk, first.n_inputs - 1)
    column_shape = (second.n_units, second.n_inputs - 1)
    begin = start * row_shape[1]
    weight_rows = matrix[:, begin : begin + n_chunk * row_shape[1]].unflatten(1, row_shape)
    bias_rows = matrix[:, first.n_weights + start : first.n_weights + start + n_chunk]
    n_weights = second.n_weights
    weight_rows[..., :n_weights].unflatten(-1, column_shape).copy_(values[:, :, :-1, :, :-1])
    weight_rows[..., n_weights:].copy_(values[:, :, :-1, :, -1])
    bias_rows[..., :n_weights].unflatten(-1, column_shape).copy_(values[:, :, -1, :, :-1])
    bias_rows[..., n_weights:].copy_(values[:, :, -1, :, -1])


def _products(a: Tensor, b: Tensor, alike: bool) -> Tensor:
    """Products of all pairs of rows (*B, n, N) and (*B, m, N); of alike ones each pair once."""
    *_, n, n_rows = a.shape
    if not alike:
        return (a.unsqueeze(-2) * b.unsqueeze(-3)).flatten(-3, -2)
    if n_rows <= 16:  # one gather costs less than n products
        first, second = torch.triu_indices(n, n, device=a.device)
        return a[..., first, :] * b[..., second, :]
    products = b.new_empty(*b.shape[:-2], _count(n, n, True), n_rows)
    begin = 0
    for i in range(n):
        end = begin + n - i
        torch.mul(a[..., i : i + 1, :], b[..., i:, :], out=products[..., begin:end, :])
        begin = end
    return products


def _count(n: int, m: int, alike: bool) -> int:
    """How many pairs `_products` has."""
    return n * (n + 1) // 2 if alike else n * m


def _form(entries: Tensor, a: Tensor, b: Tensor, alike: bool) -> Tensor:
    """Sums ``entries * _products(a, b, alike)`` over the pairs, (R, pairs, N) -> (R, N)."""
    n, n_rows = a.shape[1:]
    if not alike or n_rows <= 16:
        return (entries * _products(a, b, alike)).sum(1)
    sums = torch.zeros_like(b)
    begin = 0
    for i in range(n):  # one pass, which keeps no product
        end = begin + n - i
        sums[:, i:].addcmul_(entries[:, begin:end], a[:, i : i + 1])
        begin = end
    return (sums * b).sum(1)


def _halves(entries: Tensor, n: int) -> Tensor:
    """Matrices (*B, n, n) of entries (*B, n (n + 1) / 2), which two places share by halves."""
    matrix = entries.index_select(-1, _pair_index(n, n, True, entries.device).flatten())
    return matrix.unflatten(-1, (n, n)) * (0.5 + 0.5 * torch.eye(n).to(entries))


class LayerFactors(NamedTuple):
    """Factors of one layer's part of the Jacobians at N rows and R weight vectors."""

    inputs: Tensor  # (R, L, N), the last one of them one; R is 1 of the first layer
    slopes: Tensor  # (R, K, H, N)

    @property
    def by_row(self) -> Tensor:
        """Slopes of every row, (R, N, K, H), which a product of matrices a row takes."""
        return self.slopes.permute(0, 3, 1, 2).contiguous()


class FactoredJacobian(NamedTuple):
    """Derivatives of K outputs at N rows by R weight vectors (R, P)."""

    layers: tuple[LayerFactors, ...]

    def select_output(self, k: int) -> "FactoredJacobian":
        """The derivatives of one output."""
        layers = (LayerFactors(a, d[:, k : k + 1]) for a, d in self.layers)
        return self._replace(layers=tuple(layers))

    def dense(self) -> Tensor:
        """J itself, (R, N, K, P), whose rows lie side by side in memory."""
        parts = []
        for a, d in self.layers:
            parts += [(d.unsqueeze(3) * a[:, None, None, :-1]).flatten(2, 3), d]
        return torch.cat(parts, 2).permute(0, 3, 1, 2)

    def transposed(self, values: Tensor) -> Tensor:
        """``J' v`` summed over rows, (R, N, K) -> (R, P)."""
        parts = []
        for a, d in self.layers:
            by_unit = (values.mT.unsqueeze(2) * d).sum(1)  # (R, H, N)
            by_weight = by_unit @ a.mT
            parts += [by_weight[..., :-1].flatten(1), by_weight[..., -1]]
        return torch.cat(parts, 1)

    def packed(self, weight: Tensor) -> Tensor:
        """Entries of ``J' Lambda J`` that differ, summed over rows, (R, Q).

        ``weight`` (R or 1, N, K, K): symmetric Lambda. Sums of blocks of rows add up.
        """
        parts = []
        is_one = weight.shape[-1] == 1
        by_row = [] if is_one else [layer.by_row for layer in self.layers]
        weighted = [weight @ slopes for slopes in by_row]
        for i, k in combinations_with_replacement(range(len(self.layers)), 2):
            earlier = self.layers[i]
            later = self.layers[k]
            alike = i == k
            inputs = _products(earlier.inputs, later.inputs, alike)
            if is_one:
                slopes = weight[..., 0].mT * later.slopes[:, 0]
                units = _products(earlier.slopes[:, 0], slopes, alike).mT
            else:  # (R, N, H, H'), of alike layers each pair once
                between = by_row[i].mT @ weighted[k]
                n, m = between.shape[-2:]
                units = between.flatten(2)
                if alike:
                    first, second = torch.triu_indices(n, n, device=units.device)
                    units = units.index_select(2, first * m + second)
            parts.append((units.mT @ inputs.mT).flatten(1))
        return torch.cat(parts, 1)

    def gauss_newton(self, packed: Tensor) -> Tensor:
        """The matrices that sums (R, Q) are the entries of, (R, P, P)."""
        units = [layer.slopes.shape[2] for layer in self.layers]
        sizes = (self.layers[0].inputs.shape[1] - 1, *units)
        return unpack(packed, sizes)

    def covariance(self, packed: Tensor) -> Tensor:
        """``J C J'`` of every row, (R, N, K, K), of `pack`ed matrices C (R, Q)."""
        half: Tensor | float = 0.0
        is_one = self.layers[0].slopes.shape[1] == 1
        by_row = [] if is_one else [layer.by_row for layer in self.layers]
        for i, k in combinations_with_replacement(range(len(self.layers)), 2):
            (a, d) = self.layers[i]
            (b, e) = self.layers[k]
            alike = i == k
            n = d.shape[2]
            m = e.shape[2]
            n_units = _count(n, m, alike)
            n_inputs = _count(a.shape[1], b.shape[1], alike)
            here, packed = packed.tensor_split([n_units * n_inputs], 1)
            if is_one and alike and n == 1:  # a form in the inputs alone
                half = half + ((_halves(here, a.shape[1]) @ a) * a).sum(1) * d[:, 0, 0].square()
                continue
            middle = here.unflatten(1, (n_units, -1)) @ _products(a, b, alike)
            if is_one:
                half = half + _form(middle, d[:, 0], e[:, 0], alike)
                continue
            between = _halves(middle.mT, n) if alike else middle.mT.unflatten(2, (n, m))
            half = half + by_row[i] @ between @ by_row[k].mT
        assert isinstance(half, Tensor)
        return half[..., None, None] if is_one else 0.5 * (half + half.mT)
