"""Mean-field posteriors of modules: bounds as an MLP's, gaps by the group that is found."""

import pickle

import numpy as np
import pytest
import torch
from gap_oracle import log_density_ratio
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor, invariance_gap, save
from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.models import ARD, MLP, TANH, ModuleNetwork, Normal
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.symmetry.gaps.unit_gap import Exact, UnitGap
from skbayes_sym.variational.elbo import (
    DrawTerm,
    GatedGap,
    GaussianNetwork,
    Moments,
    MomentTerm,
    SymmetrizedElbo,
    pack_starts,
    unpack,
)
from skbayes_sym.variational.mean_field import (
    expected_log_likelihood,
    sampled_log_likelihood,
)

rng = np.random.default_rng(0)
X = rng.standard_normal((30, 3))
Y = np.tanh(X[:, 0]) + 0.3 * rng.standard_normal(30)
MLP_MODULE = nn.Sequential(
    nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)
)  # fmt: skip
ALIKE = MLP(3, (3, 2), 1, TANH), ModuleNetwork(MLP_MODULE, (3,))
N = ALIKE[0].layout.n_params
LOC = torch.linspace(-1.0, 1.0, N, dtype=torch.float64).sin()
POSTERIOR = MeanFieldGaussian(LOC.numpy(), 0.2 + 0.1 * LOC.cos().numpy())
NOISE = Gaussian(torch.tensor([-0.5], dtype=torch.float64))
DATA = Data(
    torch.as_tensor(X), torch.as_tensor(Y)[:, None],
    torch.linspace(1.0, 2.0, 30, dtype=torch.float64),
)  # fmt: skip


class Filters(nn.Module):
    """Three filters of one row, whose sizes are added up."""

    def __init__(self):
        super().__init__()
        self.filters, self.last = nn.Conv2d(1, 3, (1, 2)), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.filters(x[:, None, None])).square().mean((2, 3)))


def quick(module=MLP_MODULE, **settings):
    settings = {"max_iter": 60, "tol": None, "random_state": 0} | settings
    return SymmetrizedVIRegressor(network=module, **settings)


def test_gap_and_likelihood_are_those_of_the_same_mlp(generator):
    gaps = (UnitGap(network.symmetry(), Exact()) for network in ALIKE)
    same = (g.estimate(POSTERIOR, 50, generator=torch.Generator().manual_seed(0)) for g in gaps)
    assert len({estimate.value for estimate in same}) == 1
    given, settings = (NOISE, POSTERIOR, DATA), {"n_draws": 4000, "generator": generator}
    moments = expected_log_likelihood(ALIKE[0], *given, **settings)
    drawn = sampled_log_likelihood(ALIKE[1], *given, **settings)
    error = np.hypot(moments.standard_error, drawn.standard_error)
    assert abs(moments.value - drawn.value) < 4 * error < 0.02 * abs(drawn.value)


def test_gradients_by_draws_are_those_by_moments(generator):
    """Means over many steps, in units of their scatter."""

    def steps(term):
        seen = []
        for _ in range(300):
            own = torch.zeros(1, 1, dtype=torch.float64)
            value = term([NOISE], Batches(DATA, 30, generator), own)
            seen.append(torch.cat([value[None], own, *moments[2:]], 1)[0])
        return torch.stack(seen)

    variance = torch.as_tensor(POSTERIOR.scale)[None] ** 2
    moments = Moments(LOC[None], variance, *torch.zeros(2, 1, N).double())
    with torch.no_grad():
        first = steps(MomentTerm(ALIKE[0], NOISE, 30, 4, moments))
        with torch.enable_grad():
            second = steps(DrawTerm(ALIKE[1], 4, moments))
    # The sign of a value is the bound's, that of a derivative the loss's, with both terms.
    error = ((first.var(0) + second.var(0)) / 300).sqrt()
    assert float(((first.mean(0) - second.mean(0)) / error).abs().max()) < 5.0


@pytest.mark.parametrize("network", ALIKE)
def test_starts_that_climb_together_are_each_alone(network):
    """In loss and gradient, with their own noise, scales and weight of KL and gap."""
    group = network.symmetry()
    model = GaussianNetwork(network, NOISE, ARD().bind(network.layout), group)
    starts = [torch.cat([LOC / r, LOC - 3.0, torch.tensor([0.1 * r]).double()]) for r in (1, 2)]

    def climb(*which):
        gap = GatedGap(UnitGap(group, Exact()), generator=torch.Generator().manual_seed(1))
        batches = Batches(DATA, 30, torch.Generator().manual_seed(0))
        params, warm_up = pack_starts([starts[r] for r in which], N), [(1, 4)[r] for r in which]
        elbo = SymmetrizedElbo(model, batches, params, n_draws=2, gap=gap, warm_up=warm_up)
        with torch.no_grad():
            return elbo(0), *unpack(elbo.gradient, len(which), N)

    together = climb(0, 1)
    for r in range(2):
        for value, alone in zip(together, climb(r), strict=True):
            torch.testing.assert_close(value[r], alone[0])


@pytest.mark.long
@pytest.mark.parametrize(("symmetry", "n"), [("auto", 48), ("permutation", 6), ("sign_flip", 8)])
def test_a_fit_reports_the_gap_of_its_whole_group(symmetry, n):
    torch.manual_seed(0)  # of the module's own scales
    reg = quick(Filters(), symmetry=symmetry).fit(X, Y)
    group, draws = reg.symmetry_, 20_000  # rare draws have most of the variance
    assert group.log_order == pytest.approx(np.log(n))
    noise = torch.randn(draws, len(reg.posterior_.loc), generator=torch.Generator().manual_seed(1))
    posterior = MeanFieldGaussian(*(a.astype(float) for a in vars(reg.posterior_).values()))
    theta = torch.as_tensor(posterior.loc) + torch.as_tensor(posterior.scale) * noise.double()
    exact = log_density_ratio(group, posterior, theta)
    error = float(exact.std()) * (1 / draws + 1 / 128) ** 0.5
    assert abs(reg.symmetry_gap_ - float(exact.mean())) < 4 * error + 1e-9
    assert reg.elbo_ == pytest.approx(reg.elbo_mean_field_ + reg.symmetry_gap_)
    assert invariance_gap(reg).side == "exact"


@pytest.mark.long
def test_the_prior_decides_what_counts():
    """Scales that tell filters apart leave the signs; predictions are the posterior's."""
    module = Filters()
    n = sum(p.numel() for p in module.parameters())
    reg = quick(module, prior=Normal(np.linspace(0.5, 1.0, n))).fit(X, Y)
    assert reg.symmetry_.log_order == pytest.approx(3 * np.log(2.0))
    again = clone(reg).set_params(random_state=0).fit(X, Y)
    assert np.array_equal(reg.predict(X), again.predict(X))
    drawn = reg.sample_y(X, 1000, random_state=1).mean(1)
    parts = reg.predict_uncertainty(X)
    error = np.sqrt(parts.total / 1000 + parts.epistemic / reg.n_predict_samples)
    assert (np.abs(drawn - reg.predict(X)) < 5.0 * error).all()


def test_what_cannot_be_saved_says_so(tmp_path):
    reg = quick(max_iter=5).fit(X, Y)
    with pytest.raises(TypeError, match=r"network can't be saved without pickle.*joblib\.dump"):
        save(reg, tmp_path / "model")
    loaded = pickle.loads(pickle.dumps(reg))
    assert np.array_equal(loaded.predict(X), reg.predict(X))


@pytest.mark.long
def test_heads_and_images_of_digits():
    """A small convolutional network learns, and its bound is a probability's."""
    images, digits = load_digits(n_class=3, return_X_y=True)
    module = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, stride=2), nn.Tanh(), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    clf = SymmetrizedVIClassifier(
        network=module, standardize=False, max_iter=200, tol=None, random_state=0
    ).fit(images[:150] / 16, digits[:150])
    assert clf.score(images[150:] / 16, digits[150:]) > 0.9
    assert clf.elbo_mean_field_ < clf.elbo_ <= clf.elbo_upper_ < 0.0
