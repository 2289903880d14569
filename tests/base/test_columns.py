"""Columns keep their meaning, whatever dtype their values arrive with at prediction."""

import io
import re
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from skbayes_sym import (
    BayesianLinearClassifier,
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    load,
    save,
)
from skbayes_sym.base.columns import Columns
from skbayes_sym.numerics.tables import Levels, level_key, read_table

N = 24
Z = np.linspace(-1.0, 1.0, N)


def repeated(values):
    return list(np.resize(np.array(values, dtype=object), N))


def csv(frame):
    """The frame as it comes back from a file."""
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)), float_precision="round_trip")


def codes_of(frame, question):
    """Encodings of training rows, and of a question, without the column of Z."""
    columns = Columns.from_table(read_table(frame))
    assert columns.columns[0].kind == "categorical"
    return [
        columns.encode_with_alternatives(read_table(table)).values[:, :-1]
        for table in (frame, question)
    ]


# Values of a categorical column in training: as they are, or of a dtype.
TRAINING = {
    "digits and a letter": pd.Series(repeated(["1", "2", "3", "A"])),
    "digits": pd.Series(repeated(["1", "2", "3"])),
    "decimals as text": pd.Series(repeated(["1.0", "2.0", "3.5"])),
    "zip codes": pd.Series(repeated(["01234", "90210", "00501"])),
    "integer codes": pd.Series(pd.Categorical(repeated([1, 2, 3]))),
    "float codes": pd.Series(pd.Categorical(repeated([0.5, 1.0, 2.0]))),
    "texts": pd.Series(repeated(["x", "y", "z"])),
    "category of texts": pd.Series(pd.Categorical(repeated(["b", "a", "c"]))),
    "texts of bools": pd.Series(repeated(["True", "False", "maybe"])),
    "two texts of bools": pd.Series(repeated(["TRUE", "FALSE"])),
    "category of bools": pd.Series(pd.Categorical(repeated([True, False]))),
    "a mix": pd.Series(repeated([1, "b", 2.5, True])),
    "intervals": pd.Series(pd.cut(np.arange(N) % 7, 3)),
    "string dtype": pd.Series(repeated(["1", "2", "B"]), dtype="string"),
    "gaps": pd.Series(repeated(["1", "2", None, "3"])),
}

ROUTES = {
    "as it is": lambda f: f,
    "csv": csv,
    "only numbers of the csv": lambda f: csv(f[pd.to_numeric(f["g"].astype(str),
                                                             errors="coerce").notna()]),
    "category of the csv": lambda f: csv(f).astype({"g": "category"}),
    "objects": lambda f: f.astype({"g": object}),
    "array": lambda f: f.astype(object).to_numpy(),
    "rows": lambda f: f.astype(object).to_numpy().tolist(),
    "string": lambda f: f.astype({"g": "string"}),
    "polars": lambda f: pytest.importorskip("polars").DataFrame(
        {"g": f["g"].astype("string").tolist(), "z": f["z"].tolist()}),
    "polars categorical": lambda f: ROUTES["polars"](f).with_columns(
        pytest.importorskip("polars").col("g").cast(pytest.importorskip("polars").Categorical)),
    "pyarrow strings": lambda f: (pytest.importorskip("pyarrow"), f.astype({"g": "string"}).astype(
        {"g": "string[pyarrow]"}))[1],
    "pyarrow table": lambda f: pytest.importorskip("pyarrow").Table.from_pandas(
        f.astype({"g": "string"}), preserve_index=False),
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("training", TRAINING)
def test_levels_are_the_same_by_every_route(training, route):
    """Missing values aside, which some routes write as the text <NA>."""
    frame = pd.DataFrame({"g": TRAINING[training], "z": Z})
    asked = frame.dropna()
    if route.startswith("only"):
        is_number = pd.to_numeric(frame["g"].astype(str), errors="coerce").notna()
        asked = frame[is_number]
        if not len(asked):
            return
    elif route.startswith("polars"):
        asked = frame = frame.dropna()
    _, expected = codes_of(frame, asked.astype({"g": frame["g"].dtype}))
    _, got = codes_of(frame, ROUTES[route](asked))
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(expected, axis=0)) == len({level_key(v) for v in asked["g"]})


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [1.0, 2.0, np.nan], np.array([1, 2, 3], dtype=np.uint8), ["1", "2", "3"],
     [np.int64(1), np.float32(2), Decimal(3)], ["1.0", "2.", "3"], [True, 2, 3]],
    ids=str,
)  # fmt: skip
def test_numbers_are_the_levels_of_their_text(values):
    frame = pd.DataFrame({"g": TRAINING["digits and a letter"], "z": Z})
    frame.loc[0:3, "g"] = None
    question = pd.DataFrame({"g": pd.Series(list(values), dtype=object), "z": Z[:3]})
    _, got = codes_of(frame, question)
    texts = pd.DataFrame({"g": ["1", "2", None if pd.isna(values[2]) else "3"], "z": Z[:3]})
    _, expected = codes_of(frame, texts)
    np.testing.assert_array_equal(got, expected)


def test_a_number_that_two_levels_write_is_neither():
    frame = pd.DataFrame({"g": repeated(["01", "1.0", "x"]), "z": Z})
    with pytest.warns(UserWarning, match="column 'g' of X holds levels that fit hasn't seen"):
        _, got = codes_of(frame, pd.DataFrame({"g": [1], "z": [0.0]}))
    np.testing.assert_allclose(got, 1.0 / 3.0)


# Of a numeric column: what arrives, and what it is.
NUMBERS = {
    "text": (["1.5", " 2 ", "1e3"], [1.5, 2.0, 1000.0]),
    "text and gaps": (["1.5", "", "NA"], [1.5, np.nan, np.nan]),
    "bools": ([True, False, None], [1.0, 0.0, np.nan]),
    "decimals": ([Decimal("1.5"), 2, 3.0], [1.5, 2.0, 3.0]),
    "category": (pd.Categorical([1.5, 2.0, 1.5]), [1.5, 2.0, 1.5]),
    "category of text": (pd.Categorical(["1.5", "2.0", "1.5"]), [1.5, 2.0, 1.5]),
    "nullable": (pd.array([1, None, 3], dtype="Int64"), [1.0, np.nan, 3.0]),
}


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_read_whatever_they_arrive_as(kind, has_table):
    """In a table of numbers only, too."""
    values, expected = NUMBERS[kind]
    frame = pd.DataFrame({"x": 1000.0 * Z, "z": Z})  # 1e3 lies in its range
    if has_table:
        frame["g"] = repeated(["a", "b", "c"])
    model = BayesianMLPRegressor((), n_modes=1, n_members=1, random_state=0)
    model.fit(frame, 3.0 * Z)
    question = frame.iloc[:3].assign(x=values)
    numbers = frame.iloc[:3].assign(x=expected)
    np.testing.assert_array_equal(model.predict(question), model.predict(numbers))
    for typo, hint in (("12,5", "row 1. Decimals need a point"), ("abc", "row 1"), ("1_0", "")):
        wrong = question.assign(x=pd.Series([1.0, typo, 2.0], dtype=object))
        with pytest.raises(
            ValueError, match=f"column 'x', as it did in fit, got '{typo}' in {hint}"
        ):
            model.predict(wrong)
    with pytest.raises(ValueError, match="column 'x' of X holds dates, but it held none in fit"):
        model.predict(question.assign(x=pd.Timestamp("2020-02-20")))


def test_booleans_are_read_from_their_text():
    frame = pd.DataFrame({"b": np.arange(N) % 3 == 0, "z": Z})
    model = BayesianMLPRegressor((), n_modes=1, n_members=1, random_state=0)
    model.fit(frame, Z + frame["b"])
    expected = model.predict(frame)
    for b in (frame["b"].astype(str), frame["b"].astype(str).str.lower(), frame["b"] * 1,
              frame["b"].astype(object)):  # fmt: skip
        np.testing.assert_array_equal(model.predict(frame.assign(b=b)), expected)


def test_a_categorical_dtype_is_categorical():
    """Integer codes with effects that no line has; estimators of numbers refuse them."""
    rng = np.random.default_rng(0)
    codes = rng.integers(25, size=500)
    effects = rng.normal(size=25)
    frame = pd.DataFrame({"g": pd.Categorical(codes), "z": rng.normal(size=500)})
    y = effects[codes] + 0.1 * rng.normal(size=500)
    model = PredictiveStackingRegressor([("l", "linear")], random_state=0).fit(frame, y)
    assert np.abs(model.predict(frame) - effects[codes]).max() < 0.2
    np.testing.assert_array_equal(model.predict(csv(frame)), model.predict(frame))
    with pytest.raises(ValueError, match=r"categorical dtype \(in 'g'\). Encode categories"):
        BayesianLinearRegressor().fit(frame, y)


ESTIMATORS = {
    "linear": PredictiveStackingRegressor([("l", "linear")], random_state=0),
    "trees": PredictiveStackingRegressor([("l", "linear"), ("f", "trees")], random_state=0),
    "pool": BayesianMLPRegressor((2,), n_modes=1, n_members=1, random_state=0),
}


@pytest.fixture(scope="module")
def towns():
    """Sixteen towns with effects of their own, a few rows without a town at 9."""
    rng = np.random.default_rng(1)
    town = rng.integers(16, size=400)
    effects = 2.0 * rng.normal(size=16)
    y = effects[town] + 0.1 * rng.normal(size=400)
    frame = pd.DataFrame({"town": [f"t{i:02}" for i in town], "z": rng.normal(size=400)})
    frame.loc[:3, "town"] = None
    y[:4] = 9.0
    return frame, y, effects


@pytest.mark.long
@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_unknown_level_is_any_of_the_known_ones(name, towns, tmp_path):
    frame, y, effects = towns
    model = ESTIMATORS[name].fit(frame, y)
    asked = frame[4:9].assign(town=["t00", "new", "t01", "other", "t02"])
    with pytest.warns(UserWarning, match=r"'town' of X holds levels .* such as 'new' \(2 rows\)"):
        mean, std = model.predict(asked, return_std=True)
    levels = pd.DataFrame({"town": sorted(set(frame["town"].dropna())), "z": asked["z"].iloc[1]})
    known, known_std = model.predict(levels, return_std=True)
    # The law is the mixture over levels, by the laws of total expectation and variance.
    assert mean[1] == pytest.approx(known.mean(), abs=1e-6)
    assert std[1] == pytest.approx(np.sqrt((known_std**2).mean() + known.var()), rel=1e-6)
    assert std[1] > 0.8 * effects.std()
    # Other rows, the order of the rows, and blocks don't matter.
    rows = [0, 2, 4]
    np.testing.assert_allclose(mean[rows], model.predict(asked.iloc[rows]), rtol=1e-6)
    with pytest.warns(UserWarning, match="1 row"):
        assert model.predict(asked.iloc[[1]])[0] == pytest.approx(mean[1], rel=1e-6)
    with pytest.warns(UserWarning, match="levels that fit hasn't seen"):  # noqa: PT031
        median = model.predict_quantiles(asked, [0.1, 0.9])
        density = model.log_predictive_density(asked, np.zeros(5))
        functions = model.sample_f(asked, 2000)
        drawn = model.sample_y(asked, 2000)
    assert median[1, 1] - median[1, 0] > 2.0 * (median[0, 1] - median[0, 0])
    by_level = model.log_predictive_density(levels, np.zeros(16))
    assert density[1] == pytest.approx(np.log(np.mean(np.exp(by_level))), abs=1e-6)
    # Standard errors of 2,000 draws: of the mean sd / 45, of the standard deviation at most 1/30.
    assert functions[1].mean() == pytest.approx(mean[1], abs=4.0 * std[1] / 45.0)
    assert drawn[1].std() == pytest.approx(std[1], rel=0.15)
    alone = model.sample_f(asked.iloc[rows], 2000)
    np.testing.assert_allclose(functions[rows], alone, rtol=1e-5, atol=1e-5)
    save(model, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match="levels that fit hasn't seen"):
        again = load(tmp_path / "model.safetensors").predict(asked)
    np.testing.assert_allclose(again, mean, rtol=1e-6)


@pytest.fixture
def dishes():
    """A property of 45 dishes with names: 25 unique names, and two that ten rows have each."""
    rng = np.random.default_rng(4)
    names = [f"dish {i}" for i in range(25)] + ["soup", "salad"] * 10
    frame = pd.DataFrame({"name": names, "z": rng.normal(size=45)})
    y = 2.0 * frame["z"] + 3.0 * (frame["name"] == "soup") + 0.1 * rng.normal(size=45)
    return frame, y


def test_levels_of_single_rows_are_one_level(dishes):
    columns = Columns.from_table(read_table(dishes[0]))
    assert list(columns.get_feature_names_out()) == ["name_salad", "name_soup", "name_other", "z"]
    asked = pd.DataFrame({"name": ["soup", "dish 3", "new"], "z": 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding = columns.encode_with_alternatives(read_table(asked))
    np.testing.assert_array_equal(encoding.values[:, :3], [[0, 1, 0], [0, 0, 1], [0, 0, 1]])
    assert not encoding.is_open.any()
    # Four such rows tell too little.
    columns = Columns.from_table(read_table(dishes[0][21:]))
    assert len(columns.get_feature_names_out()) == 7


def test_new_levels_have_a_place_in_the_order_of_many_levels():
    """Names such as "gray 40" have an order that may mean something."""
    names = [f"gray {i}" for i in range(10, 90, 2)] + ["red"] * 20
    frame = pd.DataFrame({"name": names, "z": np.arange(60.0)})
    columns = Columns.from_table(read_table(frame))
    assert list(columns.get_feature_names_out()) == ["name_red", "name_rank", "name_other", "z"]
    asked = pd.DataFrame({"name": ["gray 40", "gray 41", "gray 42", "a", "z"], "z": 0.0})
    encoding = columns.encode_with_alternatives(read_table(asked))
    expected = np.array([15.0, 15.5, 16.0, -0.5, 40.5]) / 41.0
    np.testing.assert_allclose(encoding.values[:, 1], expected)
    np.testing.assert_array_equal(encoding.values[:, 2], 1.0)


@pytest.mark.parametrize("unit", ["", " kg"])
@pytest.mark.filterwarnings("ignore:.*holds numbers as text")
def test_numbers_as_text_keep_their_levels(unit):
    values = [f"{value:.2f}{unit}" for value in np.linspace(0.0, 1.0, 40)]
    columns = Columns.from_table(read_table(pd.DataFrame({"size": values})))
    assert not columns.columns[0].has_other


def test_new_levels_are_predicted_as_those_of_single_rows(dishes, tmp_path):
    frame, y = dishes
    model = PredictiveStackingRegressor([("l", "linear")], random_state=0).fit(frame, y)
    asked = pd.DataFrame({"name": ["new", "dish 7", "soup"], "z": 0.5})
    mean, std = model.predict(asked, return_std=True)
    np.testing.assert_allclose(mean, [1.0, 1.0, 4.0], atol=0.15)
    np.testing.assert_allclose(std, 0.1, atol=0.05)
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors").predict(asked)
    np.testing.assert_allclose(again, mean, rtol=1e-12)
    # A name that is spelled like a known one is a mistake.
    with pytest.warns(UserWarning, match=r"such as 'Soup' .* single row.* level 'soup' only by"):
        model.predict(asked.assign(name="Soup"))


def test_a_value_of_its_own_in_every_row_teaches_nothing(dishes):
    frame, y = dishes[0][:25], dishes[1][:25]
    stack = PredictiveStackingRegressor([("l", "linear")], random_state=0)
    with pytest.warns(UserWarning, match="column 'name' of X has a value of its own in every row"):
        named = stack.fit(frame, y).predict(frame)
    np.testing.assert_array_equal(named, stack.fit(frame[["z"]], y).predict(frame[["z"]]))


def test_missing_where_no_training_row_was_is_any_level(towns):
    frame, y, _ = towns
    model = PredictiveStackingRegressor([("l", "linear")], random_state=0).fit(frame[4:], y[4:])
    levels = pd.DataFrame({"town": sorted(set(frame["town"].dropna())), "z": 0.0})
    missing = levels[:1].assign(town=None)
    assert model.predict(missing)[0] == pytest.approx(model.predict(levels).mean(), abs=1e-6)


@pytest.mark.parametrize("member", ["linear", "trees"])
def test_covariances_of_unknown_levels_are_refused(member):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"town": ["A", "B"] * 10, "size": rng.normal(size=20)})
    stack = PredictiveStackingRegressor([("one", member)], random_state=0)
    stack.fit(table, table["size"] + rng.normal(size=20))
    query = table[:3].assign(town=["A", "nowhere", "B"])
    with (
        pytest.warns(UserWarning, match="nowhere"),
        pytest.raises(ValueError, match=r"return_cov=True needs rows .* row 1 of X has another"),
    ):
        stack.predict(query, return_cov=True)


def test_classes_of_an_unknown_level_are_those_of_all_levels():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": rng.choice(list("abc"), 90), "z": rng.normal(size=90)})
    y = frame["g"].map({"a": "yes", "b": "no", "c": "no"})
    model = PredictiveStackingClassifier([("l", "linear")], random_state=0).fit(frame, y)
    levels = pd.DataFrame({"g": list("abc"), "z": 0.0})
    asked = pd.DataFrame({"g": ["a", "d"], "z": 0.0})
    with pytest.warns(UserWarning, match="levels that fit hasn't seen"):  # noqa: PT031
        proba = model.predict_proba(asked)
        functions = model.sample_f(asked, 500)
    np.testing.assert_allclose(proba[1], model.predict_proba(levels).mean(axis=0))
    assert functions[1, 0].mean() == pytest.approx(proba[1, 0], abs=0.1)


TABLE = pd.DataFrame({7: Z, 5: np.arange(N) % 5 * 1.0, 2: repeated(["a", "b", "c"])})


@pytest.mark.parametrize("columns", [[7, 5], [7, 5, 2]])
def test_columns_with_integer_names_are_compared(columns):
    frame = TABLE[columns]
    models = [BayesianMLPRegressor((), n_modes=1, n_members=1, random_state=0)]
    if len(columns) == 2:
        models += [BayesianLinearRegressor(), BayesianLinearClassifier()]
    for model in models:
        is_classifier = isinstance(model, BayesianLinearClassifier)
        model.fit(frame, np.arange(N) // 2 % 2 if is_classifier else Z**2)
        model.predict(frame)
        with pytest.raises(ValueError, match=r"feature names of X should match .* in the order"):
            model.predict(frame[columns[::-1]])
        with pytest.raises(ValueError, match=r"unseen in fit: \['9'\], missing: \['7'\]"):
            model.predict(frame.rename(columns={7: 9}))
        with pytest.raises(ValueError, match="features"):
            model.predict(frame.assign(**{"more": 1.0}).set_axis([*columns, 9], axis=1))
        with pytest.raises(ValueError, match="features"):
            model.predict(frame[columns[:-1]])


def test_a_category_of_dates_is_refused_by_name():
    dates = pd.Series(pd.Categorical(pd.date_range("2020-01-01", periods=N)))
    frame = pd.DataFrame({"when": dates, "z": Z})
    for model in (ESTIMATORS["linear"], ESTIMATORS["pool"]):
        with pytest.raises(ValueError, match="'when'"):
            model.fit(frame, Z)


def test_weights_of_any_dtype_are_read():
    frame = pd.DataFrame({"z": Z, "g": repeated(["a", "b", "c"])})
    model = PredictiveStackingRegressor([("l", "linear")], random_state=0)
    weight = np.arange(N) % 3
    expected = model.fit(frame, 2.0 * Z, weight).predict(frame)
    for same in (weight.astype(object), pd.Series([Decimal(int(w)) for w in weight]),
                 pd.Series(weight, dtype="Int64")):  # fmt: skip
        np.testing.assert_array_equal(model.fit(frame, 2.0 * Z, same).predict(frame), expected)
    with pytest.raises(ValueError, match="sample_weight must hold numbers"):
        model.fit(frame, 2.0 * Z, np.array(["heavy"] * N, dtype=object))


def test_lists_in_a_column_of_levels_are_named():
    levels = Levels(np.array(["a", "b"], dtype=object))
    values = np.empty(2, dtype=object)
    values[:] = ["a", [1, 2]]
    with pytest.raises(TypeError, match=r"column 'town' of X holds a list in row 1.*Give each"):
        levels.codes("town", values)


# Numbers that are 0 or 1 apart from missing ones, other numbers, and Booleans.
TYPES = pd.DataFrame(
    {"zero": np.where(np.abs(Z) > 0.5, np.nan, Z > 0.0), "dose": 3.0 * Z, "flag": Z > 0.0}
)


@pytest.mark.parametrize("model", [BayesianLinearRegressor(), ESTIMATORS["linear"], "text"])
def test_booleans_and_numbers_in_place_of_each_other_are_warned_about(model, tmp_path):
    frame = TYPES.assign(zero=TYPES["zero"].fillna(1.0))
    if model == "text":
        model = ESTIMATORS["linear"]
        frame = TYPES.assign(g=repeated(["a", "b"]))
    save(model.fit(frame, np.cos(9.0 * Z)), tmp_path / "model")
    for fitted in (model, load(tmp_path / "model")):
        with pytest.warns(UserWarning, match=r"holds Booleans in columns .* as 0 and 1: 'dose'\."):
            fitted.predict(frame.assign(dose=Z > 0.0))
        with pytest.warns(UserWarning, match=r"column 'flag' of X held Booleans.* 2\.0 in row 1"):
            fitted.predict(frame.assign(flag=np.arange(N) * 2.0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fitted.predict(frame.assign(zero=Z > 0.0, flag=(Z > 0.0) * 1))


@pytest.mark.parametrize(
    ("levels", "remedy"),
    [
        (["a", "b", "a "], "column.str.strip(), if"),
        (["a", "b", "A"], "column.str.lower(), if"),
        (["a a", "b", "a  A"], r"column.str.replace(r'\s+', ' ', regex=True).str.lower(), if"),
    ],
)
def test_levels_that_differ_by_case_or_spaces_are_warned_about(levels, remedy):
    model = ESTIMATORS["linear"]
    frame = pd.DataFrame({"g": repeated(levels), "z": Z})
    with pytest.warns(UserWarning, match="column 'g' of X holds the levels .* and are distinct"):
        model.fit(frame, 2.0 * Z)
    two = pd.DataFrame({"g": repeated(levels[:2]), "z": Z})
    model.fit(two, 2.0 * Z)
    words = re.escape(f"{levels[0]!r} only by case or spaces") + ".*" + re.escape(remedy)
    with pytest.warns(UserWarning, match=words):
        model.predict(two.assign(g=["q", *levels[2:] * (N - 1)]))
