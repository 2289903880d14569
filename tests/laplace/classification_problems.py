"""Small classification problems, shared by the tests of Gauss-Newton classifiers."""

from dataclasses import replace

import torch
from torch.nn.functional import logsigmoid

from skbayes_sym.laplace.evidence_problem import CategoricalEvidence
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.laplace.predict import ClassModesPredictor
from skbayes_sym.models import MLP, TANH, LayerScales
from skbayes_sym.models.model import Data
from skbayes_sym.models.normal_logits import symmetric_root


def class_data(n=40, n_inputs=2, n_classes=3, seed=0):
    """Overlapping classes: noisy scores of the columns."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n_inputs, generator=generator, dtype=torch.float64)
    scores = x @ torch.randn(n_inputs, n_classes, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    y = (2.0 * scores + noise).argmax(1)
    return Data(x, y, torch.ones(n, dtype=torch.float64))


def class_problem(data, widths=(), n_outputs=3, prior=None):
    network = MLP(data.x.shape[1], widths, n_outputs, TANH)
    prior = prior or LayerScales(shape=8.0, output_variance=4.0)
    return CategoricalEvidence(network, data, prior.bind(network.layout))


def held(problem):
    """The same with scales that stay."""
    return replace(problem, prior=replace(problem.prior, is_learned=False))


def mixture_at(problem, distributions, variance_scale, x=None):
    """Class probabilities by laws that count alike, of the problem's rows by default."""
    equal = torch.ones(len(distributions.theta), dtype=torch.float64)
    modes = LinearisedModes(problem.network, distributions.theta, distributions.factor, equal)
    return ClassModesPredictor(modes, variance_scale).distribution(
        problem.data.x if x is None else x
    )


def grid_log_evidence(problem, hyper, centre, half_width, n=121):
    """Log evidence of a logistic model of two weights, summed over a grid."""
    axes = [c + torch.linspace(-w, w, n).double() for c, w in zip(centre, half_width, strict=True)]
    points = torch.cartesian_prod(*axes)
    logits = problem.network.forward(points, problem.data.x)[..., 0]
    log_lik = logsigmoid(logits * (2.0 * problem.data.y - 1.0)) @ problem.data.weight
    log_joint = problem.prior.at(hyper).log_prob(points) + log_lik
    log_cell = sum((axis[1] - axis[0]).log() for axis in axes)
    return log_joint.logsumexp(0) + log_cell


def gaussian_bound(problem, theta, hyper, factor):
    """A lower bound on the log evidence of the network linearised at ``theta``, of any normal."""
    prior, covariance = problem.prior, torch.cholesky_inverse(factor)
    root = symmetric_root(problem.logits(theta, covariance).covariance)
    squares = prior.sum_by_group(theta.square() + covariance.diagonal())
    log_prior = 0.5 * (prior.sizes.to(theta) * hyper - hyper.exp() * squares).sum()
    misfit = replace(problem, root=root).misfit(theta.unsqueeze(0))[0]
    return log_prior + 0.5 * (len(theta) + covariance.logdet()) - misfit


def repeated(data):
    """Rows with weights 1, 2, 3, 1, ..., and as often as that."""
    weight = torch.arange(len(data.x)) % 3 + 1
    rows = Data(*(t.repeat_interleave(weight, 0) for t in data))
    return data._replace(weight=weight.double()), rows
