"""Likelihoods by name: the strings that estimators take for objects with their defaults."""

from collections.abc import Mapping

from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.heteroscedastic import Heteroscedastic
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.student_t import StudentT

OF_NUMBERS: Mapping[str, Likelihood] = {
    "heteroscedastic": Heteroscedastic(),
    "student_t": StudentT(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
}
OF_CLASSES: Mapping[str, Likelihood] = {"bernoulli": Bernoulli(), "categorical": Categorical()}
