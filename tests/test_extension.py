"""Objects of a third party, through public imports only, in every estimator that can take them.

Nothing here is known to the package: a likelihood, a prior, two networks, a group, its gap, an
augmentation and a sampler. Each fit is tiny, and each test asserts something that is true of it.
Where a method can't take an object, the error names the object, what is asked of it and a remedy.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV
from sklearn.utils import get_tags

import skbayes_sym as sk
from skbayes_sym.factorization.solvers import VI
from skbayes_sym.mcmc.samplers import Info, State
from skbayes_sym.models import (
    BaseNetwork,
    Categorical,
    Gaussian,
    GaussianPrior,
    HalfWidth,
    Invariances,
    ParamLayout,
    Prior,
    TargetLikelihood,
)
from skbayes_sym.symmetry import Estimate, GapGradient, Orthogonal, SignedPermutation

# Too few steps to converge, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (40, 2))
Y = 3.0 + 10.0 * np.sin(X[:, 0]) + rng.laplace(0.0, 1.0, 40)
LABELS = np.where(Y > 3.0, "high", "low")
RADIUS = np.hypot(X[:, 0], X[:, 1])

NET = {"hidden_layer_sizes": (3,), "activation": "tanh"}
STEPS = {"max_iter": 120, "tol": None, "random_state": 0}
CHAINS = {
    "n_chains": 4, "n_draws": 10, "remove_symmetries": sk.ModeWeights("uniform"), "random_state": 0,
    "sampler": sk.Chains(sk.HMC(max_leapfrog=8), init="prior", n_warmup=60),
}  # fmt: skip
UPDATES = {**STEPS, "optimizer": sk.EvidenceAdam(updates=sk.Updates(10))}


# ---------------------------------------------------------------------------- a likelihood


@dataclass(frozen=True, eq=False)
class LaplaceNoise(TargetLikelihood):
    """Targets scatter around the output with density exp(-|y - f| / b) / 2 b; log b is learned."""

    log_scale: torch.Tensor

    @property
    def params(self):
        return self.log_scale

    def at(self, params):
        return replace(self, log_scale=params)

    def distribution(self, outputs):
        return torch.distributions.Laplace(outputs, self.log_scale.exp(), validate_args=False)

    def hessian_root(self, outputs, y):
        """Of the expected curvature 1 / b^2; the density itself is straight but for its tip."""
        return (outputs * 0.0 + 1.0 / self.log_scale.exp()).T.unsqueeze(-1)


NOISE = LaplaceNoise(torch.zeros(1, dtype=torch.float64))
FROM_CHANCE = {**NET, **STEPS, "optimizer": sk.VariationalAdam(init="random")}
REGRESSORS = {
    "vi": sk.SymmetrizedVIRegressor(**FROM_CHANCE),
    "mcmc": sk.MCMCRegressor(**NET, **CHAINS),
    "ensemble": sk.DeepEnsembleRegressor(**NET, **STEPS, n_members=2),
    "laplace": sk.LaplaceRegressor(**NET, **UPDATES),
    "lila": sk.LILARegressor(**NET, **UPDATES, invariances=None),
    "linear": sk.BayesianLinearRegressor(),
}
CLASSIFIERS = {
    "vi": sk.SymmetrizedVIClassifier(**FROM_CHANCE),
    "mcmc": sk.MCMCClassifier(**NET, **CHAINS),
    "ensemble": sk.DeepEnsembleClassifier(**NET, **STEPS, n_members=2),
    "laplace": sk.LaplaceClassifier(**NET, **UPDATES),
    "lila": sk.LILAClassifier(**NET, **UPDATES, invariances=None),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REGRESSORS)
def test_a_likelihood(name):
    """The predictive density integrates to 1, and quantiles are those of its integral."""
    reg = clone(REGRESSORS[name]).set_params(likelihood=NOISE).fit(X, Y)
    row, (mean,), (std,) = X[:1], *reg.predict(X[:1], return_std=True)
    grid = mean + std * np.linspace(-25.0, 25.0, 4001)
    density = np.exp(reg.log_predictive_density(np.repeat(row, len(grid), axis=0), grid))
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    assert below[-1] == pytest.approx(1.0, abs=2e-3)
    levels = np.array([0.1, 0.5, 0.9])
    quantiles = reg.predict_quantiles(row, levels)[0]
    np.testing.assert_allclose(np.interp(quantiles, grid, below), levels, atol=3e-3)
    assert np.corrcoef(reg.predict(X), Y)[0, 1] > 0.5


@dataclass(frozen=True, eq=False)
class Tempered(Categorical):
    """Classes by the softmax of half the logits: no softmax, whatever it inherits."""

    calls: ClassVar[list[int]] = []

    def log_prob(self, outputs, y):
        self.calls.append(len(y))
        return super().log_prob(0.5 * outputs, y)


@dataclass(frozen=True, eq=False)
class Wide(Gaussian):
    """Normal noise of twice the scale that it says."""

    calls: ClassVar[list[int]] = []

    def log_prob(self, outputs, y):
        self.calls.append(len(y))
        return super().log_prob(outputs / 2.0, y / 2.0) - math.log(2.0)


REFUSE = {
    "bayesian-mlp": (sk.BayesianMLPClassifier(), Tempered(n_points=16)),
    "laplace": (sk.LaplaceClassifier(optimizer="gauss-newton"), Tempered(n_points=16)),
    "linear": (sk.BayesianLinearClassifier(), Tempered(n_points=16)),
    "bayesian-mlp-regressor": (sk.BayesianMLPRegressor(), Wide()),
    "laplace-regressor": (sk.LaplaceRegressor(optimizer="gauss-newton"), Wide()),
    "layerwise-regressor": (sk.LayerwiseVIRegressor(), Wide()),
}


@pytest.mark.parametrize(
    ("likelihood", "model", "y"),
    [(Tempered(n_points=16), m, LABELS) for m in CLASSIFIERS.values()]
    + [(Wide(), m, Y) for m in REGRESSORS.values()],
    ids=[*(f"{name}-classifier" for name in CLASSIFIERS), *(f"{n}-regressor" for n in REGRESSORS)],
)
def test_a_density_over_that_of_a_known_law(likelihood, model, y):
    """What is inherited of the known law is not used: fits and predictions are of the new one."""
    likelihood.calls.clear()
    own = clone(model).set_params(likelihood=likelihood).fit(X, y)
    assert len(likelihood.calls) > 10
    if y is LABELS:
        likelihood.calls.clear()
        assert np.ptp(own.predict_proba(X)) > 0.0
        assert likelihood.calls


LABELLED = ("bayesian-mlp", "laplace", "linear")


@pytest.mark.parametrize("name", REFUSE)
def test_a_density_over_that_of_a_known_law_is_refused_where_only_that_is_known(name):
    model, likelihood = REFUSE[name]
    likelihood.calls.clear()
    named = r"likelihood=(Tempered|Wide)\(.*(requires|does not apply|one output per class)"
    with pytest.raises(ValueError, match=named):
        clone(model).set_params(likelihood=likelihood).fit(X, LABELS if name in LABELLED else Y)
    assert not likelihood.calls


# ---------------------------------------------------------------------------- a prior


@dataclass(frozen=True, eq=False)
class Logistic(Prior):
    """Independent logistic weights: tails that fall slower than a normal's."""

    scale: float
    n_params: int = 0

    def bind(self, layout):
        return replace(self, n_params=layout.n_params)

    def log_prob(self, theta):
        z = theta / self.scale
        one = -z - 2.0 * torch.nn.functional.softplus(-z) - math.log(self.scale)
        return one.sum(-1)

    def sample(self, n, *, generator):
        here = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        uniform = torch.rand(n, self.n_params, **here)
        return self.scale * uniform.clamp(1e-12, 1 - 1e-12).logit()


@dataclass(frozen=True)
class ByLayer:
    """Normal weights, tighter from layer to layer."""

    scale: float

    def bind(self, layout):
        scales = {
            name: torch.full(shape, self.scale / int(name[1:]), dtype=torch.float64)
            for name, shape in layout.shapes.items()
        }
        return GaussianPrior(layout.flatten(scales))


FAST = {**NET, **STEPS, "optimizer": sk.Adam(learning_rate=0.05)}
TAKE_A_PRIOR = {
    "vi": (sk.SymmetrizedVIRegressor(**FAST), ByLayer),
    "vi-classifier": (sk.SymmetrizedVIClassifier(**FAST), ByLayer),
    **{name: (REGRESSORS[name], Logistic) for name in ("mcmc", "ensemble")},
    **{f"{name}-classifier": (CLASSIFIERS[name], Logistic) for name in ("mcmc", "ensemble")},
}


def size(model):
    """Root mean square of the weights."""
    loc = model.samples_ if hasattr(model, "samples_") else model.posterior_.loc
    return float(np.sqrt(np.mean(np.square(loc))))


@pytest.mark.long
@pytest.mark.kept("mcmc", "vi-classifier", "ensemble")
@pytest.mark.parametrize("name", TAKE_A_PRIOR)
def test_a_prior(name):
    """A tight one keeps the weights small."""
    model, prior = TAKE_A_PRIOR[name]
    y = LABELS if hasattr(model, "predict_proba") else Y
    tight, wide = (clone(model).set_params(prior=prior(scale)).fit(X, y) for scale in (0.01, 1.0))
    assert 0.0 < size(tight) < 0.4 * size(wide)


# ---------------------------------------------------------------------------- networks


@dataclass(frozen=True)
class Sines(BaseNetwork):
    """f(x) = sum_j a_j sin(w_j'x): the same where all of theta changes its sign."""

    n_units: int = 2
    n_outputs: int = 1
    n_inputs: int = 2

    @property
    def layout(self):
        return ParamLayout(
            {"w": (self.n_units, self.n_inputs), "a": (self.n_outputs, self.n_units)}
        )

    def init(self, n, *, generator):
        return torch.randn(n, self.layout.n_params, generator=generator, dtype=torch.float64)

    def forward(self, theta, x):
        weights = self.layout.unflatten(theta)
        return torch.sin(x @ weights["w"].mT) @ weights["a"].mT

    def symmetry(self):
        return Reflection(torch.arange(self.layout.n_params)[None])


class SinesModule(torch.nn.Module):
    """The same kind of function as a module, whose layers can be seen."""

    def __init__(self, n_outputs=1):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(2, 4), torch.nn.Linear(4, n_outputs)

    def forward(self, x):
        return self.outer(torch.sin(self.inner(x)))


TAKE_A_NETWORK = {
    "mcmc": (sk.MCMCRegressor(**CHAINS), Sines()),
    "mcmc-classifier": (sk.MCMCClassifier(**CHAINS), Sines(n_outputs=2)),
    "mcmc-module": (sk.MCMCRegressor(**CHAINS), SinesModule()),
    "ensemble": (sk.DeepEnsembleRegressor(**STEPS, n_members=4, noise_std="learn"), Sines()),
    "ensemble-classifier": (sk.DeepEnsembleClassifier(**STEPS, n_members=4), Sines(n_outputs=2)),
    "ensemble-learned-scales": (
        sk.DeepEnsembleRegressor(**STEPS, n_members=4, prior="learn"),
        Sines(),
    ),
    "laplace": (sk.LaplaceRegressor(**UPDATES), SinesModule()),
    "laplace-classifier": (sk.LaplaceClassifier(**UPDATES), SinesModule(2)),
    "lila": (sk.LILARegressor(**UPDATES, invariances=None), SinesModule()),
    "lila-classifier": (sk.LILAClassifier(**UPDATES, invariances=None), SinesModule(2)),
}


@pytest.mark.long
@pytest.mark.kept("mcmc-module", "ensemble-learned-scales", "lila", "laplace")
@pytest.mark.parametrize("name", TAKE_A_NETWORK)
def test_a_network(name):
    """It learns the sine that the data are, which a linear function isn't."""
    model, network = TAKE_A_NETWORK[name]
    is_classifier = hasattr(model, "predict_proba")
    found = clone(model).set_params(network=network).fit(X, LABELS if is_classifier else Y)
    assert found.score(X, LABELS if is_classifier else Y) > (0.85 if is_classifier else 0.8)
    n_params = 4 + 2 * (1 + is_classifier)
    if isinstance(network, Sines):
        assert found.samples_.shape[-1] == n_params


# ---------------------------------------------------------------------------- a group


@dataclass(frozen=True, eq=False)
class Reflection:
    """{1, -1}: the entries of ``index`` (1, p) change their signs together."""

    index: torch.Tensor
    log_order: float = math.log(2.0)
    is_compact: bool = True
    permutes: bool = False
    flips: bool = True
    n_units: int = 1

    @property
    def factors(self):
        return (self,)

    def with_index(self, index):
        return replace(self, index=index)

    def _element(self, sign):
        return SignedPermutation(torch.zeros_like(sign, dtype=torch.int64), sign.to(torch.int8))

    def sample(self, shape, *, generator):
        coin = torch.randint(2, (*shape, 1), generator=generator, device=generator.device)
        return self._element(2 * coin - 1)

    def act(self, g, theta):
        shape = torch.broadcast_shapes(g.sign.shape[:-1], theta.shape[:-1])
        moved = theta.expand(*shape, theta.shape[-1]).clone()
        moved[..., self.index[0]] *= g.sign.to(theta)
        return moved

    def inverse(self, g):
        return g

    def compose(self, g, h):
        return self._element(g.sign * h.sign)

    def align(self, theta, reference):
        overlap = (theta * reference)[..., self.index[0]].sum(-1, keepdim=True)
        g = self._element(torch.where(overlap < 0.0, -1, 1))
        return self.act(g, theta), g

    def identity(self):
        return self._element(torch.ones(1))

    def generators(self):
        return [("signs changed", self._element(-torch.ones(1)))]

    def coordinate_orbits(self, n_params):
        return torch.arange(n_params)  # no entry takes another's place


HIDDEN = torch.arange(12)[None]  # W1 (3, 2), b1 (3,), W2 (1, 3) of NET: all but the last bias


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_group_in_the_training_bound(activation):
    reg = sk.SymmetrizedVIRegressor(
        (3,), activation, **STEPS, symmetry=Reflection(HIDDEN), prior=[1.0, 0.5]
    )
    if activation == "relu":
        with pytest.raises(ValueError, match=r"symmetry=Reflection changes what .*signs changed"):
            reg.fit(X, Y)
        return
    reg.fit(X, Y)
    assert 0.0 < reg.symmetry_gap_ <= math.log(2.0) + 1e-12
    assert isinstance(reg.symmetry_, Reflection)


@pytest.mark.long
def test_a_group_removed_from_draws():
    """Draws of the best mode and of its mirror image end on one side; without it on both."""
    reg = sk.MCMCRegressor(network=Sines(1), **{**CHAINS, "n_chains": 8}).fit(X, Y)
    kept = clone(reg).set_params(remove_symmetries=False).fit(X, Y)

    def sides(model):
        theta, value = model.samples_.reshape(-1, 3), model.log_posterior_samples_.ravel()
        best = value > value.max() - 8.0
        assert best.mean() > 0.3
        return set(np.sign(theta[best] @ theta[value.argmax()]))

    assert sides(reg) == {1.0}
    assert sides(kept) == {-1.0, 1.0}


# ---------------------------------------------------------------------------- its gap

NODES, WEIGHTS = (torch.tensor(a) for a in np.polynomial.hermite_e.hermegauss(64))


@dataclass(frozen=True, eq=False)
class ReflectionGap:
    """log 2 - E log(1 + exp -2t) with t ~ N(a, a), a = m' S^-1 m, by Gauss-Hermite."""

    group: Reflection
    side = "exact"
    is_random = False

    def _moments(self, posterior):
        """Means and variances of what is reflected; covariances of rows."""
        if hasattr(posterior, "cov"):
            return posterior.mean, posterior.cov
        loc, scale = (torch.as_tensor(a) for a in (posterior.loc, posterior.scale))
        return loc, scale.square()

    def _gap(self, mean, spread):
        if spread.ndim == 1:
            where = self.group.index[0]
            a = (mean[where].square() / spread[where]).sum()
        else:
            a = (mean * torch.linalg.solve(spread, mean)).sum()
        nodes, weights = NODES.to(a), (WEIGHTS / WEIGHTS.sum()).to(a)
        ratio = a + a.sqrt() * nodes
        return math.log(2.0) - torch.nn.functional.softplus(-2.0 * ratio) @ weights

    def estimate(self, posterior, n_draws=None, *, generator):
        return Estimate(float(self._gap(*self._moments(posterior))), 0.0)

    def value_and_gradients(self, posterior, *, generator):
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [t.detach().clone().requires_grad_() for t in self._moments(posterior)]
            value = self._gap(*leaves)
            d_mean, d_spread = torch.autograd.grad(value, leaves)
        return GapGradient(value.detach(), d_mean, -2.0 * d_spread)


def test_a_gap_in_the_training_bound():
    """The package knows this one too, as the flip of a single unit: the same fit."""
    group = Reflection(HIDDEN)
    base = sk.SymmetrizedVIRegressor(**NET, **STEPS)
    own = clone(base).set_params(symmetry=sk.Symmetrized(gap=ReflectionGap(group))).fit(X, Y)
    ours = clone(base).set_params(symmetry=group).fit(X, Y)
    assert 0.0 < own.symmetry_gap_ <= math.log(2.0) + 1e-9
    assert own.elbo_ == own.elbo_upper_ == own.elbo_mean_field_ + own.symmetry_gap_
    assert own.elbo_ == pytest.approx(ours.elbo_, abs=1.0)
    labels = clone(sk.SymmetrizedVIClassifier(**NET, **STEPS))
    gap = ReflectionGap(Reflection(torch.arange(15)[None]))
    labels.set_params(symmetry=sk.Symmetrized(gap=gap)).fit(X, LABELS)


def test_a_group_and_its_gap_in_a_factorisation():
    """U and V reflected together: at rank one that is all of O(1), whose gap is known."""
    matrix = rng.standard_normal((8, 1)) @ rng.standard_normal((1, 5))
    matrix += 0.5 * rng.standard_normal(matrix.shape)
    group = Reflection(torch.arange(13)[None])
    model = sk.SymVIMatrixFactorization(1, max_iter=30, tol=None, random_state=0)
    own = clone(model).set_params(solver=VI(symmetry=group, gap=ReflectionGap(group)))
    own.fit(matrix)
    ours = clone(model).fit(matrix)
    assert 0.0 < own.symmetry_gap_ <= math.log(2.0)
    assert own.elbo_ == pytest.approx(ours.elbo_, abs=1e-3)
    with pytest.raises(TypeError, match=r"for Reflection.*solver=VI\(gap="):
        clone(own).set_params(solver=VI("diag", group)).fit(matrix)


# ---------------------------------------------------------------------------- an augmentation


@dataclass(frozen=True)
class Turn:
    """The two columns turned by an angle uniform on +-half-width."""

    half_width = HalfWidth(("turn",), (math.pi,))

    def bind(self, scale, image_shape=None):
        if len(scale) != 2:
            raise ValueError(f"Turn is of 2 columns, X has {len(scale)}.")
        return self

    def transform(self, x, eta, noise):
        angle = (noise @ self.half_width.mixing(eta).T).squeeze(-1)
        cos, sin, (u, v) = angle.cos(), angle.sin(), x.unsqueeze(1).unbind(-1)
        return torch.stack([cos * u - sin * v, sin * u + cos * v], -1)


@pytest.mark.long
@pytest.mark.kept("LILAClassifier")
@pytest.mark.parametrize("kind", [sk.LILARegressor, sk.LILAClassifier])
def test_an_augmentation(kind):
    """What depends on the radius only may be turned, and further than what depends on a column."""
    model = kind(
        (8,),
        **{**UPDATES, "optimizer": sk.EvidenceAdam(updates=sk.Updates(40))},
        invariances=Invariances([Turn()], learning_rate=0.1),
    )
    targets = {"turns": RADIUS, "stays": X[:, 0]}
    if hasattr(model, "predict_proba"):
        targets = {name: y > np.median(y) for name, y in targets.items()}
    reach = {name: clone(model).fit(X, y).invariance_["turn"] for name, y in targets.items()}
    assert reach["turns"] > max(1.0, reach["stays"])
    with pytest.raises(ValueError, match="Turn is of 2 columns, X has 3"):
        clone(model).fit(np.c_[X, X[:, 0]], targets["turns"])


# ---------------------------------------------------------------------------- a sampler


@dataclass(frozen=True)
class RandomWalk:
    """Metropolis steps: a proposal around the state, kept with the ratio of the densities."""

    def step(self, state, log_density, *, step_size, preconditioner, generator):
        like = state.position
        noise = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        proposal = like + step_size[:, None] * preconditioner.to_position(noise)
        value, gradient = log_density.evaluate(proposal)
        probability = (value - state.value).exp().clamp(max=1.0).nan_to_num(0.0)
        coin = torch.rand(len(like), generator=generator, dtype=like.dtype, device=like.device)
        kept = coin < probability
        new = State(
            torch.where(kept[:, None], proposal, like),
            torch.where(kept, value, state.value),
            torch.where(kept[:, None], gradient, state.gradient),
        )
        never = torch.zeros_like(kept)
        return new, Info(probability, kept, never, torch.ones(len(kept), dtype=torch.int64))


@pytest.mark.long
def test_a_sampler():
    """A linear model's posterior is a known Gaussian."""
    settings = {
        "noise_std": 5.0, "prior": 1.0, "standardize": False,
        "random_state": 0,
    }  # fmt: skip
    reg = sk.MCMCRegressor(
        (), **settings, sampler=sk.Chains(RandomWalk(), n_warmup=600, thinning=5), n_chains=64,
        n_draws=20, remove_symmetries=sk.ModeWeights("uniform"), device="cpu",
    ).fit(X, Y)  # fmt: skip
    design = np.c_[X, np.ones(40)]
    precision = design.T @ design / 25.0 + np.eye(3)
    theta = reg.samples_.mean(axis=1)  # chains are independent
    error = theta.std(axis=0, ddof=1) / 8.0
    assert (
        np.abs(theta.mean(0) - np.linalg.solve(precision, design.T @ Y / 25.0)) < 4.5 * error
    ).all()
    spread = reg.samples_.reshape(-1, 3).std(axis=0)
    np.testing.assert_allclose(spread, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.15)


# ---------------------------------------------------------------------------- refused, with words

LAYERS = r"has no input_shape and no weight_layers and no record,.* give a torch.nn.Module"
# Rotations of three linear units: rows of W1, b1 and W2.
ROTATIONS = Orthogonal(torch.tensor([[0, 2, 4], [1, 3, 5], [6, 7, 8], [9, 10, 11]]))
REFUSED = {
    "layerwise-likelihood": (
        sk.LayerwiseVIRegressor, {"likelihood": NOISE}, "requires: Normal noise",
    ),
    "layerwise-network": (sk.LayerwiseVIRegressor, {"network": Sines()}, "'network'"),
    "vi-prior": (
        sk.SymmetrizedVIRegressor, {"prior": Logistic(1.0)},
        r"prior=Logistic\(.*Independent zero-mean normals, scales given or learned. Use LayerScal",
    ),
    "bayesian-mlp-prior": (
        sk.BayesianMLPRegressor, {"prior": Logistic(1.0)},
        r"prior=Logistic\(.*Use LayerScales\(\), ARD\(\) or Normal\(scale\)",
    ),
    "laplace-network": (sk.LaplaceRegressor, {"network": Sines()}, rf"network=Sines\(.*{LAYERS}"),
    "lila-network": (sk.LILARegressor, {"network": Sines()}, rf"network=Sines\(.*{LAYERS}"),
    "vi-group": (
        sk.SymmetrizedVIRegressor,
        {"hidden_layer_sizes": (3,), "activation": "identity", "symmetry": ROTATIONS},
        r"symmetry=Orthogonal with gap=.*group of exchangeable units.*give gap=, an object",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_method_cannot_take_is_named(name):
    kind, own, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        kind(**own).fit(X, Y)


class OnlyDensity:
    """Short of all that estimators ask of a likelihood but its density."""

    def log_prob(self, outputs, y):
        return -(outputs - y).abs()


EVERY = [getattr(sk, name) for name in sk.__all__ if name.endswith(("ssor", "ifier", "ization"))]


@pytest.mark.parametrize("kind", [k for k in EVERY if "likelihood" in k().get_params()])
def test_half_a_likelihood_is_refused_by_what_it_lacks(kind):
    model = kind(likelihood=OnlyDensity())
    get_tags(model)  # as searches do before they fit
    with pytest.raises(TypeError, match=r"OnlyDensity.*has no .*n_params and no"):
        model.fit(X, Y.mean() < Y if is_classifier(model) else Y)


def test_tags_of_a_likelihood_that_no_one_knows_leave_the_refusal_to_fit():
    search = GridSearchCV(sk.BayesianLinearRegressor("none"), {}, error_score="raise")
    with pytest.raises(ValueError, match="'likelihood' parameter of BayesianLinearRegressor"):
        search.fit(X, Y)
