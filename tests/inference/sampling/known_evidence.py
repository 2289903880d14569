"""A linear model, whose evidence, mean and covariance are known."""

from math import log, pi

import torch

from skbayes_sym.inference.log_density import AutogradPosterior

F64 = torch.float64


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal_prior(x):
    return -0.5 * x.square().sum(dim=1) - 0.5 * x.shape[1] * log(2 * pi)


class NormalDraws:
    """Standard normal; a class, because processes pickle it."""

    def __init__(self, n_dims, scale=1.0, dtype=F64):
        self.n_dims, self.scale, self.dtype = n_dims, scale, dtype

    def __call__(self, n, generator):
        noise = torch.randn(n, self.n_dims, generator=generator, dtype=F64)
        return (self.scale * noise).to(self.dtype)


class Linear:
    """Likelihood of ``y = X x + N(0, scale^2)``."""

    def __init__(self, design, y, scale):
        self.design, self.y, self.scale = design, y, scale

    def __call__(self, x):
        z = (self.y.to(x) - x @ self.design.to(x).mT) / self.scale
        return -0.5 * z.square().sum(dim=1) - len(self.y) * log(self.scale * (2 * pi) ** 0.5)

    def exact(self):
        """Evidence, mean and covariance under a standard normal prior."""
        n, d = self.design.shape
        covariance = self.design @ self.design.mT + self.scale**2 * torch.eye(n, dtype=F64)
        marginal = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=F64), covariance)
        precision = torch.eye(d, dtype=F64) + self.design.mT @ self.design / self.scale**2
        posterior = torch.linalg.inv(precision)
        mean = posterior @ self.design.mT @ self.y / self.scale**2
        return float(marginal.log_prob(self.y)), mean, posterior


def linear_problem(n_rows=15, n_dims=4):
    design = torch.randn(n_rows, n_dims, generator=seeded(1), dtype=F64)
    y = design @ torch.tensor([1.0, -1.0, 2.0, 0.0], dtype=F64)
    y += 0.5 * torch.randn(n_rows, generator=seeded(2), dtype=F64)
    likelihood = Linear(design, y, 0.5)
    return AutogradPosterior(n_dims, normal_prior, likelihood, NormalDraws(n_dims)), likelihood
