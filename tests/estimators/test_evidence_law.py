"""`log_evidence_` is log p(y | X, hyperparameters reported), whichever estimator reports it."""

import numpy as np
import pytest
import torch
from fits import FITS, fitted
from scipy import stats
from torch.distributions import Categorical, Normal

from skbayes_sym.models.priors import LayerScales


def gauss_newton_evidence(model, theta, scale, noise, X, y):
    """Laplace's approximation at weights of these scales, by autograd."""
    network = model.network_
    x = torch.as_tensor((X - model.x_mean_) / model.x_scale_)
    theta, scale = torch.as_tensor(theta), torch.as_tensor(scale)
    outputs = network.forward(theta, x)
    if noise is None:
        law = Categorical(logits=outputs)
        target = torch.as_tensor(np.searchsorted(model.classes_, y))
        curvature = torch.diag_embed(law.probs) - law.probs.unsqueeze(-1) * law.probs.unsqueeze(1)
    else:
        unit, noise = torch.as_tensor(model.y_scale_), torch.as_tensor(noise)
        law = Normal(outputs * unit, noise)
        target = torch.as_tensor(y.reshape(len(y), -1) - model.y_mean_)
        curvature = torch.diag_embed((unit / noise).square().expand(outputs.shape))
    jacobian = torch.func.jacrev(network.forward)(theta, x)
    precision = torch.einsum("nop,noq,nqr->pr", jacobian, curvature, jacobian)
    precision.diagonal().add_(scale**-2)
    log_joint = law.log_prob(target).sum() + Normal(0.0, scale).log_prob(theta).sum()
    log_volume = 0.5 * len(theta) * np.log(2.0 * np.pi) - 0.5 * torch.logdet(precision)
    return float(log_joint + log_volume)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [
    "laplace-modes", "laplace-modes-ard", "bayesian-mlp-ard", "bayesian-mlp-growing-noise",
])  # fmt: skip
def test_of_every_mode_it_is_laplaces(name):
    case, model = FITS[name], fitted(name)
    prior = LayerScales() if model.prior == "learn" else model.prior
    groups = prior.bind(model.network_.layout).group
    own = [
        gauss_newton_evidence(model, theta, scale[groups], noise, case.X, case.y)
        for theta, scale, noise in zip(
            model.posterior_.loc, model.prior_scale_modes_, model.noise_std_modes_, strict=True
        )
    ]
    np.testing.assert_allclose(model.log_evidence_modes_, own, rtol=1e-9)
    assert model.log_evidence_ == max(model.log_evidence_modes_)


def test_by_adam_it_is_laplaces():
    case, model = FITS["laplace-full"], fitted("laplace-full")
    scale = np.repeat(model.prior_scale_, [12, 8])  # of the weights of three inputs, three units
    own = gauss_newton_evidence(model, model.posterior_.loc, scale, None, case.X, case.y)
    assert model.log_evidence_ == pytest.approx(own, rel=1e-9)


def test_of_a_linear_model_it_is_exact():
    """The intercept is the targets' mean, where columns are centred."""
    case, model = FITS["linear-gaussian"], fitted("linear-gaussian")
    x, y = case.X - case.X.mean(0), case.y - case.y.mean()
    covariance = model.prior_scale_**2 * x @ x.T + model.noise_std_**2 * np.eye(len(x))
    own = stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)
    assert model.log_evidence_ == pytest.approx(own, rel=1e-9)
