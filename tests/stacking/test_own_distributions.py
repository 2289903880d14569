"""Stacks of members with distributions of their own, and of members inside other estimators."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearRegressor, PredictiveStackingRegressor, predictive
from skbayes_sym.base.sample_weights import fit_with_weights, weight_support


class TestOwnDistributions:
    """Members keep their own densities, and counts have a common measure with densities."""

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3))
    counts = rng.poisson(np.exp(1.2 * np.cos(2.0 * rows[:, 0]))).astype(float)

    @pytest.mark.long
    def test_a_student_t_member_keeps_its_tails(self):
        rows = self.rows[:60, :2]
        y = rows[:, 0] + 0.3 * np.random.default_rng(1).standard_t(3, size=60)
        line = BayesianLinearRegressor(likelihood="student_t").fit(rows, y)
        stack = PredictiveStackingRegressor([("t", line)], random_state=0).fit(rows, y)
        alone, inside = predictive(line, rows[:3]), predictive(stack, rows[:3])
        far = np.array([[-50.0], [0.0], [1000.0]])
        np.testing.assert_allclose(inside.log_prob(far), alone.log_prob(far), rtol=1e-9)
        np.testing.assert_allclose(inside.cdf(far), alone.cdf(far), rtol=1e-9)
        np.testing.assert_allclose(inside.std(), alone.std(), rtol=1e-9)
        assert not inside.has_normal_components

    def test_a_count_member_shares_a_measure_with_densities(self):
        members = [("trees", "trees"), ("poisson", BayesianLinearRegressor(likelihood="poisson"))]
        model = PredictiveStackingRegressor(members, random_state=0)
        model.fit(self.rows[:200], self.counts[:200])
        new, y = self.rows[200:], self.counts[200:]
        assert model.weights_["trees"] > 0.8  # the line has no cosine
        assert model.score(new, y) > 0.2  # 0 where the line takes all the weight
        leave_one_out = sum(
            w * model.leave_one_out_log_density_[k][0] for k, w in model.weights_.items()
        )
        distribution = predictive(model, new)
        assert abs(distribution.log_prob(y).mean() - leave_one_out) < 0.3
        values = np.arange(60.0)[:, None]
        np.testing.assert_allclose(np.exp(distribution.log_prob(values)).sum(axis=0), 1.0)
        assert np.all(distribution.log_prob(0.5) == -np.inf)
        draws = distribution.sample(20)
        assert np.all((draws >= 0.0) & (draws == np.floor(draws)))

    def test_a_member_of_counts_is_refused_beside_other_targets(self):
        doubled = TransformedTargetRegressor(
            BayesianLinearRegressor(likelihood="poisson"), func=lambda y: 2.0 * y,
            inverse_func=lambda z: 0.5 * z,
        )  # fmt: skip
        members = [("line", "linear"), ("halves", doubled)]
        with pytest.warns(FitFailedWarning, match="'halves' failed.*predicts whole numbers"):
            model = PredictiveStackingRegressor(members, random_state=0).fit(
                self.rows[:60], 0.5 * self.counts[:60]
            )
        assert set(model.weights_) == {"line"}

    def test_return_cov_is_refused_in_words(self):
        model = PredictiveStackingRegressor([("line", "linear")], random_state=0)
        model.fit(self.rows[:30], self.rows[:30, 0] + 0.1 * self.rows[:30, 1])
        with pytest.raises(ValueError, match="needs a normal posterior of functions"):
            model.predict(self.rows[:3], return_cov=True)
        with pytest.raises(ValueError, match="can't both be set"):
            model.predict(self.rows[:3], return_std=True, return_cov=True)


WEIGHED = {
    "pipeline": make_pipeline(StandardScaler(), BayesianRidge()),
    "search": GridSearchCV(
        make_pipeline(StandardScaler(), BayesianRidge()), {"bayesianridge__alpha_1": [1e-6, 1.0]},
        cv=2, scoring="neg_mean_squared_error",
    ),
    "logged": TransformedTargetRegressor(BayesianRidge(), func=np.log, inverse_func=np.exp),
    "nested": make_pipeline(
        StandardScaler(),
        TransformedTargetRegressor(BayesianRidge(), func=np.log, inverse_func=np.exp),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_reach_what_is_inside_of_others(name):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 2))
    y = np.exp(rows[:, 0] + 0.3 * rng.normal(size=40))
    counts = rng.integers(1, 4, 40)
    weighed, repeated = clone(WEIGHED[name]), clone(WEIGHED[name])
    assert weight_support(weighed) == "all"
    fit_with_weights(weighed, rows, y, counts.astype(float))
    repeated.fit(np.repeat(rows, counts, axis=0), np.repeat(y, counts))
    np.testing.assert_allclose(weighed.predict(rows), repeated.predict(rows), rtol=1e-9)
    model = PredictiveStackingRegressor([(name, WEIGHED[name])], random_state=0)
    model.fit(rows, y, sample_weight=rng.uniform(0.5, 2.0, 40))
    assert model.weights_ == {name: 1.0}


def test_models_without_weights_are_named():
    rows, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)
    members = [("line", "linear"), ("near", make_pipeline(StandardScaler(), KNeighborsRegressor()))]
    with pytest.warns(FitFailedWarning, match="'near' failed.*takes no sample_weight"):
        PredictiveStackingRegressor(members, random_state=0).fit(rows, y, np.linspace(0.5, 2.2, 30))
