"""Noise of a mixture of networks in groups of rows that it hasn't seen."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from sklearn import clone
from sklearn.model_selection import GroupKFold

from skbayes_sym.base.groups import scale_weights_to_groups
from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.noise_shape import fit_noise_shape
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import Requirements
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import merge_components
from skbayes_sym.base.training import Training
from skbayes_sym.bayesian_mlp.fit import PoolFit, RegressionPool
from skbayes_sym.models.model import Model
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.runtime import filters_lock

# Folds of groups. Each takes a refit, and three take less time than the fit to all rows.
_N_FOLDS = 3


@dataclass(frozen=True, eq=False)
class GroupedRegressionPool:
    """Mixture for regression whose noise is fitted to left-out groups.

    The hidden units have seen all groups. The mixture is therefore refitted without each fold of
    groups, by a single mode and without ensemble members.

    Parameters
    ----------
    pool : RegressionPool
        Method that fits the mixture to all rows.
    estimator : BayesianMLPRegressor
        Estimator whose clones are refitted.
    """

    requirements: ClassVar[Requirements] = RegressionPool.requirements

    pool: RegressionPool
    estimator: Any

    def fit(self, data: Training, model: Model, progress: FitProgress) -> PoolFit:
        """Fit the mixture to all rows, and its noise to left-out groups.

        Parameters
        ----------
        data : Training
            Training data with groups.
        model : Model
            Network, likelihood and prior of the modes.
        progress : FitProgress
            Progress of the fit.

        Returns
        -------
        PoolFit
            Mixture with its noise, and with log densities of left-out groups.
        """
        groups = data.rows.groups
        if groups is None:
            return self.pool.fit(data, model, progress)
        fit = replace(self.pool, fits_noise_shape=False).fit(data, model, progress)
        if fit.stop_reason in ("interrupted", "callback"):
            return fit
        held_out = self._predict_held_out(data, groups, self._refit_params(fit))
        _, y, weight = data.double_data
        y = y.cpu()
        weight = weight.cpu()
        if not self.pool.fits_noise_shape:
            return replace(fit, leave_one_out=held_out.log_prob(y))

        # Rows of a group tell less about the noise than as many independent rows.
        std = (held_out.variance + held_out.noise_variance).sqrt()[0]
        residual = ((y - held_out.mean()) / std).mean(1)
        weight = scale_weights_to_groups(residual, weight, groups)
        noise, log_density = fit_noise_shape(held_out, y, weight, is_free=True)
        summary = f"{fit.summary}\nin left-out groups, {noise}"
        return replace(fit, noise=noise, leave_one_out=log_density, summary=summary)

    def _refit_params(self, fit: PoolFit) -> dict[str, Any]:
        """Parameters of refits: a single mode of the same width, or the linear model alone."""
        modes = fit.components.modes
        if fit.weights.linear == 1.0:
            return {"n_modes": 1, "n_members": 0, "hidden_layer_sizes": ()}
        if modes is None:
            return {"n_members": 2}
        sizes = modes.network.hidden_layer_sizes
        return {"n_modes": 1, "n_members": 0, "hidden_layer_sizes": sizes}

    def _predict_held_out(
        self, data: Training, groups: Array, params: dict[str, Any]
    ) -> NormalMixture:
        """Predict the rows of each fold by a refit without it, in scaled units.

        Returns single normals of shape (1, N, T).
        """
        assert data.y_scaling is not None
        n_folds = min(_N_FOLDS, int(groups.max()) + 1)
        with filters_lock:
            folds = list(GroupKFold(n_folds).split(groups, groups, groups))
        loc = torch.empty(1, *data.rows.y.shape, dtype=torch.float64)
        variance = torch.empty_like(loc)
        noise_variance = torch.empty_like(loc)
        for train, test in folds:
            model = clone(self.estimator)
            with collect_warnings():
                model.set_params(**params, random_state=data.seed % 2**32, verbose=0)
                # The rows have no gross errors any more, and predictions don't need the evidence.
                model.set_params(outliers="keep", compute_evidence=False)
                model.fit(data.rows.X[train], data.rows.y[train], data.rows.weight[train])
            model.noise_shape_ = None
            x = torch.cat(list(model.input_blocks(data.rows.X[test])))
            distribution = merge_components(model.predictor(x).distribution(x))
            shift = torch.as_tensor((model.y_mean_ - data.y_scaling.mean) / data.y_scaling.scale)
            scale = torch.as_tensor(model.y_scale_ / data.y_scaling.scale)
            distribution = distribution.rescale(shift.to(x), scale.to(x))
            loc[:, test] = distribution.loc.double().cpu()
            variance[:, test] = distribution.variance.expand_as(distribution.loc).double().cpu()
            noise = distribution.noise_variance.expand_as(distribution.loc)
            noise_variance[:, test] = noise.double().cpu()
        return NormalMixture(loc, variance, noise_variance)
