"""Every likelihood by name in every network estimator that takes one."""

from functools import cache

import numpy as np
import pytest
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym import HMC, Adam, Chains, EvidenceAdam, ModeWeights, Updates, predictive
from skbayes_sym.models import NegativeBinomial, StudentT

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NET = {"hidden_layer_sizes": (4,), "activation": "tanh", "random_state": 0}
CHAINS = {
    "sampler": Chains(HMC(max_leapfrog=8), n_warmup=100), "n_chains": 4, "n_draws": 10,
    "remove_symmetries": ModeWeights("uniform"),
}  # fmt: skip
STEPS = {**NET, "max_iter": 300, "tol": None}
UPDATES = {"optimizer": EvidenceAdam(updates=Updates(30, learning_rate=0.3))}
SHORT_UPDATES = {"optimizer": EvidenceAdam(updates=Updates(n=10))}
TAKES_NUMBERS = {
    "vi": sk.SymmetrizedVIRegressor(**STEPS, optimizer=Adam(learning_rate=0.03)),
    "mcmc": sk.MCMCRegressor(**NET, **CHAINS),
    "ensemble": sk.DeepEnsembleRegressor(**STEPS, n_members=3),
    "laplace": sk.LaplaceRegressor(**STEPS, **UPDATES),
    "lila": sk.LILARegressor(**STEPS, invariances=None, optimizer=EvidenceAdam(
        0.03, updates=Updates(30, learning_rate=0.3))),
}  # fmt: skip
SLOW = dict.fromkeys(("vi", "mcmc", "laplace", "lila"), pytest.mark.slow)  # two fits each
every_regressor = pytest.mark.parametrize("name", TAKES_NUMBERS)

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (120, 1))
STD = 10.0 * np.exp(X[:, 0] - 1.5)
Y = 5.0 + 10.0 * np.sin(X[:, 0]) + STD * rng.standard_normal(120)


@cache
def learned(name, likelihood):
    """Fitted once; read only."""
    y = COUNTS if likelihood == "negative_binomial" else Y
    return clone(TAKES_NUMBERS[name]).set_params(likelihood=likelihood).fit(X, y)


@pytest.mark.long
@pytest.mark.kept("vi", "mcmc", "ensemble", "laplace")
@every_regressor
def test_a_noise_that_changes_with_the_input(name):
    """It is found where it is, in the units of y, and everything predicted follows it."""
    reg = learned(name, "heteroscedastic")
    parts = reg.predict_uncertainty(X)
    noise = np.sqrt(parts.aleatoric)
    # 120 rows see each region's standard deviation by about a fifth.
    assert np.abs(np.log(noise / STD)).mean() < 0.35
    assert np.corrcoef(np.log(noise), X[:, 0])[0, 1] > 0.95
    np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic)
    mean, std = reg.predict(X, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(parts.total))
    quiet, loud = X[:, 0] < -1.0, X[:, 0] > 1.0
    width = np.diff(reg.predict_interval(X), axis=1)[:, 0]
    assert width[loud].mean() > 3.0 * width[quiet].mean()
    drawn = reg.sample_y(X, 400, random_state=0)
    assert drawn[loud].std(1).mean() > 3.0 * drawn[quiet].std(1).mean()
    assert np.mean(np.abs(drawn.mean(1) - mean) < 6.0 * std / 20.0 + 0.1 * std) > 0.9
    cdf = predictive(reg, X).cdf(reg.predict_quantiles(X, [0.2])[:, 0])
    np.testing.assert_allclose(cdf, 0.2, atol=1e-6)


EXPONENTIAL = ["heteroscedastic", "poisson", "negative_binomial"]


@pytest.mark.long
@pytest.mark.parametrize("likelihood", EXPONENTIAL)
def test_sampled_heads_are_the_same_in_equivalent_units(likelihood):
    """Of y, of X for counts. Chains would part after some moves: 64 numbers whose sums are exact.

    Then what is scaled, by a power of two, is the same bits in both units.
    """
    reg = sk.MCMCRegressor(**NET, **{**CHAINS, "n_draws": 20}, likelihood=likelihood)
    x, y, counts = np.round(X[:64] * 2**12) / 2**12, np.round(Y[:64] * 2**8) / 2**8, COUNTS[:64]
    rows, std = np.array([[-6.0], [0.0], [6.0]]), []
    for a, b in ((1.0, 0.0), (128.0, 1024.0)):
        if likelihood == "heteroscedastic":
            std.append(reg.fit(x, a * y + b).predict(rows, return_std=True)[1] / a)
        else:
            std.append(reg.fit(a * x + b, counts).predict(a * rows + b, return_std=True)[1])
    np.testing.assert_allclose(std[1], std[0], rtol=1e-9)
    assert (std[0] < 100.0 * (y if likelihood == "heteroscedastic" else counts).std()).all()


@pytest.mark.parametrize("likelihood", EXPONENTIAL)
def test_sampled_heads_by_exponentials_have_means(likelihood):
    """Exponentials of outputs have means under normals, none under scales integrated out."""
    few = {"n_chains": 1, "n_draws": 1, "sampler": Chains(n_warmup=1), "random_state": 0}
    reg = sk.MCMCRegressor((2,), likelihood=likelihood, **few).fit(X, COUNTS)
    assert (reg.posterior_density().prior.gaussian().scale == 1.0).all()
    reg.set_params(prior="learn").fit(X, COUNTS)
    assert reg.posterior_density().prior.gaussian() is None


RATE = np.exp(2.0 + X[:, 0])
COUNTS = rng.negative_binomial(2.0, 2.0 / (2.0 + RATE)).astype(float)  # variance: RATE + RATE^2 / 2


@pytest.mark.long
@pytest.mark.kept("vi", "ensemble", "laplace")
@every_regressor
def test_counts_that_scatter_more_than_poisson(name):
    """Integers, a mass function, and a dispersion that is found: .5 here."""
    reg = learned(name, "negative_binomial")
    assert (reg.y_mean_.tolist(), reg.y_scale_.tolist()) == ([0.0], [1.0])
    assert not hasattr(reg, "noise_std_")
    assert not hasattr(reg, "noise_std_samples_")
    assert np.abs(np.log(float(reg.likelihood_.dispersion.mean()) / 0.5)) < np.log(2.0)
    support = np.arange(800.0)
    mass = np.exp(reg.log_predictive_density(np.repeat(X[:1], 800, axis=0), support))
    assert mass.sum() == pytest.approx(1.0, abs=1e-3)
    mean, std = reg.predict(X[:1], return_std=True)
    assert mass @ support == pytest.approx(mean[0], rel=0.02)
    assert mass @ (support - mean) ** 2 == pytest.approx(std[0] ** 2, rel=0.1)
    np.testing.assert_allclose(predictive(reg, X[:1]).cdf([4.0]), mass[:5].sum(), rtol=1e-5)
    quantile = reg.predict_quantiles(X[:1], [0.5])[0, 0]
    assert mass[: int(quantile)].sum() < 0.5 <= mass[: int(quantile) + 1].sum() + 1e-9
    drawn = reg.sample_y(X, 5, random_state=0)
    assert (drawn >= 0.0).all()
    assert (drawn == np.round(drawn)).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW.get(name, ())) for name in TAKES_NUMBERS]
)
def test_tails_are_learned_with_the_scale(name):
    """Noise of scale 10: normal has many degrees of freedom, t of 2 has two."""
    own, found = np.random.default_rng(1), []
    for noise in (own.standard_normal(120), own.standard_t(2.0, 120)):
        reg = clone(TAKES_NUMBERS[name]).set_params(likelihood=StudentT(df="learn"))
        if name == "mcmc":  # after 100 moves a chain of four is still where it started, at df = 150
            reg.set_params(sampler=Chains(HMC(max_leapfrog=8), n_warmup=300))
        reg.fit(X, 40.0 * X[:, 0] + 10.0 * noise)
        found.append(float(reg.likelihood_.degrees_of_freedom.log().mean().exp()))
        scale = np.median(getattr(reg, "noise_std_", getattr(reg, "noise_std_samples_", None)))
        assert 6.5 < scale < 13.0
    assert found[0] > 2.0 * found[1]
    assert found[1] < 3.5


@every_regressor
@pytest.mark.parametrize("likelihood", ["poisson", NegativeBinomial()])
def test_what_is_no_count_is_refused(name, likelihood):
    reg = clone(TAKES_NUMBERS[name]).set_params(likelihood=likelihood)
    with pytest.raises(
        ValueError, match=r"likelihood=.*requires counts, but y has negative.*\(-1\)"
    ):
        reg.fit(X, np.where(np.arange(120) == 7, -1.0, COUNTS))
    with pytest.raises(ValueError, match=r"requires counts, but y has fractional values \(\d+.5\)"):
        reg.fit(X, COUNTS + 0.5)


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_a_warm_start_goes_on_from_what_was_learned(likelihood):
    reg = clone(TAKES_NUMBERS["ensemble"]).set_params(likelihood=likelihood, warm_start=True)
    first = reg.fit(X, COUNTS).log_posterior_curve_
    again = reg.set_params(max_iter=20).fit(X, COUNTS)
    assert again.log_posterior_curve_[0] > first[-1] - 2.0


def test_half_a_count_has_no_mass():
    reg = clone(TAKES_NUMBERS["ensemble"]).set_params(likelihood="poisson", max_iter=20)
    density = reg.fit(X, COUNTS).log_predictive_density(X[:3], [2.5, -1.0, 2.0])
    assert np.isneginf(density).tolist() == [True, True, False]


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["heteroscedastic", "negative_binomial"])
def test_the_crps_is_that_of_draws(likelihood):
    """E|Y - y| - E|Y - Y'| / 2, of 2,000 pairs of draws."""
    y = COUNTS if likelihood == "negative_binomial" else Y
    reg = learned("ensemble", likelihood)
    some, y = X[::6], y[::6]
    distribution = sk.predictive(reg, some)
    draws = distribution.sample(4000)
    apart = np.abs(draws[:, :2000] - draws[:, 2000:]).mean(1)
    expected = np.abs(draws - y[:, None]).mean(1) - 0.5 * apart
    np.testing.assert_allclose(distribution.crps(y), expected, atol=0.1 * distribution.std().max())
    assert distribution.crps(y).mean() == pytest.approx(expected.mean(), rel=0.02)


TAKES_CLASSES = {
    "vi": sk.SymmetrizedVIClassifier(**STEPS),
    "mcmc": sk.MCMCClassifier(**NET, **CHAINS),
    "ensemble": sk.DeepEnsembleClassifier(**STEPS, n_members=3),
    "laplace": sk.LaplaceClassifier(**STEPS, **SHORT_UPDATES),
    "lila": sk.LILAClassifier(**STEPS, **SHORT_UPDATES, invariances=None),
}


@pytest.mark.long
@pytest.mark.kept("mcmc", "ensemble", "laplace")
@pytest.mark.parametrize("name", TAKES_CLASSES)
def test_two_classes_by_one_output(name):
    labels = np.where(rng.uniform(size=120) < 1 / (1 + np.exp(-3.0 * X[:, 0])), "yes", "no")
    clf = clone(TAKES_CLASSES[name]).set_params(likelihood="bernoulli").fit(X, labels)
    assert clf.network_.n_outputs == 1
    proba = clf.predict_proba(X)
    assert proba.shape == (120, 2)
    # Softmax of two outputs under the same prior: wider by sqrt 2 before the data, about the same
    # behind them.
    both = clone(TAKES_CLASSES[name]).set_params(likelihood="categorical").fit(X, labels)
    assert np.abs(proba - both.predict_proba(X)).mean() < 0.08
    three = np.where(X[:, 0] > 1.0, "maybe", labels)
    with pytest.raises(ValueError, match=r"Bernoulli\(\) has two classes, y has 3"):
        clf.fit(X, three)


@pytest.mark.long
def test_pools_of_classifiers_know_the_softmax_alone():
    labels = np.where(X[:, 0] > 0.0, "yes", "no")
    clf = sk.BayesianMLPClassifier(4, n_modes=1, n_members=1, random_state=0)
    by_name = clone(clf).set_params(likelihood="categorical").fit(X, labels)
    np.testing.assert_array_equal(by_name.predict_proba(X), clf.fit(X, labels).predict_proba(X))
    with pytest.raises(ValueError, match=r"requires: Softmax. MCMCClassifier, DeepEnsembleCl"):
        clone(clf).set_params(likelihood="bernoulli").fit(X, labels)
    with pytest.raises(ValueError, match="'poisson' doesn't go with BayesianMLPClassifier"):
        clone(clf).set_params(likelihood="poisson").fit(X, labels)
