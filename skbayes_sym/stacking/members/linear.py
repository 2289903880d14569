"""Bayesian linear model as a member of a stack."""

from copy import copy
from dataclasses import replace
from typing import Any

import torch
from sklearn import config_context
from torch import Tensor

from skbayes_sym.base.groups import leave_groups_out
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.bayesian_mlp.estimators import BayesianMLPClassifier
from skbayes_sym.linear.estimators import BayesianLinearRegressor
from skbayes_sym.stacking.members.base import Member, require_classes
from skbayes_sym.stacking.predictors import EstimatorPredictor
from skbayes_sym.stacking.task import HeldOutScores, MemberFit, StackTask


class Linear(Member):
    """Bayesian linear model.

    Leave-one-out predictions, and predictions that leave out groups, have a closed form in
    regression. In classification leave-one-out predictions are approximate, and groups are left out
    by folds.
    """

    takes_known_errors = True

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        if task.n_classes:
            return self._fit_classifier(task)
        return self._fit_regressor(task)

    def _fit_classifier(self, task: StackTask) -> MemberFit:
        require_classes(task)
        x, _, weight = task.arrays
        seed = task.seed % 2**32
        classifier = BayesianMLPClassifier((), n_modes=1, device="cpu", random_state=seed)
        with config_context(skip_parameter_validation=True):
            # A mixture with a linear network and no ensemble members is a linear model.
            classifier.set_params(n_members=0)
            classifier.fit(x, task.targets, weight)
            classifier.set_params(n_members=1)
        density = None
        if task.groups is None:
            density = classifier.leave_one_out_log_density
        if density is not None:
            density = torch.as_tensor(density)
        return MemberFit(EstimatorPredictor(classifier), density, is_calibrated=True)

    def _fit_regressor(self, task: StackTask) -> MemberFit:
        x, y, weight = task.arrays
        seed = task.seed % 2**32
        regressor: Any = BayesianLinearRegressor(device="cpu", random_state=seed)
        if task.noise_std is not None:
            return self._fit_known_errors(task, regressor, task.noise_std)
        regressor.fit(x, y, weight)
        # The stack determines the noise level from leave-one-out predictions instead.
        regressor._noise_levels_ = None
        predictor = EstimatorPredictor(regressor)
        distribution = predictor.distribution(task.rows.x)
        # The posterior contains only the coefficients. Add the variance of the intercept, which
        # was estimated from the same rows.
        intercept_variance = distribution.noise_variance / weight.sum()
        distribution = replace(distribution, variance=distribution.variance + intercept_variance)
        if task.groups is not None:
            root = posterior_root(regressor, task.rows.x, intercept_variance)
            held_out = leave_groups_out(distribution, root, task.y, task.weight, task.groups)
            return MemberFit(predictor, held_out)
        return MemberFit(predictor, leave_one_out(distribution, task.y, task.weight))

    def _fit_known_errors(self, task: StackTask, regressor: Any, noise_std: Tensor) -> MemberFit:
        """Fit rows with known errors; leave-one-out densities have a closed form as well."""
        x, y, weight = task.arrays
        regressor.fit(x, y, weight, noise_std=noise_std.numpy())
        # Leave-one-out predictions are those at the learned noise. Predictions of new rows
        # integrate over it if there are few rows.
        plug_in = copy(regressor)
        plug_in._noise_levels_ = None
        distribution = EstimatorPredictor(plug_in).distribution(task.rows.x)
        measured = distribution.add_known_errors(noise_std.unsqueeze(1))
        intercept_variance = 1.0 / (task.weight / measured.noise_variance[0, :, 0]).sum()
        measured = replace(measured, variance=measured.variance + intercept_variance)
        if task.groups is None:
            held_out = leave_one_out(measured, task.y, task.weight)
        else:
            root = posterior_root(regressor, task.rows.x, intercept_variance)
            held_out = leave_groups_out(measured, root, task.y, task.weight, task.groups)
        scores = HeldOutScores(held_out.log_prob(task.y), held_out.cdf(task.y)[:, 0])
        return MemberFit(EstimatorPredictor(regressor), scores)


def posterior_root(
    regressor: BayesianLinearRegressor, x: Tensor, intercept_variance: Tensor
) -> Tensor:
    """Root of the posterior covariance of function values and intercept, (N, r).

    The variance of the intercept is a single one, or (1, N, 1) with equal entries.

    Parameters
    ----------
    regressor : BayesianLinearRegressor
        Fitted linear model.
    x : Tensor of shape (N, D)
        Encoded inputs.
    intercept_variance : Tensor
        Variance of the intercept: a single one, or (1, N, 1) with equal entries.
    """
    scaled = torch.cat(list(regressor.input_blocks(x.numpy()))).double()
    root = float(regressor.y_scale_[0]) * regressor.posterior_.output_root(scaled)
    intercept = intercept_variance.expand(1, len(x), 1)[0].sqrt()
    return torch.cat([root, intercept], 1)
