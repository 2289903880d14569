"""Predictions beyond the range of the training data: coverage, agreement, warnings."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    load,
    predictive,
    save,
)
from skbayes_sym.base.columns import Columns
from skbayes_sym.base.extrapolation import ScaledRange, TrainingRange, drift_rate

TWO = [("a", "linear"), ("b", "trees")]
N = 120
RNG = np.random.default_rng(0)
LEVEL = np.cumsum(RNG.normal(size=N + 40))
FRAME = pd.DataFrame({
    "day": pd.date_range("2021-01-04", periods=N + 40).strftime("%d.%m.%Y"),
    "x": RNG.uniform(-1.0, 1.0, size=N + 40),
})  # fmt: skip
Y = LEVEL + FRAME["x"] + 0.3 * RNG.normal(size=N + 40)
TRAIN = FRAME[:N]
BEYOND = FRAME[N:]

MODELS = {
    "stack": PredictiveStackingRegressor(TWO, random_state=0),
    "pool": BayesianMLPRegressor((2,), n_modes=1, n_members=1, random_state=0),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param].fit(TRAIN, Y[:N])


def without_range(model):
    """The model without a continuation."""
    copy = pickle.loads(pickle.dumps(model))
    copy._training_range_in_ = None
    return copy


def simulate_sales(kind, seed, n=400):
    """Daily sales with a weekly pattern, noise of standard deviation 3 and a level of some kind."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    year = 15.0 * np.sin(2.0 * np.pi * (t + rng.uniform(0.0, 365.0)) / 365.0)
    level = {
        "trend and year": 0.1 * t + year,
        "random walk": np.cumsum(rng.normal(size=n)),
        "trend": rng.normal(0.0, 0.1) * t,
        "year": year,
    }[kind]
    week = rng.normal(0.0, 5.0, size=7)[t % 7]
    days = pd.date_range("2021-01-04", periods=n).strftime("%Y-%m-%d")
    return pd.DataFrame({"date": days}), 100.0 + level + week + rng.normal(0.0, 3.0, size=n)


def interval_score(interval, y):
    """Interval score of 90 % intervals (Gneiting & Raftery 2007); lower is better."""
    low, high = interval.T
    return (high - low + 20.0 * (np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0))).mean()


def naive_interval(y, n):
    """The last value of the same weekday, with the width of a random walk of weeks."""
    horizon = np.arange(1, n + 1)
    centre = y[-7:][(horizon - 1) % 7]
    width = 1.645 * np.std(y[7:] - y[:-7]) * np.sqrt(np.ceil(horizon / 7.0))
    return np.column_stack([centre - width, centre + width])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*beyond the dates")
@pytest.mark.parametrize("kind", ["trend and year", "random walk", "trend", "year"])
def test_the_next_hundred_days_of_sales_are_in_their_intervals(kind):
    """At least 70 % are, and on average intervals score at most a third above naive ones."""
    members = [(name, name) for name in ("linear", "trees", "gaussian_process")]
    coverage = []
    scores = []
    for seed in (101, 102, 103):
        X, y = simulate_sales(kind, seed)
        model = PredictiveStackingRegressor(members, random_state=0).fit(X[:300], y[:300])
        interval = model.predict_interval(X[300:])
        coverage.append(((interval[:, 0] < y[300:]) & (y[300:] < interval[:, 1])).mean())
        naive = interval_score(naive_interval(y[:300], 100), y[300:])
        scores.append(interval_score(interval, y[300:]) / naive)
    assert np.mean(coverage) > 0.7
    assert np.mean(scores) < 4.0 / 3.0


@pytest.mark.filterwarnings("ignore:.*beyond the dates")
def test_rows_inside_are_unchanged_to_the_last_bit(model):
    """Also in a block with rows that are beyond the range."""
    plain = without_range(model)
    mixed = FRAME[N - 30 : N + 10]
    for predict in (
        lambda m, X: m.predict(X),
        lambda m, X: m.predict(X, return_std=True)[1],
        lambda m, X: m.predict_quantiles(X),
        lambda m, X: m.sample_f(X, 5),
    ):
        np.testing.assert_array_equal(predict(model, TRAIN), predict(plain, TRAIN))
        np.testing.assert_array_equal(predict(model, mixed)[:30], predict(plain, mixed)[:30])
        assert not np.array_equal(predict(model, mixed)[30:], predict(plain, mixed)[30:])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*beyond the dates")
def test_means_quantiles_densities_and_samples_agree(model):
    distribution = predictive(model, BEYOND)
    mean, std = model.predict(BEYOND, return_std=True)
    np.testing.assert_allclose(distribution.mean(), mean, rtol=1e-6)
    np.testing.assert_allclose(distribution.std(), std, rtol=1e-6)
    median = model.predict_quantiles(BEYOND, [0.5])[:, 0]
    np.testing.assert_allclose(distribution.cdf(median), 0.5, atol=1e-6)
    grid = mean + std * np.linspace(-12.0, 12.0, 401)[:, None]
    density = np.exp(distribution.log_prob(grid))
    np.testing.assert_allclose(density.sum(0) * 0.06 * std, 1.0, atol=0.01)
    log_density = model.log_predictive_density(BEYOND, grid[100])
    np.testing.assert_allclose(log_density, np.log(density[100]), rtol=1e-6)
    samples = model.sample_y(BEYOND, 4000)
    np.testing.assert_allclose(samples.mean(1), mean, atol=5.0 * std.max() / 4000**0.5)
    np.testing.assert_allclose(samples.std(1), std, rtol=0.1)
    uncertainty = model.predict_uncertainty(BEYOND)
    np.testing.assert_allclose(uncertainty.total, std**2, rtol=1e-6)
    np.testing.assert_allclose(
        model.sample_f(BEYOND, 4000).std(1), uncertainty.epistemic**0.5, rtol=0.1
    )


@pytest.mark.filterwarnings("ignore:.*beyond the dates")
def test_uncertainty_grows_with_the_distance_on_both_sides(model):
    days = pd.date_range("2021-01-04", periods=N)
    at_end, at_start = (
        model.predict(
            pd.DataFrame({"day": [days[end] + sign * pd.Timedelta(f"{14 * k}D") for k in range(9)],
                          "x": 0.0}), return_std=True)[1]
        for end, sign in ((-1, 1), (0, -1))
    )  # fmt: skip
    for std in (at_end, at_start):
        assert (np.diff(std) > 0.0).all()
        assert std[-1] > 2.0 * std[0]


def test_sampled_functions_are_continuous(model):
    """Neighbouring days beyond the range share their random number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        same = pd.DataFrame({"day": FRAME["day"], "x": 0.0})[N - 1 :: 7]
        functions = model.sample_f(same, 200)
        std = functions.std(1)
        correlation = np.corrcoef(functions[-2:])[0, 1]
    assert std[-1] > 1.5 * std[0]
    assert correlation > 0.95


def test_a_straight_line_is_continued_with_certainty():
    rng = np.random.default_rng(1)
    days = pd.Series(pd.date_range("2021-01-01", periods=160))
    frame = pd.DataFrame({"day": days})
    y = 0.5 * np.arange(160) + 0.01 * rng.normal(size=160)
    model = PredictiveStackingRegressor([("a", "linear")], random_state=0)
    model.fit(frame[:100], y[:100])
    with pytest.warns(UserWarning, match="column 'day' of X is beyond the dates .* in 60 rows"):
        mean, std = model.predict(frame[100:], return_std=True)
    np.testing.assert_allclose(mean, y[100:], atol=0.1)
    np.testing.assert_allclose(std, model.predict(frame[:100], return_std=True)[1][-1], rtol=0.01)


def test_a_distribution_warns_once_and_another_one_again(model):
    def ask(future):
        future.mean()
        future.interval(0.9)
        future.sample(2)
        return future.log_prob(0.0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        future = predictive(model, BEYOND)
        ask(future)
        assert len(caught) == 1
        assert "column 'day' of X is beyond" in str(caught[0].message)
        assert caught[0].filename == __file__
        ask(future[:10])
        ask(predictive(model, TRAIN[:10]))
    assert len(caught) == 2


def test_warnings_of_a_distribution_precede_its_errors(model):
    future = predictive(model, BEYOND)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="coverage"):
            future.interval(90)
        with pytest.raises(ValueError, match="n_samples"):
            future.sample(-1)
        future.mean()
    assert len(caught) == 1


def test_rate_of_a_path():
    """By hand: drift 4, and increments less the drift of lags 1, 2 and 4 of eight."""
    path = torch.tensor([0.0, 1.0, 1.0, 3.0, 2.0, 4.0, 3.0, 3.0, 4.0]).double()
    squares = [float(((path[step:] - path[:-step] - 0.5 * step) ** 2).mean()) for step in (1, 2, 4)]
    expected = max(
        (squares[1] - squares[0]) / (0.125 * 0.75), (squares[2] - squares[0]) / (0.375 * 0.5)
    )
    assert drift_rate(path.unsqueeze(1)).item() == pytest.approx(max(expected, 0.0))
    line = torch.linspace(0.0, 3.0, 65).double().unsqueeze(1)
    assert drift_rate(line).item() == pytest.approx(0.0, abs=1e-12)


def test_the_rate_is_that_of_a_random_walk():
    """The largest of the lags is at least the variance per length on average, at most thrice."""
    rng = np.random.default_rng(2)
    steps = rng.normal(0.0, (2.0 / 64) ** 0.5, size=(65, 400))
    rates = drift_rate(torch.as_tensor(np.cumsum(steps, axis=0)))
    assert 2.0 < float(rates.mean()) < 6.0


def test_distances():
    scaled = ScaledRange(
        torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]),
        torch.tensor([0, 2]), torch.tensor([True, False]),
    )  # fmt: skip
    x = torch.tensor([[0.5, 9.0, 1.0], [1.5, 9.0, 0.0], [0.5, 9.0, 4.0], [-0.5, 9.0, 2.0]])
    expected = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.5, 0.5]])
    torch.testing.assert_close(scaled.distances(x), expected)
    torch.testing.assert_close(scaled.clamp_dates(x)[:, 0], torch.tensor([0.5, 1.0, 0.5, 0.0]))
    torch.testing.assert_close(scaled.mirror_dates(x)[:, 0], torch.tensor([0.5, 0.0, 0.5, 1.0]))
    inside = scaled.move_inside(x, 0.0)
    torch.testing.assert_close(inside[:, 2], torch.tensor([1.0, 0.0, 3.0, 1.0]))
    torch.testing.assert_close(scaled.move_inside(x, 1.0)[:, 0], torch.tensor([0.5, 0.5, 0.5, 0.5]))


def test_constant_columns_have_no_range():
    rows = np.ones((50, 2))
    columns = Columns.from_numbers(["a", "b"], np.ones(2), np.array([], dtype=int))
    assert TrainingRange.from_rows(rows, columns) is None
    rows[0, 1] = 2.0
    assert TrainingRange.from_rows(rows, columns).names == ("b",)


@pytest.mark.parametrize("name", MODELS)
def test_numbers_far_outside_are_named_and_wider(name):
    rng = np.random.default_rng(3)
    X = rng.uniform(-1.0, 1.0, size=(100, 2))
    y = np.sin(4.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=100)
    model = MODELS[name].fit(pd.DataFrame(X, columns=["speed", "mass"]), y)
    near = pd.DataFrame({"speed": [2.5, 0.0], "mass": [0.0, -2.5]})
    model.predict(near)  # warnings are errors in the suite
    far = pd.DataFrame({"speed": [8.0, 0.0], "mass": [0.0, 0.0]})
    with pytest.warns(UserWarning, match="'speed' of X is far outside the range .* in 1 row:"):
        std = model.predict(far, return_std=True)[1]
    plain = without_range(model).predict(far, return_std=True)[1]
    assert std[0] > plain[0] + 0.5
    assert std[1] == plain[1]


def test_probabilities_beyond_the_dates_are_averages():
    days = pd.Series(pd.date_range("2021-01-01", periods=150))
    frame = pd.DataFrame({"day": days})
    classes = np.arange(100) > 80
    model = PredictiveStackingClassifier([("b", "trees")], random_state=0)
    model.fit(frame[:100], classes)
    with pytest.warns(UserWarning, match="column 'day' of X is beyond the dates"):
        proba = model.predict_proba(frame[90:])[:, 1]
    np.testing.assert_array_equal(proba[:10], model.predict_proba(frame[90:100])[:, 1])
    assert proba[9] > 0.9
    assert proba[9] > proba[15:25].mean() > proba[-10:].mean()
    assert proba[-1] < 0.7


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*beyond the dates")
def test_saved_models_continue_alike(model, tmp_path):
    expected = model.predict_interval(BEYOND)
    save(model, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_interval(BEYOND), expected)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_interval(BEYOND), expected)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*beyond the dates", "ignore:.*levels that fit hasn't seen")
def test_counts_and_unknown_levels_are_continued_too():
    rng = np.random.default_rng(4)
    frame = FRAME.assign(shop=rng.choice(["a", "b", "c"], size=len(FRAME)))
    counts = rng.poisson(np.exp(1.0 + 0.1 * LEVEL))
    columns = ["x"]
    numbers = frame[columns].assign(day=np.arange(len(frame)) * 1.0)
    poisson = BayesianLinearRegressor(likelihood="poisson")
    model = PredictiveStackingRegressor([("a", "trees"), ("c", poisson)], random_state=0)
    model.fit(numbers[:N], counts[:N])
    far = numbers.assign(day=5.0 * N)[:3]
    with pytest.warns(UserWarning, match="'day' of X is far outside"):
        samples = model.sample_y(far, 2000)
    with pytest.warns(UserWarning, match="'day' of X is far outside"):
        mean, std = model.predict(far, return_std=True)
    assert (samples >= 0.0).all()
    assert (samples == samples.round()).all()
    np.testing.assert_allclose(samples.mean(1), mean, atol=5.0 * std.max() / 2000**0.5)

    stack = PredictiveStackingRegressor(TWO, random_state=0).fit(frame[:N], Y[:N])
    unknown = frame[N:].assign(shop="d")
    std = stack.predict(unknown, return_std=True)[1]
    assert (std > without_range(stack).predict(unknown, return_std=True)[1] + 0.1).mean() > 0.8
