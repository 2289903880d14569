import numpy as np
import pytest
import torch
from cases import LIKELIHOODS
from scipy import integrate, stats
from torch.testing import assert_close

from skbayes_sym.models import predictive_mixtures
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    NormalMixture,
    TargetMixture,
)


@pytest.fixture(params=[False, True], ids=["equal", "weighted"])
def mixture(request, generator):
    loc = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(5, 3, 2, generator=generator, dtype=torch.float64)
    noise = torch.rand(5, 1, 2, generator=generator, dtype=torch.float64)  # of every draw its own
    weights = torch.rand(5, generator=generator, dtype=torch.float64).log_softmax(0)
    return NormalMixture(loc, variance, noise, weights if request.param else None)


def components(mixture):
    weights = np.full(5, 0.2) if mixture.log_weights is None else mixture.log_weights.exp().numpy()
    scale = (mixture.variance + mixture.noise_variance).sqrt().numpy()
    return weights, mixture.loc.numpy(), scale


def test_moments_by_quadrature(mixture):
    weights, loc, scale = components(mixture)
    for n in range(3):
        for t in range(2):

            def density(y, n=n, t=t):
                return weights @ stats.norm.pdf(y, loc[:, n, t], scale[:, n, t])

            mean = integrate.quad(lambda y, f=density: y * f(y), -20, 20)[0]
            second = integrate.quad(lambda y, f=density: y**2 * f(y), -20, 20)[0]
            assert float(mixture.mean()[n, t]) == pytest.approx(mean, abs=1e-7)
            assert float(mixture.std()[n, t]) == pytest.approx((second - mean**2) ** 0.5, abs=1e-7)


def test_uncertainty_adds_up(mixture):
    total, epistemic, aleatoric = mixture.uncertainty()
    assert_close(total, epistemic + aleatoric, rtol=0, atol=0)
    weights = torch.as_tensor(components(mixture)[0])
    expected = torch.einsum("s,snt->nt", weights, mixture.noise_variance.expand(5, 3, 2))
    assert_close(aleatoric, expected, rtol=1e-12, atol=0)


def test_log_prob_is_joint_over_outputs(mixture, generator):
    y = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    weights, loc, scale = components(mixture)
    joint = stats.norm.pdf(y.numpy(), loc, scale).prod(-1)
    assert_close(mixture.log_prob(y), torch.as_tensor(np.log(weights @ joint)))


def test_log_prob_far_out_is_finite(mixture):
    assert bool(torch.isfinite(mixture.log_prob(torch.full((3, 2), 1e6))).all())


@pytest.mark.parametrize("probability", [1e-8, 0.05, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("spread", [0.1, 10.0], ids=["one mode", "many modes"])
def test_quantiles_of_difficult_mixtures(spread, probability, generator):
    """Widths over four orders of magnitude, and distant modes between which the cdf is flat."""
    loc = spread * torch.randn(20, 200, 1, generator=generator, dtype=torch.float64)
    std = torch.exp(2.0 * torch.randn(20, 200, 1, generator=generator, dtype=torch.float64))
    difficult = NormalMixture(loc, std.square(), torch.zeros(1, 1, 1))
    quantile = difficult.quantile(probability)
    rounding = 16.0 * torch.finfo(torch.float64).eps * quantile.abs()
    density = difficult.log_prob(quantile).exp().unsqueeze(1)
    error = (difficult.cdf(quantile) - probability).abs()
    # The quantile is accurate to 1e-9 of the narrowest component, or to rounding.
    assert bool((error <= density * (1e-9 * std.amin(0) + rounding) + 1e-15).all())


@pytest.mark.parametrize("probability", [1e-4, 0.05, 0.5, 0.9, 0.9999])
def test_quantile_inverts_cdf(mixture, probability):
    at = mixture.quantile(probability)
    expected = torch.full_like(at, probability)
    assert_close(mixture.cdf(at), expected, rtol=0, atol=1e-12)


def test_several_levels_have_the_quantiles_of_each(monkeypatch, generator):
    loc = torch.randn(20, 50, 2, generator=generator, dtype=torch.float64)
    std = torch.exp(2.0 * torch.randn(20, 50, 2, generator=generator, dtype=torch.float64))
    mixture = NormalMixture(loc, std.square(), torch.zeros(1, 1, 1))
    levels = [0.95, 1e-6, 0.5, 0.05]
    separate = [mixture.quantile(level) for level in levels]
    for block in (predictive_mixtures._MIXTURE_BLOCK, 600):
        monkeypatch.setattr(predictive_mixtures, "_MIXTURE_BLOCK", block)
        assert_close(mixture.quantiles(levels), separate, rtol=1e-12, atol=0)


@pytest.fixture(params=[False, True], ids=["equal", "weighted"])
def classes(request, generator):
    logits = 3 * torch.randn(6, 4, 3, generator=generator, dtype=torch.float64)
    weights = torch.rand(6, generator=generator, dtype=torch.float64).log_softmax(0)
    return CategoricalMixture(logits.log_softmax(-1), weights if request.param else None)


def test_class_probabilities(classes):
    w = (
        torch.full((6,), 1 / 6).double()
        if classes.log_weights is None
        else classes.log_weights.exp()
    )
    expected = torch.einsum("s,snc->nc", w, classes.log_probs.exp())
    assert_close(classes.mean(), expected)


def test_class_uncertainty(classes):
    total, epistemic, aleatoric = classes.uncertainty()
    p = classes.mean()
    assert_close(total, -(p * p.log()).sum(-1), rtol=1e-10, atol=1e-12)
    assert bool((epistemic > 0).all())
    assert_close(total, epistemic + aleatoric, rtol=0, atol=0)


def test_certain_classes_have_no_entropy():
    one_hot = torch.tensor([[[0.0, -torch.inf]]])
    for part in CategoricalMixture(one_hot).uncertainty():
        assert_close(part, torch.zeros(1))


TARGETS = {k: c for k, c in LIKELIHOODS.items() if c.kind != "classes"}
CLASSES = {k: c for k, c in LIKELIHOODS.items() if c.kind == "classes"}


def mixture_of(case, generator, n_rows=3):
    outputs = torch.randn(4, n_rows, case.n_outputs, generator=generator, dtype=torch.float64)
    weights = torch.rand(4, generator=generator, dtype=torch.float64).log_softmax(0)
    return case.likelihood.predictive(outputs, weights), outputs, weights


@pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_predictive_density_is_the_likelihoods_average(case, generator):
    predictive, outputs, weights = mixture_of(case, generator)
    y = case.targets(3, generator)
    per_draw = case.likelihood.log_prob(outputs, y)
    assert_close(predictive.log_prob_per_draw(y), per_draw)
    expected = (per_draw + weights[:, None]).logsumexp(0)
    assert_close(predictive.log_prob(y), expected)
    equal = case.likelihood.predictive(outputs).log_prob(y)
    assert_close(equal, per_draw.exp().mean(0).log())


@pytest.mark.parametrize("case", TARGETS.values(), ids=TARGETS)
def test_draws_follow_the_predictive(case, generator):
    predictive, _, _ = mixture_of(case, generator)
    n = 20_000
    draws = predictive.sample(n, np.random.default_rng(0)).double()
    assert draws.shape == (n, *predictive.mean().shape)  # of targets, not of outputs
    error = predictive.std() / n**0.5
    assert bool(((draws.mean(0) - predictive.mean()).abs() < 5 * error).all())
    for probability in (0.1, 0.5, 0.9):
        at = predictive.quantile(probability)
        share, exact = (draws <= at).double().mean(0), predictive.cdf(at)
        bound = 5 * (exact * (1 - exact) / n).sqrt() + 1e-12
        assert bool(((share - exact).abs() <= bound).all())
        if case.kind == "real":
            assert_close(exact, torch.full_like(exact, probability))
        else:
            assert bool(
                (exact >= probability).all() & (predictive.cdf(at - 1.0) < probability).all()
            )
    total, epistemic, aleatoric = predictive.uncertainty()
    assert_close(total, epistemic + aleatoric)
    assert_close(total.sqrt(), predictive.std())


@pytest.mark.parametrize("case", TARGETS.values(), ids=TARGETS)
def test_other_units_change_the_numbers_only(case, generator):
    predictive, _, _ = mixture_of(case, generator)
    y = case.targets(3, generator)
    location, scale = (torch.tensor(t, dtype=torch.float64) for t in ([1.5], [3.0]))
    moved = predictive.rescale(location, scale)
    expected = predictive.log_prob(y)
    if case.kind == "real":  # a density, and not the probability of a count
        expected = expected - y.shape[1] * float(scale.log())
    assert_close(moved.log_prob(location + scale * y), expected)
    assert_close(moved.cdf(location + scale * y), predictive.cdf(y))
    for f in (lambda p: p.mean(), lambda p: p.quantile(0.3)):
        assert_close(f(moved), location + scale * f(predictive))
    assert_close(moved.std(), scale * predictive.std())
    back = moved.rescale(-location / scale, 1.0 / scale)
    assert_close(back.log_prob(y), predictive.log_prob(y))
    draws = [p.sample(5, np.random.default_rng(1)) for p in (moved, predictive)]
    assert_close(draws[0], location + scale * draws[1])


@pytest.mark.parametrize("case", CLASSES.values(), ids=CLASSES)
def test_class_draws_have_the_probabilities(case, generator):
    predictive, _, _ = mixture_of(case, generator)
    draws = predictive.sample(20_000, np.random.default_rng(0))
    share, p = (draws == 1).double().mean(0), predictive.mean()[:, 1]
    assert bool(((share - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all())


def test_every_draw_may_have_noise_of_its_own(generator):
    case = LIKELIHOODS["own-laplace"]
    outputs = torch.zeros(2, 1, 1, dtype=torch.float64)
    params = torch.tensor([-3.0, 3.0], dtype=torch.float64).reshape(2, 1, 1)
    weights = torch.tensor([0.0, -torch.inf], dtype=torch.float64)
    narrow = case.likelihood.at(params).predictive(outputs, weights)
    assert float(narrow.std()) == pytest.approx(2**0.5 * np.exp(-3.0))
    assert float(narrow.sample(200, np.random.default_rng(0)).abs().max()) < 1.0


def test_counts_in_other_units_have_the_same_probabilities():
    """Also where standardising and converting back has rounded them."""
    plain = TargetMixture(Poisson(), torch.tensor([[[0.3]], [[1.1]]], dtype=torch.float64))
    mean, scale = (torch.tensor([value], dtype=torch.float64) for value in (2.545, 7.549038))
    scaled = plain.rescale(-mean / scale, 1.0 / scale)
    counts = torch.arange(6.0, dtype=torch.float64)[:, None, None]
    for count in counts:
        expected = plain.log_prob(count)
        torch.testing.assert_close(scaled.log_prob((count - mean) / scale), expected)
        torch.testing.assert_close(scaled.rescale(mean, scale).log_prob(count), expected)
        torch.testing.assert_close(scaled.cdf((count - mean) / scale), plain.cdf(count))
    again = scaled.rescale(mean, scale).sample(50, np.random.default_rng(0))
    assert bool((again == again.round()).all())
