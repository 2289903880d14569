"""Conditional distributions of targets given outputs, and the names that stand for them.

Reading order: `likelihood` (the interface, and everything that follows from a density or from a
``torch.distributions`` object), then the families `noise`, `counts`, `categorical` and `ordinal`,
`row_parameters` (known errors and exposures), and `registry` (the names that estimators, saved
files and the documentation use).

In: outputs of a network (*B, N, O) and targets. Out: log densities in nats, their derivatives and
expectations, and predictive mixtures.

A new likelihood is one file here and one line below.
"""

from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.noise import (
    Gaussian,
    Heteroscedastic,
    NaturalHeteroscedastic,
    StudentT,
)
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.models.likelihoods.registry import register_likelihood

register_likelihood(Gaussian(), "gaussian")
register_likelihood(Heteroscedastic(), "heteroscedastic")
register_likelihood(NaturalHeteroscedastic)
register_likelihood(StudentT(), "student_t")
register_likelihood(Poisson(), "poisson")
register_likelihood(NegativeBinomial(), "negative_binomial")
register_likelihood(Bernoulli(), "bernoulli")
register_likelihood(Categorical(), "categorical")
register_likelihood(Ordinal)
