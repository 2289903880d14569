r"""Members that predict counts of a known exposure.

The count :math:`y` of a row with the exposure :math:`t` and the predicted rate :math:`\lambda(x)`
has a negative binomial distribution (Cameron & Trivedi 2013, eq. 3.26) of mean
:math:`t \lambda(x)`. The rate maximises the likelihood of Poisson counts, which is consistent
whatever the dispersion. The dispersion maximises the likelihood of held-out counts.

References
----------
A. C. Cameron and P. K. Trivedi (2013). Regression Analysis of Count Data, 2nd edition.
"""

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.linear.estimators import BayesianLinearRegressor
from skbayes_sym.models.copula import middle_cdf
from skbayes_sym.models.likelihoods.counts import NegativeBinomial
from skbayes_sym.models.predictive_mixtures import TargetMixture
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.members.boosting import Boosting
from skbayes_sym.stacking.predictors import BoostingPredictor, EstimatorPredictor, RatePredictor
from skbayes_sym.stacking.task import HeldOutScores, MemberFit, StackTask

# Range of the logarithm of the dispersion: variances of means of 1 between 1 and 150.
_LOG_DISPERSION_RANGE = (log(1e-6), 5.0)


def fit_dispersion(log_mean: Tensor, counts: Tensor, weight: Tensor) -> NegativeBinomial:
    """Fit the dispersion of counts of known means.

    Parameters
    ----------
    log_mean : Tensor of shape (N, 1)
        Logarithms of the means.
    counts : Tensor of shape (N, 1)
        Counts.
    weight : Tensor of shape (N,)
        Sample weights.

    Returns
    -------
    NegativeBinomial
        Likelihood with the dispersion of maximum likelihood, as a constant.
    """

    def make(log_dispersion: float) -> NegativeBinomial:
        value = torch.tensor([log_dispersion], dtype=torch.float64)
        return NegativeBinomial(value, learn=False)

    def loss(log_dispersion: float) -> float:
        return -float(weight @ make(log_dispersion).log_prob(log_mean, counts))

    optimum = minimize_scalar(loss, bounds=_LOG_DISPERSION_RANGE, method="bounded")
    return make(float(optimum.x))


def finish_fit(
    task: StackTask, base: Any, held_out_rate: Tensor, *, predicts_logarithm: bool
) -> MemberFit:
    """Fit the dispersion to held-out rates, and score the counts.

    Parameters
    ----------
    task : StackTask
        Training data.
    base : Predictor
        Predictor of rates that was fitted to all rows.
    held_out_rate : Tensor of shape (N, 1)
        Rates by refits without each fold.
    predicts_logarithm : bool
        Whether ``base`` predicts the logarithm of rates.

    Returns
    -------
    MemberFit
    """
    index = torch.as_tensor(task.left_out_index)
    log_mean = (task.exposures[:, None] * held_out_rate).log()[index]
    counts = torch.as_tensor(task.targets)[index, None]
    likelihood = fit_dispersion(log_mean, counts, task.weight[index])
    distribution = TargetMixture(likelihood, log_mean.unsqueeze(0))
    scores = HeldOutScores(distribution.log_prob(counts), middle_cdf(distribution, counts)[:, 0])
    predictor = RatePredictor(
        base, likelihood, *task.target_scaling, predicts_logarithm=predicts_logarithm
    )
    return MemberFit(predictor, scores, is_calibrated=True, used_folds=True)


class LinearCounts(Member):
    """Bayesian linear model of the logarithm of the rate.

    Held-out rates are those of refits without each fold.
    """

    takes_exposure = True
    predicts_counts = True

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        held_out = torch.ones(len(task), 1, dtype=torch.float64)
        for k, (train, test) in enumerate(task.folds):
            report_progress(k, len(task.folds) + 1)
            predictor = self._fit_rate(task.take(train))
            held_out[torch.as_tensor(test)] = predictor.mean(task.rows.x[torch.as_tensor(test)])
        return finish_fit(task, self._fit_rate(task), held_out, predicts_logarithm=False)

    def _fit_rate(self, task: StackTask) -> EstimatorPredictor:
        """Fit the rate to all rows of the task."""
        x, _, weight = task.arrays
        regressor: Any = BayesianLinearRegressor("poisson", device="cpu")
        regressor.fit(x, task.targets, weight, exposure=task.exposures.numpy())
        return EstimatorPredictor(regressor)


@dataclass(frozen=True)
class BoostedCounts(Boosting):
    """Histogram gradient boosting of the rate, by the deviance of Poisson counts.

    The number of rounds has the lowest held-out deviance.
    """

    takes_exposure: ClassVar[bool] = True
    predicts_counts: ClassVar[bool] = True

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        rates, best = self._predict_folds(task)
        model = self._fit_model(task, best + 1, slice(None))
        base = BoostingPredictor.from_poisson(model, task.rows.x.shape[1])
        return finish_fit(task, base, torch.as_tensor(rates), predicts_logarithm=True)

    def _losses(self, task: StackTask, held_out: Array) -> Array:
        """Held-out deviance of Poisson counts after each round, without its constant."""
        index = task.left_out_index
        mean = task.exposures.numpy()[index] * held_out[:, index, 0]
        deviance: Array = mean - task.targets[index] * np.log(mean)
        return deviance @ task.weight.numpy()[index]

    def _make_model(self, task: StackTask) -> Any:
        """Return unfitted boosting of rates."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(loss="poisson", **self._parameters(task))

    def _select_rows(self, task: StackTask, index: Any) -> tuple[Array, Array, Array | None]:
        """Return inputs, rates and weights of rows.

        Weights in proportion to the exposure give the likelihood of the counts.
        """
        exposure = task.exposures.numpy()[index]
        weight = task.weight.numpy()[index] * exposure
        return task.rows.x.numpy()[index], task.targets[index] / exposure, weight
