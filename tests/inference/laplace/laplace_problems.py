"""Small averaged networks with data, shared by the tests of the Laplace evidence."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.models.augmentations.augmentation import Identity
from skbayes_sym.models.augmentations.tabular import Rotation2D
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.networks.modules import ModuleNetwork


class Problem(NamedTuple):
    model: AveragedNetwork
    theta: Tensor
    hyper: Tensor
    data: Data
    noise: Tensor


def problem(kind="classes", hidden=(4,), n=7, n_samples=3, rotate=True, seed=0):
    """An MLP on the plane with rotated inputs, weights at random and unequal row weights."""
    g = torch.Generator().manual_seed(seed)
    likelihood = (
        Categorical() if kind == "classes" else Gaussian(torch.tensor([-0.4, 0.3]).double())
    )
    n_outputs = 3 if kind == "classes" else 2
    network = MLP(2, hidden, n_outputs, TANH)
    augmentation = Rotation2D() if rotate else Identity()
    model = AveragedNetwork(network, augmentation, likelihood, n_samples if rotate else 1)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    if kind == "classes":
        y = torch.randint(0, 3, (n,), generator=g)
    else:
        y = torch.randn(n, 2, generator=g, dtype=torch.float64)
    weight = 0.5 + torch.rand(n, generator=g, dtype=torch.float64)
    return _with_start(model, Data(x, y, weight), g)


def image_problem(n=3, n_samples=2, seed=0, hidden=False):
    """A convolution with stride and padding, a pooling and a linear layer without bias."""
    g = torch.Generator().manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        *([nn.Linear(3, 3), nn.Softplus()] if hidden else []), nn.Linear(3, 3, bias=False),
    )  # fmt: skip
    network = ModuleNetwork(
        module, (2, 4, 4), {name: (0.0, 0.7) for name, _ in module.named_parameters()}
    )
    model = AveragedNetwork(network, _Shift(), Categorical(), n_samples)
    x = torch.randn(n, 2, 4, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=g)
    return _with_start(model, Data(x, y, torch.ones(n, dtype=torch.float64)), g)


def network_problem(network, n=2, n_samples=2, seed=0):
    """Images of any network, its weights away from where training starts."""
    g = torch.Generator().manual_seed(seed)
    model = AveragedNetwork(network, _Shift(), Categorical(), n_samples)
    x = torch.randn(n, *network.input_shape, generator=g, dtype=torch.float64)
    y = torch.randint(0, network.n_outputs, (n,), generator=g)
    p = _with_start(model, Data(x, y, torch.ones(n, dtype=torch.float64)), g)
    noise = torch.randn(p.theta.shape, generator=g, dtype=torch.float64)
    return p._replace(theta=p.theta + 0.1 * noise)


class _Shift:
    """Adds a random multiple of a fixed image: smooth, so that differences can be checked."""

    half_width = Rotation2D().half_width

    def bind(self, scale, image_shape=None):
        return self

    def transform(self, x, eta, noise):
        pattern = torch.linspace(-1.0, 1.0, x[0].numel(), dtype=x.dtype).reshape(x.shape[1:])
        return x.unsqueeze(1) + (noise * eta)[..., None, None] * pattern


def _with_start(model, data, g):
    theta = model.network.init(1, generator=g)[0]
    hyper = torch.cat(
        [
            torch.full((model.augmentation.half_width.n_params,), 0.6, dtype=torch.float64),
            model.likelihood.params.double(),
            torch.linspace(-1.0, 0.5, len(model.layers), dtype=torch.float64),
        ]
    )
    return Problem(model, theta, hyper, data, model.noise(len(data.x), data.x, g))


def averaged_outputs(p: Problem, theta: Tensor) -> Tensor:
    """The averaged network, written out without recording anything, (N, O)."""
    eta = p.model.hyper.unflatten(p.hyper)["eta"]
    x = p.model.augmentation.transform(p.data.x, eta, p.noise)
    outputs = [p.model.network.forward(theta, x[:, s]) for s in range(p.model.n_samples)]
    return torch.stack(outputs).mean(0)
