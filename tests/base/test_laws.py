"""Laws of every fit: its group, its evidence, and densities that are those of what it draws."""

import numpy as np
import pytest
import torch
from fits import FITS, NUMBERS, TWO_NUMBERS, X, fitted
from scipy import stats
from sklearn.base import clone
from thin import some
from torch.distributions import Categorical, Normal
from torch.nn.functional import pad
from torch.testing import assert_close

from skbayes_sym import EvidenceAdam, GaussNewton, LaplaceRegressor, LILARegressor
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.laplace.modes_fit import ModesFit
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import LayerScales

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# A stack of anyone's models has no parameters of its own.
WITH_GROUPS = [name for name in FITS if not name.startswith("stack")]


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_the_group_leaves_the_network_unchanged(name, generator):
    model = fitted(name)
    group = model.symmetry_
    assert group.log_order >= 0.0
    if not isinstance(fitted_attribute(model, "network_"), MLP):
        return  # laws of `cases.GROUPS`, and those of modules, say the rest
    network = model.network_
    assert group.log_order > 0.0
    theta = network.init(3, generator=generator)
    x = torch.randn(5, network.n_inputs, generator=generator, dtype=torch.float64)
    moved = group.act(group.sample((3,), generator=generator), theta)
    assert_close(network.forward(moved, x), network.forward(theta, x), rtol=0, atol=1e-12)


def laplace_evidence(model, theta, scale, noise, case, posterior=None):
    """At weights of these scales: by Gauss-Newton and autograd, or as a posterior's volume says."""
    network, y = model.network_, case.y
    pads = (int(noise is None and network.n_outputs == 1), 0)  # log odds of one class
    x = torch.as_tensor((case.X - model.x_mean_) / model.x_scale_)
    theta, scale = torch.as_tensor(theta), torch.as_tensor(scale)

    def forward(theta, x):
        return pad(network.forward(theta, x.reshape(len(x), *network.input_shape)), pads)

    outputs = forward(theta, x)
    if noise is None:
        distribution = Categorical(logits=outputs)
        target = torch.as_tensor(np.searchsorted(model.classes_, y))
        curvature = torch.diag_embed(distribution.probs) - distribution.probs.unsqueeze(
            -1
        ) * distribution.probs.unsqueeze(1)
    else:
        unit, noise = torch.as_tensor(model.y_scale_), torch.as_tensor(noise)
        distribution = Normal(outputs * unit, noise)
        target = torch.as_tensor(y.reshape(len(y), -1) - model.y_mean_)
        curvature = torch.diag_embed((unit / noise).square().expand(outputs.shape))
    covered = slice(None) if posterior is None else torch.as_tensor(posterior.positions)
    log_prior = Normal(0.0, scale).log_prob(theta[covered]).sum()
    log_joint = float(distribution.log_prob(target).sum() + log_prior)
    if posterior is not None:
        return log_joint - float(posterior.log_prob(theta))
    jacobian = torch.func.jacrev(forward)(theta, x)
    precision = torch.einsum("nop,noq,nqr->pr", jacobian, curvature, jacobian)
    precision.diagonal().add_(scale**-2)
    return log_joint + 0.5 * len(theta) * np.log(2.0 * np.pi) - 0.5 * float(precision.logdet())


OF_NUMBERS = ["laplace-modes", "laplace-modes-ard", "bayesian-mlp-ard", "bayesian-mlp",
              "bayesian-mlp-growing-noise"]  # fmt: skip
OF_LABELS = [n for n in FITS if n.startswith(("laplace-", "bayesian-")) and "classes" in n]
BY_ADAM = ["laplace-kronecker", "laplace-full", "laplace-diagonal-last", "lila-cnn"]


def test_every_evidence_is_judged():
    """But by random transformations; chains' are judged by quadrature, bounds are no evidences."""
    told = {n for n in FITS if np.isfinite(getattr(fitted(n), "log_evidence_", np.nan))}
    transformed = {n for n in FITS if len(getattr(fitted(n), "eta_", ()))}
    assert told == {*OF_NUMBERS, *OF_LABELS, *BY_ADAM, "linear-gaussian"} | transformed


@pytest.mark.parametrize("name", OF_NUMBERS + OF_LABELS)
def test_of_every_mode_it_is_laplaces(name, monkeypatch):
    """Of labels where the search ended: variational steps move the posterior on from there."""
    seen, attributes = {}, ModesFit.attributes

    def kept(self, data, model):
        seen[self.network] = self.modes.theta
        return attributes(self, data, model)

    monkeypatch.setattr(ModesFit, "attributes", kept)
    case = FITS[name]
    is_of_labels = name in OF_LABELS
    model = clone(case.estimator).fit(case.X, case.y) if is_of_labels else fitted(name)
    modes = seen[model.network_] if is_of_labels else model.posterior_.loc
    prior = LayerScales() if model.prior == "learn" else model.prior
    groups = prior.bind(model.network_.layout).group
    noises = [None] * len(modes) if is_of_labels else model.noise_std_modes_
    own = [
        laplace_evidence(model, theta, scale[groups], noise, case)
        for theta, scale, noise in zip(modes, model.prior_scale_modes_, noises, strict=True)
    ]
    np.testing.assert_allclose(model.log_evidence_modes_, own, rtol=1e-9)
    every = np.logaddexp.reduce(model.log_evidence_modes_)
    assert every <= model.log_evidence_ <= every + model.symmetry_.log_order + 1e-9


@pytest.mark.parametrize("name", BY_ADAM)
def test_by_adam_it_is_that_of_its_own_curvature(name):
    case, model, shapes = FITS[name], fitted(name), fitted(name).network_.layout.shapes
    names = [(layer.weight, layer.bias) for layer in model.network_.weight_layers]
    sizes = [sum(np.prod(shapes[k]) for k in both) for both in names][-len(model.prior_scale_) :]
    scale, noise = np.repeat(model.prior_scale_, sizes), getattr(model, "noise_std_", None)
    at = model, model.posterior_.loc, scale, noise, case
    own = laplace_evidence(*at, model.posterior_)
    assert model.log_evidence_ == pytest.approx(own, rel=1e-9)
    if name == "laplace-full":
        assert own == pytest.approx(laplace_evidence(*at), rel=1e-9)


def test_of_a_linear_model_it_is_exact():
    """The intercept is the targets' mean, where columns are centred."""
    case, model = FITS["linear-gaussian"], fitted("linear-gaussian")
    x, y = case.X - case.X.mean(0), case.y - case.y.mean()
    covariance = model.prior_scale_**2 * x @ x.T + model.noise_std_**2 * np.eye(len(x))
    own = stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)
    assert model.log_evidence_ == pytest.approx(own, rel=1e-9)


N_DRAWS = 10_000
ONE_TARGET = [
    name for name, case in FITS.items() if case.y is NUMBERS and hasattr(case.estimator, "sample_y")
]
# Without pools: their components are narrower than a cell, and have a test of their own.
TWO_TARGETS = {
    **{k: c.estimator for k, c in FITS.items() if c.y is TWO_NUMBERS and k != "bayesian-mlp"},
    "mcmc": FITS["mcmc-regressor"].estimator,
    "layerwise": FITS["vi-collapsed"].estimator,
    "lila": FITS["lila-regressor"].estimator,
}


def fit(estimator, y):
    """With as many draws behind a prediction as make its error small."""
    model = clone(estimator)
    if "n_predict_samples" in model.get_params():
        model.set_params(n_predict_samples=1000)
    return model.fit(X, y)


def cells(draws, n):
    """Centres of a grid over nine standard deviations of the draws (n, T), and a cell's volume."""
    middle, spread = draws.mean(0), 9.0 * draws.std(0)
    axes = [m + s * ((np.arange(n) + 0.5) / n - 0.5) for m, s in zip(middle, spread, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    return points, np.prod(spread / n)


def assert_density_of_draws(model, row):
    draws = model.sample_y(row, N_DRAWS, random_state=1)[0].reshape(-1, N_DRAWS).T
    points, volume = cells(draws, 40)
    y = points if points.shape[1] > 1 else points[:, 0]
    log_density = model.log_predictive_density(np.repeat(row, len(y), 0), y)
    mass = volume * np.exp(log_density)
    assert mass.sum() == pytest.approx(1.0, abs=0.01)
    mean = mass @ points
    covariance = (mass[:, None] * (points - mean)).T @ (points - mean)
    found = np.cov(draws.T).reshape(covariance.shape)
    scale = np.sqrt(np.outer(np.diag(found), np.diag(found)))
    # 10,000 draws, at most 1,000 of the weights behind a prediction: errors of 1.5 and 4 per cent.
    assert np.abs((covariance - found) / scale).max() < 0.12
    assert np.abs(mean - draws.mean(0)).max() < 0.1 * np.sqrt(np.diag(found)).max()


# What draws functions as another one here does: members of a family, and seconds each.
ALIKE = {"lila-regressor", "lila", "mcmc-annealed", "bayesian-mlp-ard"}


@some("name", ONE_TARGET, keep=set(ONE_TARGET) - ALIKE)
def test_one_target(name):
    case = FITS[name]
    if case.X is X:
        assert_density_of_draws(fit(case.estimator, NUMBERS), X[:1])
    else:
        assert_density_of_draws(fitted(name), case.X[:1])


@pytest.mark.long
@some("name", TWO_TARGETS, keep=set(TWO_TARGETS) - ALIKE)
def test_two_targets_together(name):
    assert_density_of_draws(fit(TWO_TARGETS[name], TWO_NUMBERS), X[:1])


def opposite(model):
    """One unit, and a second target that is the first one's negative: correlation near -1."""
    x = np.linspace(-0.3, 0.3, 8)[:, None]
    f = np.tanh(2.0 * x[:, 0])
    return model.fit(x, np.column_stack([f, -f])), np.array([[1.5]])


ONE_UNIT = {"noise_std": 0.05, "prior": 1.0, "tol": None, "random_state": 0}


@pytest.mark.long
@pytest.mark.parametrize("model", [
    LaplaceRegressor((1,), optimizer=EvidenceAdam(curvature="full"), max_iter=300, **ONE_UNIT),
    LaplaceRegressor((1,), optimizer=GaussNewton(2), **ONE_UNIT),
    LILARegressor((1,), invariances=None, optimizer=EvidenceAdam(curvature="full"), max_iter=300,
                  **ONE_UNIT),
], ids=["adam", "modes", "lila"])  # fmt: skip
def test_two_targets_of_one_unit_depend_on_each_other(model):
    model, row = opposite(model)
    assert_density_of_draws(model, row)
    draws = model.sample_y(row, N_DRAWS, random_state=1)[0]
    assert np.corrcoef(draws)[0, 1] < -0.5  # so that independent normals would be seen
