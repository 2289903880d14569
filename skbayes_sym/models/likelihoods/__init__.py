"""Conditional laws of targets given outputs, and the strings that stand for them.

Reading order: `likelihood` (what one is, and all that follows from a density or from a
``torch.distributions`` law), then the laws: `noise`, `counts`, `categorical`, `ordinal`.

In: outputs of a network (*B, N, O) and targets. Out: log densities in nats, their derivatives and
expectations, and predictive mixtures.
"""

from collections.abc import Mapping

from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Heteroscedastic, StudentT

OF_NUMBERS: Mapping[str, Likelihood] = {
    "heteroscedastic": Heteroscedastic(),
    "student_t": StudentT(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
}
OF_CLASSES: Mapping[str, Likelihood] = {"bernoulli": Bernoulli(), "categorical": Categorical()}
