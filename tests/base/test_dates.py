"""Dates in tables: formats, dtypes, zones, calendar parts, missing values and mistakes."""

import io

import numpy as np
import pandas as pd
import pytest

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    PredictiveStackingRegressor,
    distill,
    load,
    save,
)
from skbayes_sym.base.columns import Columns, as_table
from skbayes_sym.numerics.dates import choose_day_order, format_days, parse_text
from skbayes_sym.numerics.tables import read_table
from skbayes_sym.student import Student

N = 60
HOURS = pd.Series(pd.date_range("2020-01-01", periods=N, freq="37h"))
DAYS = pd.Series(pd.date_range("2020-01-20", periods=N))


def read_csv(frame, **options):
    """The frame as it comes back from a file."""
    return pd.read_csv(
        io.StringIO(frame.to_csv(index=False)), float_precision="round_trip", **options
    )


def encode(training, question=None):
    """Encoded columns of a table."""
    columns = Columns.from_table(as_table(training))
    return columns.encode(read_table(training if question is None else question))


TRAINING = {
    "datetime64": HOURS,
    "whole days": DAYS,
    "zone": HOURS.dt.tz_localize("Europe/Berlin"),
    "UTC": HOURS.dt.tz_localize("UTC"),
    "ISO text": HOURS.astype(str),
    "German text": HOURS.dt.strftime("%d.%m.%Y %H:%M"),
    "American text": HOURS.dt.strftime("%m/%d/%Y %I:%M %p"),
    "British text": HOURS.dt.strftime("%d/%m/%Y %H:%M:%S"),
    "names of months": DAYS.dt.strftime("%d %b %Y"),
    "datetime objects": pd.Series([t.to_pydatetime() for t in HOURS], dtype=object),
    "date objects": pd.Series([t.date() for t in DAYS], dtype=object),
    "missing": HOURS.where(np.arange(N) % 5 > 0),
    "rarely missing": HOURS.where(np.arange(N) != 7),
}

ROUTES = {
    "csv": read_csv,
    "objects": lambda f: f.astype({"d": object}),
    "array": lambda f: f.astype(object).to_numpy(),
    "rows": lambda f: f.astype(object).to_numpy().tolist(),
    "category of the csv": lambda f: read_csv(f).astype({"d": "category"}),
    "string": lambda f: read_csv(f).astype({"d": "string"}),
    "polars": lambda f: pytest.importorskip("polars").from_pandas(f),
    "pyarrow table": lambda f: pytest.importorskip("pyarrow").Table.from_pandas(
        f, preserve_index=False),
    # A copy, since the conversion by pandas 3.0 overwrites missing dates of the frame.
    "pyarrow dtype": lambda f: (pytest.importorskip("pyarrow"), f.copy().convert_dtypes(
        dtype_backend="pyarrow"))[1],
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("training", TRAINING)
def test_dates_are_the_same_by_every_route(training, route):
    """Both as training rows and as rows of a prediction."""
    frame = pd.DataFrame({"d": TRAINING[training], "z": np.linspace(-1.0, 1.0, N)})
    expected = encode(frame)
    table = ROUTES[route](frame)
    np.testing.assert_array_equal(encode(frame, table), expected)
    if not route.startswith("category"):
        np.testing.assert_array_equal(encode(table), expected)


@pytest.mark.parametrize("training", ["German text", "British text", "datetime64", "ISO text"])
def test_text_and_datetime_are_read_whichever_was_in_training(training):
    frame = pd.DataFrame({"d": TRAINING[training]})
    expected = encode(frame)
    for question in (HOURS, HOURS.astype(str), HOURS.dt.strftime("%d %B %Y %H:%M")):
        np.testing.assert_array_equal(encode(frame, pd.DataFrame({"d": question})), expected)


FORMATS = {
    "2020-03-01": "2020-03-01",
    "2020-03-01T14:30:00.5Z": "2020-03-01 14:30:00",
    "2020-03-01 14:30+01:00": "2020-03-01 14:30:00",
    "2020/3/1": "2020-03-01",
    "2020-03": "2020-03-01",
    "1 Mar 2020": "2020-03-01",
    "1-Mar-70": "1970-03-01",
    "March 1st, 2020 2:05 pm": "2020-03-01 14:05:00",
    "Sun, 01 Mar 2020 12:00:00 GMT": "2020-03-01 12:00:00",
    "Mar-2020": "2020-03-01",
    "12/31/99": "1999-12-31",
    "12/31/2020 12:15 AM": "2020-12-31 00:15:00",
}


@pytest.mark.parametrize("text", FORMATS)
def test_formats(text):
    assert format_days(parse_text(text).days(day_first=False)) == FORMATS[text]


@pytest.mark.parametrize(
    "text", ["20200301", "1.2.20", "10:30", "2020", "0012-05", "red 3", "1-2", "3/4", "12.5.2020a",
             "192.168.0.1", "2020-03-01 25:00", "1/2/2020 13:00 pm", "5 Xyz 2020"],
)  # fmt: skip
def test_other_texts_are_no_dates(text):
    date = parse_text(text)
    assert date is None or np.isnan(date.days(day_first=False))


def test_a_number_above_12_decides_the_order():
    assert choose_day_order(["01/02/2020", "13/02/2020"]) == (True, "")
    assert choose_day_order(["01/02/2020", "02/13/2020"]) == (False, "")
    assert choose_day_order(["01.02.2020", "02.03.2020"]) == (True, "")
    assert choose_day_order(["01/01/2020", "02/02/2020"]) == (False, "")


@pytest.mark.parametrize(
    ("texts", "month"),
    [(["01/02/2020", "02/03/2020"], 1), (["01/02/2020", "01/03/2020"], 2),
     (["02-01-2020", "03-01-2020"], 2)],
)  # fmt: skip
def test_an_undecided_order_is_warned_of(texts, month):
    """Month first, unless the first number is always the same, as in monthly data."""
    frame = pd.DataFrame({"day": texts * 10})
    with pytest.warns(UserWarning, match=r"column 'day' of X .* none has a day above 12"):
        columns = Columns.from_table(as_table(frame))
    expected = (
        np.datetime64(f"2020-{month:02d}", "D") if month == 2 else np.datetime64("2020-01-02")
    )
    assert columns.columns[0].date.reference == expected.astype(int)


def test_zones_are_converted_to_the_clock_of_training():
    """The same instants in another zone are the same rows; dates without a zone are local."""
    frame = pd.DataFrame({"d": TRAINING["zone"]})
    expected = encode(frame)
    other = TRAINING["zone"].dt.tz_convert("Asia/Tokyo")
    np.testing.assert_allclose(encode(frame, pd.DataFrame({"d": other})), expected, atol=1e-9)
    winter = HOURS < "2020-03-29"
    np.testing.assert_array_equal(
        encode(frame, pd.DataFrame({"d": HOURS[winter]})), expected[winter]
    )


@pytest.mark.parametrize(
    ("dates", "parts"),
    [
        (pd.date_range("2020-01-01", periods=13), ()),
        (pd.date_range("2020-01-01", periods=15), ("weekday",)),
        (pd.date_range("2020-01-01", periods=729), ("weekday",)),
        (pd.date_range("2020-01-01", periods=740), ("month", "weekday")),
        (pd.date_range("2015-01-01", periods=60, freq="MS"), ("month",)),
        (pd.date_range("2020-01-06", periods=20, freq="7D"), ()),
        (pd.date_range("2020-01-01", periods=49, freq="h"), ("hour",)),
        (pd.date_range("2020-01-01", periods=9, freq="YS"), ()),
    ],
)
def test_calendar_parts_are_those_whose_cycle_repeats(dates, parts):
    """Two cycles at least; the weekday of the first of a month is none."""
    columns = Columns.from_table(as_table(pd.DataFrame({"d": dates})))
    assert columns.columns[0].date.parts == parts


def test_parts_repeat_after_a_cycle():
    days = pd.Series(pd.date_range("2018-01-01", "2021-12-31 23:00", freq="5h"))
    columns = Columns.from_table(as_table(pd.DataFrame({"d": days})))
    names = columns.get_feature_names_out().tolist()
    assert names[:3] == ["d_days", "d_month_sin", "d_month_cos"]
    assert names[3:] == [
        *[f"d_weekday_{day}" for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday",
                                         "Saturday", "Sunday")],
        "d_hour_sin", "d_hour_cos",
    ]  # fmt: skip
    encoded = dict(zip(names, columns.encode(read_table(pd.DataFrame({"d": days}))).T, strict=True))
    for i in range(7):
        name = f"d_weekday_{days.dt.day_name()[i]}"
        np.testing.assert_array_equal(encoded[name], days.dt.day_name() == days.dt.day_name()[i])
    np.testing.assert_allclose(encoded["d_hour_sin"], np.sin(np.pi * days.dt.hour / 12), atol=1e-9)
    passed = (days.dt.day - 1) / days.dt.days_in_month
    angle = 2 * np.pi * (days.dt.month - 1 + passed) / 12
    np.testing.assert_allclose(encoded["d_month_cos"], np.cos(angle), atol=1e-9)


def test_missing_dates():
    columns = Columns.from_table(as_table(pd.DataFrame({"d": TRAINING["missing"]})))
    encoded = columns.encode(
        read_table(pd.DataFrame({"d": [pd.NaT, "", None, "NaT", "2020-01-09"]}))
    )
    assert columns.get_feature_names_out()[-1] == "d_missing"
    np.testing.assert_array_equal(encoded[:, -1], [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(encoded[:4, 0], columns.columns[0].median)
    np.testing.assert_allclose(encoded[:4, 1:8], 1.0 / 7.0)


def test_mistakes_name_column_row_and_value():
    frame = pd.DataFrame({"day": DAYS.astype(str)})
    typo = frame.copy()
    typo.loc[17, "day"] = "2020-02-31"
    for table in (typo, frame.assign(day=frame["day"].where(DAYS.index != 17, "unknown"))):
        with pytest.raises(ValueError, match=r"column 'day' of X holds dates, but '.*' in row 17"):
            as_table(table) and Columns.from_table(as_table(table))
        with pytest.raises(ValueError, match=r"column 'day' of X .* in row 17 isn't a date"):
            encode(frame, table)
    with pytest.raises(ValueError, match=r"42 in row 0 isn't a date\. Give dates"):
        encode(frame, pd.DataFrame({"day": [42]}))
    british = pd.DataFrame({"day": DAYS.dt.strftime("%d/%m/%Y")})
    american = pd.DataFrame({"day": ["12/31/2020"]})
    with pytest.raises(ValueError, match="in row 0 isn't a date with the day first, as in"):
        encode(british, american)


def test_words_among_which_dates_are_rare_stay_categories():
    words = pd.DataFrame({"note": ["red", "blue", "2020-01-01", "green"] * 5})
    assert Columns.from_table(as_table(words)).columns[0].kind == "categorical"
    declared = pd.DataFrame({"d": DAYS.astype(str).repeat(2)}).astype("category")
    assert Columns.from_table(as_table(declared)).columns[0].kind == "categorical"


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        PredictiveStackingRegressor([("a", "linear"), ("b", "trees")], random_state=0),
        BayesianMLPRegressor((2,), n_modes=1, n_members=1, random_state=0),
        BayesianMLPClassifier((2,), n_modes=1, n_members=1, random_state=0),
    ],
    ids=["stack", "pool", "classifier"],
)
def test_models_read_dates_and_keep_them_in_files(model, tmp_path):
    rng = np.random.default_rng(0)
    order = rng.permutation(120)
    dates = pd.Series(pd.date_range("2020-01-20", periods=120))[order].reset_index(drop=True)
    frame = pd.DataFrame({"day": dates.dt.strftime("%d/%m/%Y"), "z": rng.normal(size=120)})
    effect = 3.0 * (dates.dt.dayofweek >= 5) + 0.01 * order
    y = effect + 0.1 * rng.normal(size=120)
    if hasattr(model, "predict_proba"):
        y = y > 1.5
    model.fit(frame, y)
    assert model.summary_.endswith("column 'day': days since 2020-01-20, weekday")
    assert model.score(frame, y) > 0.9
    question = frame.assign(day=dates)[:9]
    expected = model.predict(question)
    np.testing.assert_array_equal(model.predict(frame[:9]), expected)
    np.testing.assert_array_equal(model.predict(read_csv(question)), expected)
    save(model, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(question), expected)


@pytest.mark.slow
def test_students_read_dates(tmp_path):
    """As their teacher does, also beyond the last one, and from files without torch."""
    rng = np.random.default_rng(0)
    dates = pd.Series(pd.date_range("2020-01-20", periods=150))
    frame = pd.DataFrame({"day": dates.dt.strftime("%d/%m/%Y"), "z": rng.normal(size=150)})
    y = 3.0 * (dates.dt.dayofweek >= 5) + 0.02 * np.arange(150) + 0.2 * rng.normal(size=150)
    model = PredictiveStackingRegressor([("a", "linear"), ("b", "trees")], random_state=0)
    model.fit(frame[:120], y[:120])
    student = distill(model, frame[:120], random_state=0)
    assert student.kl_to_teacher_ < 0.1
    student.save(tmp_path / "student")
    read = Student.load(tmp_path / "student")
    question = frame.assign(day=dates)[110:]
    with pytest.warns(UserWarning, match="beyond the dates"):
        expected = model.predict(question)
    np.testing.assert_array_equal(read.predict(question), student.predict(frame[110:]))
    np.testing.assert_allclose(read.predict(question), expected, atol=0.4)
    with pytest.raises(ValueError, match="column 'day' of X holds dates, but 'soon' in row 0"):
        student.predict(frame[:1].assign(day="soon"))


def test_estimators_of_numbers_refuse_dates_by_name():
    frame = pd.DataFrame({"day": DAYS})
    with pytest.raises(ValueError, match=r"such as dates \(in 'day'\)\. Give numbers: days since"):
        BayesianLinearRegressor().fit(frame, np.arange(60.0))


@pytest.mark.parametrize("far", ["2200-01-01", "0202-03-04", "1970-01-01"])
def test_training_dates_far_from_the_others_are_warned_about(far):
    days = pd.date_range("2020-01-01", periods=40, freq="20D").strftime("%Y-%m-%d").to_list()
    model = PredictiveStackingRegressor([("a", "linear")], random_state=0)
    frame = pd.DataFrame({"day": days, "z": np.random.default_rng(0).normal(size=40)})
    model.fit(frame, 2.0 * frame["z"])
    frame.loc[7, "day"] = far
    words = f"'day' of X holds dates far from all others in 1 row, such as {far} in row 7"
    with pytest.warns(UserWarning, match=words):
        model.fit(frame, 2.0 * frame["z"])


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/St_Johns"])
def test_the_same_moments_on_another_clock_are_inside_the_range(zone):
    days = pd.Series(pd.date_range("2021-03-01", periods=60, freq="9D", tz="Europe/Berlin"))
    frame = pd.DataFrame({"day": days, "z": np.random.default_rng(0).normal(size=60)})
    model = PredictiveStackingRegressor([("a", "linear")], random_state=0).fit(
        frame, 2.0 * frame["z"]
    )
    moved = frame.assign(day=days.dt.tz_convert(zone))
    np.testing.assert_array_equal(model.predict(moved), model.predict(frame))
