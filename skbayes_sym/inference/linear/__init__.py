"""Linear models by one Gaussian site a row (Kurle et al. 2022).

Reading order: `sites` (their updates and the bound, by the likelihood's rule of expectations),
`hyperparameters` (prior scale and noise at given sites), `low_rank` (with more weights than rows,
without a K x K array), `conjugate` (normal noise, from sufficient statistics), `linear_predictor`.

In: rows in the space they span, a likelihood. Out: `LowRankGaussian`, bounds in nats.
"""
