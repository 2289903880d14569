import torch
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.modes.mixtures import LowRankMixture, fit_low_rank_mixture


def mixture(generator, n_dims=5, rank=3):
    return LowRankMixture(
        torch.tensor([0.25, 0.75]).double().log(),
        torch.randn(2, n_dims, generator=generator).double(),
        torch.randn(2, n_dims, rank, generator=generator).double(),
        0.1 + torch.rand(2, n_dims, generator=generator).double(),
    )


def test_its_density_is_that_of_the_full_covariance(generator):
    law = mixture(generator)
    at = torch.randn(3, 2, 5, generator=generator).double()
    components = zip(law.log_weights.exp(), law.loc, law.factor, law.variance, strict=True)
    expected = sum(
        float(w) * stats.multivariate_normal(m, f @ f.mT + torch.diag(v)).pdf(at)
        for w, m, f, v in components
    )
    assert_close(law.log_prob(at).exp(), torch.as_tensor(expected), rtol=1e-10, atol=0)
    assert law.log_prob(at[0, 0]).shape == ()


def test_its_draws_have_its_moments(generator):
    law, n = mixture(generator), 200_000
    draws, w = law.sample(n, generator=generator), law.log_weights.exp()
    mean = w @ law.loc
    each = law.factor @ law.factor.mT + torch.diag_embed(law.variance)
    offset = law.loc - mean
    covariance = (w[:, None, None] * (each + offset[:, :, None] * offset[:, None])).sum(0)
    error = (covariance.diagonal() / n).sqrt()
    assert bool(((draws.mean(0) - mean).abs() < 4.5 * error).all())
    # products of at most six-fold variance: their standard deviations are below 3 s_i s_j
    spread = covariance.diagonal().sqrt()
    bound = 4.5 * 3.0 * spread[:, None] * spread / n**0.5
    assert bool(((draws.T.cov() - covariance).abs() < bound).all())


def test_a_fit_keeps_mean_variances_and_nearly_all_correlation(generator):
    draws = torch.randn(2, 6, 9, generator=generator).double()
    law = fit_low_rank_mixture(draws, torch.tensor([0.0, 1.0]).double())
    assert_close(law.log_weights.exp().sum(), torch.tensor(1.0).double())
    for k in range(2):
        found = law.factor[k] @ law.factor[k].mT + torch.diag(law.variance[k])
        sample = draws[k].T.cov()
        assert_close(law.loc[k], draws[k].mean(0))
        assert_close(found.diagonal(), sample.diagonal())
        assert_close(found, 0.999 * sample + 0.001 * torch.diag(sample.diagonal()))


def test_a_constant_coordinate_stays_where_it_is(generator):
    draws = torch.randn(1, 4, 3, generator=generator).double()
    draws[..., 1] = 2.0
    law = fit_low_rank_mixture(draws, torch.zeros(1).double())
    drawn = law.sample(50, generator=generator)
    assert_close(drawn[:, 1], torch.full((50,), 2.0).double(), rtol=0, atol=1e-13)
    assert bool(law.log_prob(drawn).isfinite().all())
