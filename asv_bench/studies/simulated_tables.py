"""Tables made up after well-known ones: their size, their kind of columns, noise and bends."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3

Rows = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int], Rows]


class Table(NamedTuple):
    """How many rows are learned from, and how more of them are drawn."""

    n_rows: int
    draw: Draw


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _friedman(make: Any, noise: float) -> Draw:
    return lambda rng, n: make(n, noise=noise, random_state=_seed(rng))


def _skewed(rng: np.random.Generator, n: int, strength: float) -> np.ndarray:
    """Positive, with a long tail."""
    return np.exp(strength * rng.normal(size=n))


def _suburbs(rng: np.random.Generator, n: int) -> Rows:
    """Prices by thirteen features of a place, cut off at 50."""
    centre = rng.beta(1.5, 2.0, n)  # 1 in the middle of the town
    wealth = rng.normal(size=n) - centre
    crime = _skewed(rng, n, 1.5) * np.exp(2.0 * centre - 1.0)
    zoned = np.where(rng.random(n) < 0.27, 100.0 * rng.beta(1.0, 2.0, n), 0.0)
    industry = 5.0 + 18.0 * centre + 3.0 * rng.normal(size=n)
    river = (rng.random(n) < 0.07).astype(float)
    oxides = 0.4 + 0.35 * centre + 0.04 * rng.normal(size=n)
    rooms = 6.3 + 0.45 * wealth + 0.4 * rng.normal(size=n)
    age = np.clip(40.0 + 60.0 * centre + 20.0 * rng.normal(size=n), 3.0, 100.0)
    distance = 1.2 + 5.0 * (1.0 - centre) + 0.7 * _skewed(rng, n, 0.5)
    roads = np.where(centre > 0.6, 24.0, rng.integers(1, 9, n)).astype(float)
    tax = 250.0 + 15.0 * roads + 40.0 * rng.normal(size=n)
    pupils = 18.0 - wealth + 1.5 * rng.normal(size=n)
    poor = np.exp(2.3 - 0.45 * wealth + 0.3 * centre + 0.2 * rng.normal(size=n))
    value = (
        18.0 + 5.0 * np.maximum(rooms - 6.3, 0.0) ** 1.6 + 12.0 * np.exp(-poor / 7.0)
        - 6.0 * oxides * np.log1p(crime) / 2.0 + 2.5 * river - 0.5 * (pupils - 18.0)
        - 1.2 * np.log(distance) + 4.0 * (distance < 2.2) - 0.01 * (tax - 300.0)
    )  # fmt: skip
    value *= np.exp(0.1 * rng.standard_t(4, n))
    columns = [crime, zoned, industry, river, oxides, rooms, age, distance, roads, tax, pupils]
    columns += [100.0 * rng.beta(8.0, 1.0, n), poor]
    return np.column_stack(columns), np.clip(value, 5.0, 50.0)


def _cars(rng: np.random.Generator, n: int) -> Rows:
    """Miles a gallon by seven features of a car, several of them nearly one."""
    size = rng.choice([-1.0, -0.9, 0.3, 1.5], n) + 0.2 * rng.normal(size=n)
    year = rng.integers(70, 83, n).astype(float)
    cylinders = np.select([size < -0.4, size < 0.9], [4.0, 6.0], 8.0)
    displacement = 190.0 + 95.0 * size + 15.0 * rng.normal(size=n)
    power = 100.0 + 33.0 * size + 12.0 * rng.normal(size=n)
    weight = 2900.0 + 750.0 * size + 200.0 * rng.normal(size=n)
    pace = 15.5 - 0.04 * (power - 100.0) + 1.8 * rng.normal(size=n)
    origin = np.where(size > 0.0, 1.0, rng.integers(1, 4, n))
    miles = 55_000.0 / weight * (1.0 + 0.03 * (year - 76.0)) + 0.8 * (origin == 3) + 3.0
    miles *= np.exp(0.1 * rng.normal(size=n))
    X = np.column_stack([cylinders, displacement, power, weight, pace, year, origin])
    return X, np.round(miles, 1)


def _wine(rng: np.random.Generator, n: int) -> Rows:
    """Marks from three to eight, of which eleven measurements say a third."""
    z = rng.normal(size=(n, 4)) @ rng.normal(size=(4, 11)) * 0.5 + rng.normal(size=(n, 11))
    X = np.exp(np.array([0.2, 0.3, 0.6, 0.5, 0.3, 0.6, 0.7, 0.002, 0.05, 0.25, 0.1]) * z)
    quality = 0.3 * z[:, 10] - 0.25 * z[:, 1] + 0.2 * z[:, 9] - 0.15 * np.maximum(z[:, 6], 0.0)
    quality += 0.1 * z[:, 10] * z[:, 9] + 0.62 * rng.normal(size=n)
    return X, np.clip(np.round(5.6 + quality), 3.0, 8.0)


def _fires(rng: np.random.Generator, n: int) -> Rows:
    """Logarithms of burnt areas: half of them none, and hardly anything says which."""
    X = rng.normal(size=(n, 12))
    X[:, :2] = rng.integers(1, 10, (n, 2))
    X[:, 11] = (rng.random(n) < 0.02) * _skewed(rng, n, 1.0)
    burnt = rng.random(n) < 1.0 / (1.0 + np.exp(-0.3 * X[:, 8] - 0.2 * X[:, 5]))
    return X, np.where(burnt, np.log1p(_skewed(rng, n, 1.5) * np.exp(0.2 * X[:, 8] + 1.0)), 0.0)


def _abalone(rng: np.random.Generator, n: int) -> Rows:
    """Rings of shells, whose seven measures follow one size."""
    age = rng.gamma(9.0, 1.2, n)
    size = 1.0 - np.exp(-0.22 * age) + 0.08 * rng.normal(size=n)
    size = np.clip(size, 0.15, 1.3)
    lengths = [c * size * (1.0 + 0.04 * rng.normal(size=n)) for c in (0.6, 0.47, 0.16)]
    whole = 1.1 * size**3 * np.exp(0.1 * rng.normal(size=n))
    parts = [c * whole * np.exp(0.15 * rng.normal(size=n)) for c in (0.43, 0.22)]
    shell = 0.29 * whole * np.exp(0.03 * (age - 10.0) + 0.1 * rng.normal(size=n))
    sex = np.where(age < 8.0, 0, rng.integers(1, 3, n)).astype(float)
    return np.column_stack([sex, *lengths, whole, *parts, shell]), np.round(age)


def _arm(rng: np.random.Generator, n: int) -> Rows:
    """Distance of the end of an arm of eight joints, measured with noise."""
    angles = rng.uniform(-np.pi / 4, np.pi / 4, (n, 8))
    turned = np.cumsum(angles, axis=1)
    end = np.stack([np.cos(turned).sum(1), np.sin(turned).sum(1)]) / 8.0
    distance = np.hypot(end[0] - 0.1, end[1] - 0.1)
    return angles, distance + 0.03 * rng.normal(size=n)


def _plant(rng: np.random.Generator, n: int) -> Rows:
    """Output of a power plant by weather: nearly a line, a gentle bend, noise with a tail."""
    heat = rng.uniform(2.0, 36.0, n)
    vacuum = 30.0 + 1.2 * heat + 8.0 * rng.normal(size=n)
    pressure = 1013.0 - 0.35 * (heat - 19.0) + 4.5 * rng.normal(size=n)
    moist = np.clip(98.0 - 1.2 * heat + 11.0 * rng.normal(size=n), 25.0, 100.0)
    mean = 493.0 - 2.3 * heat + 0.018 * (heat - 19.0) ** 2 - 0.2 * (vacuum - 54.0)
    mean += 0.06 * (pressure - 1013.0) - 0.12 * (moist - 73.0) + 4.0 * np.sin(vacuum / 6.0)
    X = np.column_stack([heat, vacuum, pressure, moist])
    return X, mean + 3.0 * rng.standard_t(6, n)


def _machine(rng: np.random.Generator, n: int) -> Rows:
    """A decay to be read off sixteen measurements of a turbine that has no noise."""
    speed = rng.integers(1, 10, n) / 9.0
    decay, other = 0.95 + 0.05 * rng.random(n), 0.975 + 0.025 * rng.random(n)
    load = speed**3
    heat = 450.0 + 550.0 * load / decay
    columns = [9.0 * speed, 27.0 * speed, 70_000.0 * load]
    columns += [1300.0 + 2000.0 * speed / other, 6_600.0 + 3_000.0 * speed * decay]
    columns += [a * load / decay**0.7 for a in (180.0, 180.0)]
    columns += [heat, 288.0 + 0.0 * speed, 540.0 + 240.0 * speed * other / decay]
    columns += [1.0 + 3.0 * load * decay, 0.998 + 0.0 * speed, 5.0 + 18.0 * speed / decay]
    columns += [1.0 + 0.04 * load / other, 100.0 * load / (decay * other), 2.0 * load / decay]
    return np.column_stack(columns), decay


def _growing(rng: np.random.Generator, n: int) -> Rows:
    """Six columns, a product, and noise that grows with the target."""
    X = rng.uniform(-1.0, 1.0, (n, 6))
    mean = np.exp(1.0 + X[:, 0] + 0.5 * X[:, 1] * X[:, 2] + 0.3 * np.sin(4.0 * X[:, 3]))
    return X, mean * np.exp(0.25 * rng.normal(size=n))


def _rents(rng: np.random.Generator, n: int) -> Rows:
    """Logarithms of prices of districts by where they are and what is earned there."""
    place = rng.uniform(0.0, 1.0, (n, 2))
    income = _skewed(rng, n, 0.45) * 3.5
    age = rng.integers(1, 53, n).astype(float)
    rooms, guests = 5.4 * _skewed(rng, n, 0.25), 2.9 * _skewed(rng, n, 0.3)
    people = 1_200.0 * _skewed(rng, n, 0.7)
    coast = np.exp(-6.0 * np.abs(place[:, 0] - 0.3 - 0.2 * np.sin(5.0 * place[:, 1])))
    city = np.exp(-40.0 * ((place - np.array([0.35, 0.7])) ** 2).sum(1))
    log_price = 0.7 * np.log(income) + 0.5 * coast + 0.5 * city - 0.15 * np.log(guests)
    log_price += 0.002 * age + 0.27 * rng.standard_t(5, n)
    return np.column_stack([place, income, age, rooms, 0.2 * rooms, people, guests]), log_price


def _folds(rng: np.random.Generator, n: int) -> Rows:
    """Distances of proteins from their shape: nine columns, two humps, much that nothing says."""
    z = rng.normal(size=(n, 5)) @ rng.normal(size=(5, 9)) + 0.3 * rng.normal(size=(n, 9))
    X = np.exp(0.3 * z)
    hump = np.tanh(z[:, 0] - 0.7 * z[:, 1] * z[:, 2])
    mean = 8.0 + 4.0 * hump + np.sin(2.0 * z[:, 3]) + 0.8 * z[:, 4]
    return X, np.clip(mean + rng.choice([1.5, 4.5], n) * rng.normal(size=n), 0.0, 21.0)


TABLES: dict[str, Table] = {
    "friedman1": Table(200, _friedman(make_friedman1, 1.0)),
    "friedman2": Table(200, _friedman(make_friedman2, 125.0)),
    "friedman3": Table(200, _friedman(make_friedman3, 0.1)),
    "suburbs": Table(450, _suburbs),
    "cars": Table(350, _cars),
    "fires": Table(465, _fires),
    "growing": Table(600, _growing),
    "wine": Table(1_440, _wine),
    "abalone": Table(3_700, _abalone),
    "arm": Table(7_400, _arm),
    "plant": Table(8_600, _plant),
    "machine": Table(10_740, _machine),
    "rents": Table(18_000, _rents),
    "folds": Table(40_000, _folds),
}
