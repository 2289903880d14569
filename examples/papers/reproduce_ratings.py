"""
Ratings: offsets, learned scales, five stars, new users
=======================================================

With files of MovieLens in ``data_home`` (``u1.base`` and ``u1.test`` to
``u5.base`` and ``u5.test``, ``u.data``, ``ratings.dat`` or ``ratings.csv``;
they are not shipped) those are read; ``u.user`` and ``u.item`` are the features
of 100k. ``--folds`` takes some of the five folds (random ones where the files have
none) and prints means. Otherwise ratings are simulated as
MovieLens-100k has them: offsets of users and films, factors, very unequal
counts, five stars; the figures that generated them are printed beside the
recovered ones.

Printed for every model: RMSE; log density of the star as given, in nats (for
models of numbers that of the interval nearest to the star, so that all are
probabilities of the same five outcomes); coverage of 90 % intervals; CPU
seconds. Baselines: the mean, biased SVD by stochastic gradient, alternating
least squares, and where they are installed the biased SVD of Surprise and of
cornac, and myFM. (implicit ranks what was clicked: it predicts no stars.)
Last come the CPU seconds that a fit takes to where cornac's ends, for both.

Run ``python reproduce_ratings.py [--data-home FOLDER] [--folds K ...] [--fast]``;
with ``--fast`` files are read only from a folder that is given. ``--models`` names
the lines that are wanted.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import SymVIMatrixFactorization, predictive
from skbayes_sym.factorization.solvers import VI, Gibbs


class Ratings(NamedTuple):
    """Entries and which of them are held out."""

    name: str
    users: np.ndarray
    films: np.ndarray
    stars: np.ndarray
    is_test: np.ndarray
    truth: dict[str, float]  # of simulated ones
    features: dict[str, pd.DataFrame]  # of users and films, if there are any

    def part(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Users, films and stars of some entries."""
        return self.users[where], self.films[where], self.stars[where]

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Held-out entries whose user and film were seen."""
        users, films, _ = self.part(~self.is_test)
        known = np.isin(self.users, users) & np.isin(self.films, films)
        return self.part(self.is_test & known)


def simulated(n_users: int, n_films: int, n_ratings: int, seed: int = 0) -> Ratings:
    """Offsets, eight factors of unequal size, log-normal activity and popularity."""
    rng = np.random.default_rng(seed)
    truth = {"user offsets": 0.42, "film offsets": 0.5, "factors": 0.38, "noise": 0.85}
    activity, popularity = rng.lognormal(0, 1, n_users), rng.lognormal(0, 1.5, n_films)
    chance = np.log(np.outer(activity, popularity)).ravel()
    chosen = np.argpartition(-(chance + rng.gumbel(size=chance.size)), n_ratings)[:n_ratings]
    users, films = np.divmod(chosen, n_films)
    a = truth["user offsets"] * rng.standard_normal(n_users)
    b = truth["film offsets"] * rng.standard_normal(n_films)
    size = np.linspace(1.4, 0.5, 8)
    u, v = rng.standard_normal((n_users, 8)) * size, rng.standard_normal((n_films, 8)) * size
    product = (u[users] * v[films]).sum(axis=1)
    product *= truth["factors"] / np.sqrt((size**4).sum())
    latent = 3.5 + a[users] + b[films] + product
    stars = np.clip(np.round(latent + truth["noise"] * rng.standard_normal(n_ratings)), 1, 5)
    rng_of_features = np.random.default_rng(1)  # a half of what they say is noise
    told = [np.column_stack(parts) for parts in ((a, u), (b, v))]
    told = [x + x.std(axis=0) * rng_of_features.standard_normal(x.shape) for x in told]
    features = dict(zip(("row_features", "column_features"), map(pd.DataFrame, told), strict=True))
    is_test = rng.random(n_ratings) < 0.2
    return Ratings("simulated", users, films, stars, is_test, truth, features)


FORMATS = {  # of MovieLens: the separator, and lines before the first rating
    "u.data": ("\t", 0),  # 100k
    "ratings.dat": ("::", 0),  # 1M and 10M
    "ratings.csv": (",", 1),  # 20M, 25M, 32M, latest
}


def read_table(path: Path, separator: str, skipped: int) -> tuple[np.ndarray, ...]:
    """Users, films and stars of a file of "user, film, rating, timestamp" lines."""
    with path.open(encoding="latin-1") as file:  # anything is, and numbers are the same in all
        lines = (line.replace(separator, "\t") for line in file)
        table = np.loadtxt(lines, delimiter="\t", skiprows=skipped, usecols=(0, 1, 2), ndmin=2)
    return table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2]


def features_of(folder: Path) -> dict[str, pd.DataFrame]:
    """Age, sex and job of users, year and genres of films, by their numbers; of 100k only."""
    if not ((folder / "u.user").exists() and (folder / "u.item").exists()):
        return {}
    settings = {"sep": "|", "header": None, "encoding": "latin-1", "index_col": 0}
    users = pd.read_csv(folder / "u.user", **settings)[[1, 2, 3]]
    films = pd.read_csv(folder / "u.item", **settings)
    films[2] = pd.to_datetime(films[2], format="%d-%b-%Y").dt.year
    users[1] = (users[1] // 10).astype(str)
    named = (table.rename(columns=str) for table in (users, films.drop(columns=[1, 3, 4])))
    return dict(zip(("row_features", "column_features"), named, strict=True))


def read(folder: Path, fold: int = 1) -> Ratings | None:
    """MovieLens files, if there are any; a fifth is held out."""
    files = [folder / f"u{fold}.base", folder / f"u{fold}.test"]
    if all(path.exists() for path in files):
        base, test = (read_table(path, *FORMATS["u.data"]) for path in files)
        table = (np.concatenate(pair) for pair in zip(base, test, strict=True))
        is_test = np.arange(len(base[0]) + len(test[0])) >= len(base[0])
        return Ratings(f"MovieLens-100k, fold {fold}", *table, is_test, {}, features_of(folder))
    for name, layout in FORMATS.items():
        if (folder / name).exists():
            table = read_table(folder / name, *layout)
            part = np.random.default_rng(0).permutation(len(table[0])) % 5
            name += f", random fold {fold}"
            return Ratings(name, *table, part == fold - 1, {}, features_of(folder))
    return None


class Answer(NamedTuple):
    """What a model says of the held-out entries."""

    mean: np.ndarray
    std: np.ndarray | None = None
    log_density: np.ndarray | None = None


def nearest_star(
    mean: np.ndarray, std: np.ndarray, stars: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Log mass of a normal nearer to the star than to another; some files have half stars."""
    edges = np.concatenate([[-np.inf], 0.5 * (labels[1:] + labels[:-1]), [np.inf]])
    place = np.searchsorted(labels, stars)
    mass = norm.cdf((edges[place + 1] - mean) / std) - norm.cdf((edges[place] - mean) / std)
    return np.log(np.maximum(mass, 1e-300))


def ours(
    data: Ratings,
    estimator: type[SymVIMatrixFactorization] = SymVIMatrixFactorization,
    *,
    told: bool = False,
    **settings: object,
) -> Answer:
    """Fit on the rest, answer about the held-out entries; ``told``: with features."""
    model = estimator(random_state=0, **settings)
    model.fit(data.part(~data.is_test), **(data.features if told else {}))
    users, films, stars = data.test
    mean, std = model.predict_entries(users, films, return_std=True)
    is_ordinal = settings.get("likelihood") == "ordinal"
    density = predictive(model, (users, films)).log_prob(stars) if is_ordinal else None
    return Answer(mean, std, density)


def by_directions(data: Ratings, n: int) -> Answer:
    """What was rated described by so many singular vectors, and the features."""
    defaults = replace(SymVIMatrixFactorization._defaults, directions=n)
    model = type("OtherDirections", (SymVIMatrixFactorization,), {"_defaults": defaults})
    return ours(data, model, told=True, implicit=True)


def biased_svd(data: Ratings, k: int = 20, n_epochs: int = 20) -> Answer:
    """Offsets and factors by stochastic gradient, with the step and shrinkage of Surprise's SVD."""
    rng, (users, films, stars) = np.random.default_rng(0), data.part(~data.is_test)
    n, m, mean = users.max() + 1, films.max() + 1, stars.mean()
    a, b = np.zeros(n), np.zeros(m)
    u, v = 0.1 * rng.standard_normal((n, k)), 0.1 * rng.standard_normal((m, k))
    for _ in range(n_epochs):
        for e in rng.permutation(len(stars)):
            i, j = users[e], films[e]
            ui, vj = u[i], v[j]
            off = stars[e] - mean - a[i] - b[j] - ui @ vj
            a[i] += 0.005 * (off - 0.02 * a[i])
            b[j] += 0.005 * (off - 0.02 * b[j])
            u[i], v[j] = ui + 0.005 * (off * vj - 0.02 * ui), vj + 0.005 * (off * ui - 0.02 * vj)
    i, j, _ = data.test
    return Answer(mean + a[i] + b[j] + (u[i] * v[j]).sum(axis=1))


def surprise_svd(data: Ratings) -> Answer:
    """Surprise's SVD as it comes: 100 factors, 20 epochs."""
    import surprise

    reader = surprise.Reader(rating_scale=(data.stars.min(), data.stars.max()))
    given = pd.DataFrame(
        dict(zip(("user", "film", "stars"), data.part(~data.is_test), strict=True))
    )
    train = surprise.Dataset.load_from_df(given, reader).build_full_trainset()
    model = surprise.SVD(random_state=0).fit(train)
    asked = zip(*data.test, strict=True)
    return Answer(np.array([found.est for found in model.test(list(asked))]))


def cornac_mf(data: Ratings, n_epochs: int = 20) -> Answer:
    """cornac's biased SVD as it comes: 10 factors, 20 epochs."""
    from cornac.data import Dataset
    from cornac.models import MF

    train = Dataset.from_uir(list(zip(*data.part(~data.is_test), strict=True)))
    model = MF(k=10, max_iter=n_epochs, use_bias=True, seed=0, num_threads=1).fit(train)
    i = [train.uid_map[user] for user in data.test[0]]
    j = [train.iid_map[film] for film in data.test[1]]
    mean = model.global_mean + model.u_biases[i] + model.i_biases[j]
    return Answer(mean + (model.u_factors[i] * model.i_factors[j]).sum(axis=1))


def my_fm(data: Ratings, *, told: bool = False, implicit: bool = False) -> Answer:
    """Gibbs sampling of a factorisation machine, rank 10 (its authors' setting)."""
    import myfm

    users, films, stars = data.part(~data.is_test)
    names = [np.unique(data.users), np.unique(data.films)]
    seen = [np.searchsorted(labels, ids) for labels, ids in zip(names, (users, films), strict=True)]
    new = [np.searchsorted(labels, data.test[k]) for k, labels in enumerate(names)]
    features = list(data.features.values()) if told else [None, None]
    parts = [
        columns_of(names[k], features[k], (seen[k], seen[1 - k]) if implicit else None)
        for k in range(2)
    ]
    sizes = [part.shape[1] for columns in parts for part in columns]
    tables = [sparse.hstack(columns).tocsr().astype(float) for columns in parts]
    train, test = (
        [myfm.RelationBlock(list(where[k]), tables[k]) for k in range(2)] for where in (seen, new)
    )
    model = myfm.MyFMRegressor(rank=10, random_seed=0)
    model.fit(None, stars, train, n_iter=512, group_shapes=sizes)
    return Answer(model.predict(None, test))


def columns_of(
    labels: np.ndarray, features: pd.DataFrame | None, rated: tuple[np.ndarray, ...] | None
) -> list[sparse.csr_matrix]:
    """What a factorisation machine is told of users (or films): groups of columns, a row each."""
    columns = [sparse.identity(len(labels), format="csr")]
    if features is not None:
        table = features.reindex(labels)
        for name in table:
            is_flag = set(table[name].unique()) <= {0, 1}
            shown = table[[name]] if is_flag else pd.get_dummies(table[name].astype(str))
            columns.append(sparse.csr_matrix(shown.to_numpy(float)))
    if rated is not None:
        ours, theirs = rated
        shape = (len(labels), theirs.max() + 1)
        flags = sparse.csr_matrix((np.ones(len(ours)), (ours, theirs)), shape)
        size = np.sqrt(np.maximum(np.asarray(flags.sum(axis=1)).ravel(), 1))
        columns.append(sparse.diags(1 / size) @ flags)
    return columns


def the_mean(data: Ratings) -> Answer:
    stars = data.part(~data.is_test)[2]
    return Answer(np.full(len(data.test[2]), stars.mean()), np.full(len(data.test[2]), stars.std()))


MODELS = {
    "mean": the_mean,
    "offsets alone": lambda data: ours(data, n_components=1, prior=1e-3),
    "paper's model": lambda data: ours(data, prior=1.0, offsets=False),
    "given scale, offsets": lambda data: ours(data, prior=1.0),
    "learned (default)": ours,
    "learned, no symmetry": lambda data: ours(data, solver=VI(symmetry=None)),
    "scale per component": lambda data: ours(data, prior="ard"),
    "with features": lambda data: ours(data, told=True),
    "with what was rated": lambda data: ours(data, implicit=True),
    "with both": lambda data: ours(data, told=True, implicit=True),
    "both, 10 directions": lambda data: by_directions(data, 10),
    "both, 40 directions": lambda data: by_directions(data, 40),
    "ordinal": lambda data: ours(data, likelihood="ordinal"),
    "Gibbs": lambda data: ours(data, solver="gibbs", max_iter=300),
    "Gibbs, 1000 sweeps": lambda data: ours(data, solver=Gibbs(500), max_iter=1000),
    "alternating least squares": lambda data: ours(data, solver="map"),
    "biased SVD": biased_svd,
    "Surprise": surprise_svd,
    "cornac": cornac_mf,
    "myFM": my_fm,
    "myFM with features": lambda data: my_fm(data, told=True),
    "myFM with both": lambda data: my_fm(data, told=True, implicit=True),
}


SLOW = (
    "biased SVD", "Gibbs", "Gibbs, 1000 sweeps", "ordinal", "Surprise", "cornac",
    "myFM", "myFM with features", "myFM with both",
)  # fmt: skip


def rmse(answer: Answer, data: Ratings) -> float:
    """Of held-out entries."""
    return float(np.sqrt(np.mean((answer.mean - data.test[2]) ** 2)))


def seconds_to(
    target: float, model: Callable[[int], Answer], sweeps: Sequence[int], data: Ratings
) -> str:
    """CPU seconds of the shortest fit whose error is at most the target."""
    for n in sweeps:
        begin = time.process_time()
        found = model(n)
        seconds = time.process_time() - begin
        if rmse(found, data) <= target:
            return f"{seconds:.2f} CPU s, {n} sweeps"
    return "never"


def show_time(data: Ratings) -> None:
    """To the error that cornac's biased SVD ends with, for both."""
    try:
        target = rmse(cornac_mf(data), data)
    except ImportError:
        return
    sgd = seconds_to(target, lambda n: cornac_mf(data, n), range(5, 21, 5), data)
    own = seconds_to(target, lambda n: ours(data, max_iter=n), range(5, 51, 5), data)
    print(f"\nto RMSE {target:.4f}: learned (default) {own}; cornac {sgd}")


def show(folds: Sequence[Ratings], names: Sequence[str]) -> None:
    """A line per model: means over the folds."""
    print(f"{'':<27}{'RMSE':>7}{'log density':>13}{'90 % cover':>12}{'CPU s':>8}")
    for name in names:
        try:
            means = np.mean([figures(MODELS[name], data) for data in folds], axis=0)
        except ImportError:
            print(f"{name:<27}  not installed")
            continue
        told = "" if np.isnan(means[1]) else f"{means[1]:13.4f}{means[2]:12.3f}"
        print(f"{name:<27}{means[0]:7.4f}{told:25}{means[3]:8.1f}", flush=True)


def figures(model: Callable[[Ratings], Answer], data: Ratings) -> tuple[float, ...]:
    """RMSE, mean log density and coverage (NaN of models that have none), CPU seconds."""
    begin, stars = time.process_time(), data.test[2]
    answer = model(data)
    seconds, (mean, std, density) = time.process_time() - begin, answer
    if std is None:
        return rmse(answer, data), np.nan, np.nan, seconds
    if density is None:
        density = nearest_star(mean, std, stars, np.unique(data.stars))
    covered = np.mean(np.abs(stars - mean) < 1.645 * std)
    return rmse(answer, data), density.mean(), covered, seconds


def show_recovered(data: Ratings) -> None:
    """What the default says of the figures that made the ratings."""
    model = SymVIMatrixFactorization(10, random_state=0).fit(data.part(~data.is_test))
    scale = model.prior_scale_[0] * model.prior_scale_[1] * model.scale_ / np.sqrt(10)
    found = {
        "user offsets": model.row_offsets_.std(),
        "film offsets": model.column_offsets_.std(),
        "factors": np.sqrt((scale**2).sum()),
        "noise": model.noise_std_,
    }
    print(f"\n{'standard deviation':<20}{'generated':>10}{'recovered':>10}")
    for name, value in data.truth.items():
        print(f"{name:<20}{value:10.2f}{found[name]:10.2f}")


def show_new_user(data: Ratings) -> None:
    """A user who wasn't there: intervals, and which film is best, by Thompson draws."""
    users, films, stars = data.part(~data.is_test)
    newcomer = np.bincount(users).argmax()
    old = users != newcomer
    model = SymVIMatrixFactorization(10, random_state=0).fit((users[old], films[old], stars[old]))
    theirs = np.flatnonzero(np.isin(films, model.column_labels_) & ~old)[:20]
    model = model.with_new_rows((users[theirs], films[theirs], stars[theirs]))
    best = model.recommend([newcomer], 5, by="probability_best", n_draws=400, random_state=0)
    mean, std = model.predict_entries([newcomer] * 5, best.columns[0], return_std=True)
    print(f"\na new user with {len(theirs)} ratings; top five by the probability of being the best")
    for film, chance, m, s in zip(best.columns[0], best.values[0], mean, std, strict=True):
        print(f"  film {film:>6}: best with {chance:.2f}, {m:.2f} +- {s:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratings, against what others do.")
    parser.add_argument("--data-home", help="folder of the files; SKBAYES_SYM_DATA by default")
    parser.add_argument("--folds", type=int, nargs="+", choices=range(1, 6), default=[1])
    parser.add_argument("--fast", action="store_true", help="a smoke run on few ratings")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), help="all by default")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    home = args.data_home or (None if args.fast else os.environ.get("SKBAYES_SYM_DATA", "."))
    folds = [] if home is None else [data for k in args.folds if (data := read(Path(home), k))]
    if not folds:
        folds = [simulated(120, 150, 4_000) if args.fast else simulated(943, 1682, 100_000)]
    names = list(MODELS) if args.models is None else args.models
    if args.fast:
        names = [name for name in names if name not in SLOW]
    for data in folds:
        n_users, n_films = len(np.unique(data.users)), len(np.unique(data.films))
        print(f"{data.name}: {len(data.stars)} ratings of {n_films} films by {n_users} users")
        n_known = len(data.test[2])
        print(f"{data.is_test.sum()} held out, {n_known} of them of known users and films")
    show(folds, names)
    if args.models is not None:
        return
    data = folds[0]
    show_time(data)
    if data.truth:
        show_recovered(data)
    show_new_user(data)


if __name__ == "__main__":
    main()
