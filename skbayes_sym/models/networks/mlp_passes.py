r"""Hand-written passes of MLPs: under a mean-field Gaussian, and with factors of the Jacobian.

Local reparametrisation (Kingma, Salimans & Welling 2015): given the inputs ``h`` of a layer, its
pre-activations under ``W ~ N(M, V)``, ``b ~ N(m, v)`` are independent normals

    z ~ N(h M' + m,  h^2 V' + v).

Noise is therefore drawn per unit and row instead of per weight. This is exact for the distribution
of each row, and reduces the variance of gradients by one to two orders of magnitude.

The derivative of output k at row n by the weight of unit j of a layer for its input l is

.. math:: J_{nk,jl} = D_{nkj}\, a_{nl},

where ``a`` are the layer's inputs (1 for the bias) and ``D`` the derivatives of the outputs by the
unit's pre-activation. An entry of :math:`J' \Lambda J` for two layers is thus a sum over rows

.. math:: \sum_n (D' \Lambda D)_{n,jj'} \, a_{nl} a_{nl'} .

Within a layer it is symmetric in (j, j') and in (l, l'), so only a quarter of the entries differ,
and these are one product of the pairs of units with the pairs of inputs. The cost is O(N P^2 / 4)
for any number of outputs, instead of O(N K P^2). The covariance :math:`J C J'` of a row's outputs
costs the same.
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
    """Moments of R posteriors and buffers of their gradient, layer by layer, as views of (R, P).

    Attributes
    ----------
    loc, variance : sequence of (Tensor, Tensor)
        Moments of weights and biases.
    d_loc : sequence of (Tensor, Tensor)
        Buffers of ``- d value / d loc``.
    d_variance : sequence of (Tensor, Tensor)
        Buffers of ``- 2 d value / d variance``.
    """

    loc: Layers
    variance: Layers
    d_loc: Layers
    d_variance: Layers


class ElboLikelihood:
    """Expected log likelihood of an MLP under R posteriors, with gradients, for one batch shape.

    Calls reuse scratch arrays. At these sizes a new array per operation would cost more, in page
    faults, than the arithmetic.

    Parameters
    ----------
    network : MLP
        The network.
    n_rows : int
        Number of rows N of a batch.
    n_draws : int
        Number of local reparametrisation draws S that are averaged.
    like : Tensor of shape (R, ...)
        Determines dtype, device, and the number of posteriors.
    """

    def __init__(self, network: MLP, n_rows: int, n_draws: int, like: Tensor) -> None:
        self._network = network
        self._n_draws = n_draws
        self._n_starts = len(like)
        self._x2 = like.new_empty(n_rows, network.n_inputs)
        # Inputs and weights of the last call, since a batch of all rows is the same at every step.
        self._squared = self._negated = self._minus = self._twice_minus = like.new_empty(0)
        # The first layer has moments per row, since its inputs aren't random; the others have
        # moments per row and draw.
        n_moments = [n_rows, *(n_rows * n_draws for _ in network.hidden_layer_sizes[1:])]
        self._hidden = [
            _scratch(len(like), n_rows * n_draws, n, width, like)
            for n, width in zip(n_moments, network.hidden_layer_sizes, strict=False)
        ]

    def __call__(
        self, likelihoods: Sequence[Likelihood], views: LayerViews, data: Data,
        noise: Sequence[Tensor], d_params: Tensor,
    ) -> Tensor:  # fmt: skip
        """Return ``sum_n weight_n mean_s E[log p(y_n | f_sn)]``, and write its negative gradient.

        The cost is twice that of the matrix products of a deterministic network.

        Parameters
        ----------
        likelihoods : sequence of Likelihood
            A likelihood per posterior.
        views : LayerViews
            Moments of the posteriors, and buffers of the gradient.
        data : Data
            Rows of a batch. Weights multiply the log likelihood of the rows (sample weight times
            N_total / N).
        noise : sequence of Tensor
            Standard normal noise, (S * N, width) for every hidden layer and
            (S * N, likelihood.n_noise(O)) for the outputs, shared by all posteriors.
        d_params : Tensor of shape (R, n_params)
            Buffer of ``-d value / d params``.
        """
        x, y, weight = data
        mean, var = self._forward(views, x, noise)
        shares_moments = self._n_draws > 1 and not self._hidden
        if shares_moments:  # without hidden units, draws differ in the noise of the outputs only
            mean = mean.repeat(1, self._n_draws, 1)
            var = var.repeat(1, self._n_draws, 1)
        if self._n_draws > 1:
            y = y.repeat(self._n_draws, *(1,) * (y.ndim - 1))
            weight = (weight / self._n_draws).repeat(self._n_draws)
        if weight is not self._negated:
            self._negated = weight
            self._minus = weight.neg().unsqueeze(1)
            self._twice_minus = 2.0 * self._minus
        values = mean.new_empty(len(mean))
        d_mean = torch.empty_like(mean)
        d_variance = torch.empty_like(var)
        for likelihood, m, v, value, d_m, d_v, d_p in zip(
            likelihoods, mean, var, values, d_mean, d_variance, d_params, strict=True
        ):
            expected = likelihood.expected_log_prob(m, v, y, noise[-1])
            if likelihood.n_params:
                torch.sum(expected.d_params * self._minus, 0, out=d_p)
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
        """Return the moments of the outputs. Draws are folded into the rows."""
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
        """Expand rows (N, n_inputs) to all posteriors, (R, N, n_inputs)."""
        return x.expand(self._n_starts, *x.shape)

    def _backward(
        self, views: LayerViews, x: Tensor, noise: Sequence[Tensor], dm: Tensor, dv: Tensor
    ) -> None:
        """Propagate gradients from the outputs to the inputs.

        Parameters
        ----------
        views : LayerViews
            Moments of the posteriors, and buffers of the gradient.
        x : Tensor of shape (N, n_inputs)
            Inputs.
        noise : sequence of Tensor
            Noise of the hidden layers.
        dm, dv : Tensor of shape (R, S * N, O)
            ``d/d mean`` and ``2 d/d variance`` of the outputs.
        """
        for layer in range(len(self._hidden), -1, -1):
            if layer:
                below = self._hidden[layer - 1]
            else:
                below = None
            h = below.h if below else self._for_all(x)
            if below:
                h2 = below.h2
            else:
                h2 = self._for_all(self._x2)
            weight_gradient(dm, h, out=views.d_loc[layer][0])
            torch.sum(dm, 1, out=views.d_loc[layer][1])
            weight_gradient(dv, h2, out=views.d_variance[layer][0])
            torch.sum(dv, 1, out=views.d_variance[layer][1])
            if below is None:
                return
            # With one output, the matrix product is elementwise.
            multiply = torch.mul if dm.shape[2] == 1 else torch.bmm
            multiply(dm, views.loc[layer][0], out=below.dm)
            product = multiply(dv, views.variance[layer][0], out=below.product)
            dm = below.dm.addcmul_(below.h, product)
            self._network.activation.backward_(dm, below.h)
            dv = torch.mul(dm, noise[layer - 1], out=below.dv)
            dm = below.by_moment(dm)
            dv = below.by_moment(dv)
            dv.div_(below.sd)


class _Units(NamedTuple):
    """Scratch arrays of one hidden layer: draws (R, S * N, width), and their moments.

    The moments are (R, N, width) if all draws share them, as in the first layer. Otherwise there is
    one per draw, and ``mean`` is ``h`` itself.
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
        """Sum a gradient by the draws' pre-activations over draws with the same moments."""
        n_moments = self.sd.shape[1]
        if n_moments == gradient.shape[1]:
            return gradient
        return gradient.unflatten(1, (-1, n_moments)).sum(1)


def _scratch(n_starts: int, n_draws: int, n_moments: int, width: int, like: Tensor) -> _Units:
    """Allocate the scratch arrays of a hidden layer.

    Parameters
    ----------
    n_starts, n_draws, n_moments, width : int
        Number of posteriors, of draws times rows, of moments, and of units.
    like : Tensor
        Determines dtype and device.
    """
    h, h2, dm, dv, product = (like.new_empty(n_starts, n_draws, width) for _ in range(5))
    sd = like.new_empty(n_starts, n_moments, width)
    if n_moments == n_draws:
        mean = h
    else:
        mean = torch.empty_like(sd)
    return _Units(mean, sd, h, h2, dm, dv, product)


def output_moments(
    network: MLP, loc: Layers, variance: Layers, x: Tensor, noise: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute mean and variance of the outputs given draws of the hidden units.

    The first layer takes two matrix products for any number of draws. The other layers process
    draws in blocks whose hidden units fit into the cache.

    Parameters
    ----------
    network : MLP
        The network.
    loc, variance : sequence of (Tensor, Tensor)
        Posterior mean and variance, layer by layer.
    x : Tensor of shape (N, n_inputs)
        Inputs.
    noise : sequence of Tensor
        Noise of each hidden layer, (S, N, width), or (S, 1, width) to share it between rows. With
        shared noise, the distribution of each row remains exact, and doesn't depend on the other
        rows.

    Returns
    -------
    mean, variance : Tensor of shape (S, N, n_outputs)
        The outputs of draw s are ``N(mean[s], variance[s])``, exactly, for each row. The shape is
        (1, N, n_outputs) without hidden layers.
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
    """Return the average of the means of `output_moments`, (N, n_outputs).

    The last layer is applied once, to the average of the hidden units. The parameters are those of
    `output_moments`.

    Parameters
    ----------
    network : MLP
        The network.
    loc, variance : sequence of (Tensor, Tensor)
        Posterior mean and variance, layer by layer.
    x : Tensor of shape (N, n_inputs)
        Inputs.
    noise : sequence of Tensor
        Noise of each hidden layer.
    """
    if network.n_layers == 1:
        return _affine(x, *loc[0])
    total = x.new_zeros(len(x), network.hidden_layer_sizes[-1])
    for _, h in _hidden_units(network, loc, variance, x, noise):
        total += h.sum(0)
    return _affine(total / len(noise[0]), *loc[-1])


def _hidden_units(
    network: MLP, loc: Layers, variance: Layers, x: Tensor, noise: Sequence[Tensor]
) -> Iterator[tuple[slice, Tensor]]:
    """Yield units of the last hidden layer (block, N, width) for blocks of draws.

    Parameters
    ----------
    network : MLP
        The network.
    loc, variance : sequence of (Tensor, Tensor)
        Posterior mean and variance, layer by layer.
    x : Tensor of shape (N, n_inputs)
        Inputs.
    noise : sequence of Tensor
        Noise of each hidden layer.
    """
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
    """Return ``h W' + b`` by one matrix product over all leading axes."""
    flat = torch.addmm(bias, h.reshape(-1, h.shape[-1]), weight.T)
    return flat.reshape(*h.shape[:-1], weight.shape[0])


_BLOCK_ELEMENTS = 1 << 21  # size of a block's largest array: 16 MB, which fits into the cache


def outputs_and_jacobian(network: MLP, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (R, N, O) and their derivatives (R, N, O, P) at weight vectors (R, P).

    This takes one forward pass, and one backward pass per output: O(R N O P) time and memory.

    Parameters
    ----------
    network : MLP
        Network with P weights and O outputs.
    theta : Tensor of shape (R, P)
        Weight vectors.
    x : Tensor of shape (N, D)
        Inputs.
    """
    outputs, factors = outputs_and_factors(network, theta, x)
    return outputs, factors.dense()


def outputs_and_factors(
    network: MLP, theta: Tensor, x: Tensor
) -> tuple[Tensor, "FactoredJacobian"]:
    """Return outputs (R, N, O) and the factors of their derivatives at weight vectors (R, P).

    This takes one forward pass, and one backward pass per output.

    Parameters
    ----------
    network : MLP
        Network with P weights and O outputs.
    theta : Tensor of shape (R, P)
        Weight vectors.
    x : Tensor of shape (N, D)
        Inputs.
    """
    weights = network.layers(theta)
    inputs = []
    activation_slopes = []
    h = x.T.unsqueeze(0)
    for i, (weight, bias) in enumerate(weights, start=1):
        inputs.append(torch.cat([h, h.new_ones(len(h), 1, len(x))], 1))
        h = torch.baddbmm(bias.unsqueeze(2), weight, h.expand(len(theta), -1, -1))
        if i < network.n_layers:
            h = network.activation.function(h)
            activation_slopes.append(network.activation.backward_(torch.ones_like(h), h))
    eye = torch.eye(network.n_outputs, dtype=theta.dtype, device=theta.device)
    slopes = [eye[None, :, :, None].expand(len(theta), -1, -1, len(x))]
    for (weight, _), activation_slope in zip(weights[:0:-1], activation_slopes[::-1], strict=True):
        transposed = weight.mT.unsqueeze(1)  # (R, 1, H, H')
        # The derivatives of the outputs by themselves are the same for all rows.
        product = transposed @ (eye.unsqueeze(2) if len(slopes) == 1 else slopes[-1])
        slopes.append(product * activation_slope.unsqueeze(1))
    layers = tuple(LayerFactors(a, d) for a, d in zip(inputs, slopes[::-1], strict=True))
    return h.mT, FactoredJacobian(layers)


def jacobian_block_size(network: MLP, n_restarts: int = 1) -> int:
    """Return how many rows' products of pairs of units or inputs take 16 MB; at most 8,192."""
    largest_width = max(16, *network.sizes[1:], 1 + max(network.sizes[:-1]))
    return n_rows_per_block(_BLOCK_ELEMENTS, n_restarts * largest_width**2)


def pack(matrix: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sum the entries of symmetric matrices that are a single entry of `FactoredJacobian.packed`.

    Parameters
    ----------
    matrix : Tensor of shape (R, P, P)
        Symmetric matrices.
    sizes : tuple of int
        Widths of all layers of the network, including inputs and outputs.

    Returns
    -------
    Tensor of shape (R, Q)
        Sums in the order of `FactoredJacobian.packed`, so that their inner product is the trace of
        the product of both matrices.

    Notes
    -----
    Let ``m`` be the entry of the units ``j <= k`` at their inputs ``a <= b``. It represents the
    entries ``m[ja, kb]``, ``m[jb, ka]`` and their transposes, which are equal. For equal units or
    equal inputs some of them are the same entry, which counts once.
    """
    parts = []
    for first, second in _layer_pairs(sizes):
        is_same = first is second
        block = _with_bias_as_input(matrix[:, first.params, second.params], first, second)
        n_units = (first.n_units, second.n_units)
        n_inputs = (first.n_inputs, second.n_inputs)
        block = block.permute(0, 1, 3, 2, 4).flatten(3).flatten(1, 2)  # unit pairs, input pairs
        if is_same:
            j, k = torch.triu_indices(*n_units, device=matrix.device)
            a, b = torch.triu_indices(*n_inputs, device=matrix.device)
            block = block[:, j * n_units[1] + k]
            block = block[..., a * n_inputs[1] + b] + block[..., b * n_inputs[1] + a]
            multiplicity = torch.where(j == k, 0.5, 1.0).to(block)
            multiplicity = multiplicity.unsqueeze(1) * torch.where(a == b, 1.0, 2.0).to(block)
            block = block * multiplicity
        else:
            block = 2.0 * block
        parts.append(block.flatten(1))
    return torch.cat(parts, 1)


class _LayerParams(NamedTuple):
    """Position of a layer's parameters in the flat vector."""

    params: slice
    n_units: int
    n_inputs: int  # the bias counts as the weight of a last input, which is 1

    @property
    def n_weights(self) -> int:
        """Number of weights, which precede the biases."""
        return self.n_units * (self.n_inputs - 1)


def _layer_pairs(sizes: tuple[int, ...]) -> Iterator[tuple[_LayerParams, _LayerParams]]:
    """Return all pairs of layers in the order of `FactoredJacobian.packed`."""
    layers = []
    start = 0
    for n_inputs, n_units in pairwise(sizes):
        stop = start + n_units * (n_inputs + 1)
        layers.append(_LayerParams(slice(start, stop), n_units, n_inputs + 1))
        start = stop
    return combinations_with_replacement(layers, 2)


def _with_bias_as_input(matrix: Tensor, first: _LayerParams, second: _LayerParams) -> Tensor:
    """Reshape a block (R, P1, P2) of a matrix to (R, units, inputs, units, inputs)."""
    rows = _bias_last(matrix, 1, first)
    return _bias_last(rows, 3, second)


def _bias_last(values: Tensor, axis: int, layer: _LayerParams) -> Tensor:
    """Split an axis of a layer's parameters into units and inputs; the bias is the last input."""
    weights, biases = values.split([layer.n_weights, layer.n_units], axis)
    weights = weights.unflatten(axis, (layer.n_units, layer.n_inputs - 1))
    return torch.cat([weights, biases.unsqueeze(axis + 1)], axis + 1)


def _pair_index(n: int, m: int, is_same: bool, device: torch.device) -> Tensor:
    """Return the index (n, m) of pairs in `_products`; (i, j) and (j, i) agree if ``is_same``.

    Parameters
    ----------
    n, m : int
        Numbers of factors on both sides.
    is_same : bool
        Whether both sides are the same.
    device : torch.device
        Device of the index.
    """
    if not is_same:
        return torch.arange(n * m, device=device).view(n, m)
    index = torch.zeros(n, n, dtype=torch.int64, device=device)
    i, j = torch.triu_indices(n, n, device=device)
    index[i, j] = index[j, i] = torch.arange(len(i), device=device)
    return index


def unpack(packed: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Expand entries (R, Q) of `FactoredJacobian.packed` to symmetric matrices (R, P, P).

    Index tables are made for the pairs of one layer's inputs and units, not for the pairs of all
    parameters.
    """
    n_params = sum(n_units * (n_inputs + 1) for n_inputs, n_units in pairwise(sizes))
    matrix = packed.new_empty(len(packed), n_params, n_params)
    for first, second in _layer_pairs(sizes):
        is_same = first is second
        inputs = _pair_index(first.n_inputs, second.n_inputs, is_same, packed.device)
        units = _pair_index(first.n_units, second.n_units, is_same, packed.device)
        n_pairs = int(units.max()) + 1, int(inputs.max()) + 1
        block, packed = packed.tensor_split([n_pairs[0] * n_pairs[1]], 1)
        # Pairs of inputs are gathered first, since there are fewer pairs of units than entries.
        block = block.unflatten(1, n_pairs).index_select(2, inputs.flatten())
        block = block.unflatten(2, inputs.shape)
        rows = matrix[:, first.params, second.params]
        columns = matrix[:, second.params, first.params]
        size = n_rows_per_block(_BLOCK_ELEMENTS, len(packed) * units.shape[1] * inputs.numel())
        for start in range(0, first.n_units, size):
            chunk = units[start : start + size]
            # Entries of a chunk of the first layer's units, (R, units, inputs, units, inputs).
            values = block.index_select(1, chunk.flatten()).unflatten(1, chunk.shape)
            values = values.transpose(2, 3)
            _copy_units(rows, values, start, first, second)
            if not is_same:
                _copy_units(columns.mT, values, start, first, second)
    return matrix


def _copy_units(
    matrix: Tensor, values: Tensor, start: int, first: _LayerParams, second: _LayerParams
) -> None:
    """Write the rows of a chunk of the first layer's units.

    Parameters
    ----------
    matrix : Tensor of shape (R, P1, P2)
        Block of the two layers.
    values : Tensor of shape (R, units, inputs, units, inputs)
        Entries of the chunk.
    start : int
        First unit of the chunk.
    first, second : _LayerParams
        The two layers.
    """
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


def _products(a: Tensor, b: Tensor, is_same: bool) -> Tensor:
    """Return products of all pairs of rows (*B, n, N) and (*B, m, N); each once if ``is_same``."""
    *_, n, n_rows = a.shape
    if not is_same:
        return (a.unsqueeze(-2) * b.unsqueeze(-3)).flatten(-3, -2)
    if n_rows <= 16:  # one gather costs less than n products
        first, second = torch.triu_indices(n, n, device=a.device)
        return a[..., first, :] * b[..., second, :]
    products = b.new_empty(*b.shape[:-2], _count_pairs(n, n, True), n_rows)
    begin = 0
    for i in range(n):
        end = begin + n - i
        torch.mul(a[..., i : i + 1, :], b[..., i:, :], out=products[..., begin:end, :])
        begin = end
    return products


def _second_moments(a: Tensor, weight: Tensor) -> Tensor:
    """Return weighted sums over the columns of ``a`` (R, n, N) of products of rows, each once."""
    moments = (weight * a) @ a.mT
    first, second = torch.triu_indices(*moments.shape[1:], device=a.device)
    return moments[:, first, second]


def _count_pairs(n: int, m: int, is_same: bool) -> int:
    """Return the number of pairs in `_products`."""
    return n * (n + 1) // 2 if is_same else n * m


def _bilinear_form(entries: Tensor, a: Tensor, b: Tensor, is_same: bool) -> Tensor:
    """Return sums ``entries * _products(a, b, is_same)`` over pairs, (R, pairs, N) -> (R, N).

    Parameters
    ----------
    entries : Tensor of shape (R, pairs, 1 or N)
        Coefficients of the pairs.
    a, b : Tensor of shape (R, n, N) and (R, m, N)
        Factors of the pairs.
    is_same : bool
        Whether ``a`` and ``b`` are the same.
    """
    n, n_rows = a.shape[1:]
    if not is_same or n_rows <= 16:
        return (entries * _products(a, b, is_same)).sum(1)
    sums = torch.zeros_like(b)
    begin = 0
    for i in range(n):  # one pass that doesn't store the products
        end = begin + n - i
        sums[:, i:].addcmul_(entries[:, begin:end], a[:, i : i + 1])
        begin = end
    return (sums * b).sum(1)


def _halved_matrix(entries: Tensor, n: int) -> Tensor:
    """Return matrices (*B, n, n) of entries (*B, n (n + 1) / 2), halved off the diagonal."""
    matrix = entries.index_select(-1, _pair_index(n, n, True, entries.device).flatten())
    return matrix.unflatten(-1, (n, n)) * (0.5 + 0.5 * torch.eye(n).to(entries))


class LayerFactors(NamedTuple):
    """Factors of one layer's part of the Jacobians at N rows and R weight vectors.

    Attributes
    ----------
    inputs : Tensor of shape (R, L, N)
        Inputs of the layer, followed by 1. R is 1 for the first layer.
    slopes : Tensor of shape (R, K, H, N)
        Derivatives of the outputs by the pre-activations.
    """

    inputs: Tensor
    slopes: Tensor

    @property
    def by_row(self) -> Tensor:
        """Slopes of each row, (R, N, K, H), for batched matrix products."""
        return self.slopes.permute(0, 3, 1, 2).contiguous()


class FactoredJacobian(NamedTuple):
    """Derivatives of K outputs at N rows by R weight vectors (R, P)."""

    layers: tuple[LayerFactors, ...]

    def select_output(self, k: int) -> "FactoredJacobian":
        """Return the derivatives of one output."""
        layers = (LayerFactors(a, d[:, k : k + 1]) for a, d in self.layers)
        return self._replace(layers=tuple(layers))

    def dense(self) -> Tensor:
        """Return J itself, (R, N, K, P), with contiguous rows."""
        parts = []
        for a, d in self.layers:
            parts += [(d.unsqueeze(3) * a[:, None, None, :-1]).flatten(2, 3), d]
        return torch.cat(parts, 2).permute(0, 3, 1, 2)

    def transposed(self, values: Tensor) -> Tensor:
        """Return ``J' v`` summed over rows, (R, N, K) -> (R, P)."""
        parts = []
        for a, d in self.layers:
            by_unit = (values.mT.unsqueeze(2) * d).sum(1)  # (R, H, N)
            by_weight = by_unit @ a.mT
            parts += [by_weight[..., :-1].flatten(1), by_weight[..., -1]]
        return torch.cat(parts, 1)

    def packed(self, weight: Tensor) -> Tensor:
        """Return the distinct entries of ``J' Lambda J``, summed over rows, (R, Q).

        Sums of blocks of rows can be added. ``weight`` is the symmetric Lambda, (R or 1, N, K, K).
        """
        parts = []
        has_one_output = weight.shape[-1] == 1
        if has_one_output:
            by_row = []
        else:
            by_row = [layer.by_row for layer in self.layers]
        weighted = [weight @ slopes for slopes in by_row]
        for i, k in combinations_with_replacement(range(len(self.layers)), 2):
            earlier = self.layers[i]
            later = self.layers[k]
            is_same = i == k
            if has_one_output:
                slopes = weight[..., 0].mT * later.slopes[:, 0]
                if is_same and slopes.shape[1] == 1:
                    parts.append(_second_moments(later.inputs, slopes * later.slopes[:, 0]))
                    continue
                units = _products(earlier.slopes[:, 0], slopes, is_same).mT
            else:  # (R, N, H, H'), with each pair once if the layers are the same
                between = by_row[i].mT @ weighted[k]
                n, m = between.shape[-2:]
                units = between.flatten(2)
                if is_same:
                    first, second = torch.triu_indices(n, n, device=units.device)
                    units = units.index_select(2, first * m + second)
            inputs = _products(earlier.inputs, later.inputs, is_same)
            # Products are faster with the smaller factor first.
            if inputs.shape[1] < units.shape[2]:
                sums = (inputs @ units).mT
            else:
                sums = units.mT @ inputs.mT
            parts.append(sums.flatten(1))
        return torch.cat(parts, 1)

    def gauss_newton(self, packed: Tensor) -> Tensor:
        """Expand sums (R, Q) of `packed` to matrices (R, P, P)."""
        units = [layer.slopes.shape[2] for layer in self.layers]
        sizes = (self.layers[0].inputs.shape[1] - 1, *units)
        return unpack(packed, sizes)

    def covariance(self, packed: Tensor) -> Tensor:
        """Return ``J C J'`` of each row, (R, N, K, K), for matrices C (R, Q) from `pack`."""
        half: Tensor | float = 0.0
        has_one_output = self.layers[0].slopes.shape[1] == 1
        if has_one_output:
            by_row = []
        else:
            by_row = [layer.by_row for layer in self.layers]
        for i, k in combinations_with_replacement(range(len(self.layers)), 2):
            a, d = self.layers[i]
            b, e = self.layers[k]
            is_same = i == k
            n = d.shape[2]
            m = e.shape[2]
            n_units = _count_pairs(n, m, is_same)
            n_inputs = _count_pairs(a.shape[1], b.shape[1], is_same)
            entries, packed = packed.tensor_split([n_units * n_inputs], 1)
            if has_one_output and is_same and n == 1:  # a quadratic form in the inputs
                form = ((_halved_matrix(entries, a.shape[1]) @ a) * a).sum(1)
                half = half + form * d[:, 0, 0].square()
                continue
            middle = entries.unflatten(1, (n_units, -1)) @ _products(a, b, is_same)
            if has_one_output:
                half = half + _bilinear_form(middle, d[:, 0], e[:, 0], is_same)
                continue
            if is_same:
                between = _halved_matrix(middle.mT, n)
            else:
                between = middle.mT.unflatten(2, (n, m))
            half = half + by_row[i] @ between @ by_row[k].mT
        assert isinstance(half, Tensor)
        if has_one_output:
            return half[..., None, None]
        return 0.5 * (half + half.mT)
