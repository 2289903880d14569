"""Folds of a stack: distinct rows, whole groups, or the splits of the user's ``cv``."""

from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from skbayes_sym.base.classifier import label_array
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_cv, num_samples, split_rows
from skbayes_sym.numerics.arguments import short_repr
from skbayes_sym.numerics.runtime import filters_lock

# A stack whose ``cv`` leaves out fewer distinct rows than these, or than half of the rows, is
# refused: weights and noise of some members have four parameters.
_MIN_SCORED_ROWS = 10


def make_folds(
    n_folds: int, targets: Array, seed: int, groups: Array | None, *, is_classification: bool
) -> list[tuple[Array, Array]]:
    """Make folds of shuffled rows, or of whole groups.

    Folds are stratified if each class has as many rows, and groups, as there are folds.

    Parameters
    ----------
    n_folds : int
        Number of folds, if there are as many rows and groups.
    targets : ndarray of shape (N,)
        Targets or class labels.
    seed : int
        Seed of the shuffling.
    groups : ndarray of int of shape (N,) or None
        Groups of the rows.
    is_classification : bool
        Whether the targets are class labels.

    Returns
    -------
    list of (ndarray, ndarray)
        Training and test indices of the folds.
    """
    n = len(targets)
    if n < 2:
        return [(np.arange(n), np.arange(n))]
    n_groups = n
    if groups is not None:
        n_groups = int(groups.max()) + 1
    n_folds = min(n_folds, n_groups)
    is_stratified = False
    if is_classification:
        # Count the groups of each class; without groups, every row is one.
        _, codes = np.unique(targets, return_inverse=True)
        units = np.arange(n) if groups is None else groups
        pairs = np.unique(np.column_stack([codes, units]), axis=0)
        is_stratified = np.bincount(pairs[:, 0]).min() >= n_folds
    splitter: Any
    shuffling = {"shuffle": True, "random_state": seed % 2**32}
    if groups is not None and is_stratified:
        splitter = StratifiedGroupKFold(n_folds)
    elif groups is not None:
        splitter = GroupKFold(n_folds)
    elif is_stratified:
        splitter = StratifiedKFold(n_folds, **shuffling)
    else:
        splitter = KFold(n_folds, **shuffling)
    with filters_lock:
        folds = list(splitter.split(targets, targets, groups))
    return [(train, test) for train, test in folds if len(test)]


def split_original_rows(
    cv: Any, X: Any, y: Any, groups: Any, first_index: Array, *, is_classification: bool
) -> list[tuple[Array, Array]]:
    """Split the original rows by ``cv``, and select distinct rows.

    Parameters
    ----------
    cv : splitter or iterable of (train, test)
        Parameter of the stack.
    X, y, groups : array-like
        Training data as the user passed them.
    first_index : ndarray of shape (N,)
        Index of the first original row that equals each distinct row.
    is_classification : bool
        Whether ``y`` has class labels.

    Returns
    -------
    list of (ndarray, ndarray)
        Training and test indices of distinct rows. If no fold leaves out some of the rows, the
        fold with the most training rows comes first.

    Raises
    ------
    ValueError
        If ``cv`` splits no rows, leaves out a row twice, leaves out too few rows, or trains on
        single classes.
    """
    n_rows = num_samples(X)
    try:
        splitter = check_cv(cv, y, classifier=is_classification)
        splits = split_rows(splitter, X, y, groups)
        is_train = np.zeros((len(splits), n_rows), dtype=bool)
        is_test = np.zeros((len(splits), n_rows), dtype=bool)
        for k, (train, test) in enumerate(splits):
            is_train[k, train] = True
            is_test[k, test] = True
    except (TypeError, IndexError, ValueError) as error:
        remedy = "pairs of training and left-out rows."
        if groups is None and "groups" in str(error):
            remedy = "pass groups to fit, which this splitter needs."
        raise ValueError(
            f"cv={short_repr(cv)} splits no rows ({error}) Give an int, a splitter such as KFold "
            f"or TimeSeriesSplit, or {remedy}"
        ) from error
    is_train = is_train[:, first_index]
    is_test = is_test[:, first_index]
    if is_classification:
        labels = label_array(y).ravel()[first_index]
        has_classes = np.array(
            [np.unique(labels[train]).size > 1 for train in is_train], dtype=bool
        )
        _warn_single_classes(cv, has_classes)
        is_train = is_train[has_classes]
        is_test = is_test[has_classes]
    n_tests = is_test.sum(axis=0)
    if (n_tests > 1).any():
        row = first_index[n_tests > 1].min()
        raise ValueError(
            f"cv must leave out every row at most once, but row {row} is left out by "
            f"{n_tests[first_index == row][0]} folds. Use a splitter without repetitions, such "
            "as KFold or TimeSeriesSplit."
        )
    folds = [
        (np.flatnonzero(train & ~test), np.flatnonzero(test))
        for train, test in zip(is_train, is_test, strict=True)
        if test.any()
    ]
    n_scored = int(n_tests.sum())
    n_required = min(_MIN_SCORED_ROWS, len(first_index) // 2)
    if n_scored < max(n_required, 1) or not all(len(train) for train, _ in folds):
        raise ValueError(
            f"cv={short_repr(cv)} leaves out {n_scored} distinct rows in {len(folds)} folds, but "
            f"members are judged by at least {max(n_required, 1)} left-out rows, and each fold "
            "needs training rows. Use fewer or larger folds."
        )
    if n_scored < len(first_index):
        folds.sort(key=lambda fold: -len(fold[0]))
    return folds


def _warn_single_classes(cv: Any, has_classes: Array) -> None:
    """Warn of folds whose training rows are all of one class, or raise if all are.

    Parameters
    ----------
    cv : splitter or iterable
        Parameter of the stack.
    has_classes : ndarray of bool of shape (n_folds,)
        Whether the training rows of a fold have several classes.
    """
    n_single = int((~has_classes).sum())
    if not n_single:
        return
    remedy = "Use fewer folds, or folds with several classes, as by StratifiedKFold."
    if n_single == len(has_classes):
        raise ValueError(
            f"cv={short_repr(cv)}: the training rows of every fold are all of one class. {remedy}"
        )
    warn_user(
        f"the training rows of {n_single} of {len(has_classes)} folds of cv are all of one class: "
        f"these folds aren't used, and the rows that they leave out aren't scored. {remedy}",
        UserWarning,
    )


def require_whole_groups(cv: Any, folds: list[tuple[Array, Array]], groups: Array | None) -> None:
    """Raise a ValueError if a fold has rows of one group on both of its sides.

    Parameters
    ----------
    cv : object
        Parameter ``cv`` of the stack, for the message.
    folds : list of (ndarray, ndarray)
        Training and test indices.
    groups : ndarray of shape (n_samples,), optional
        Groups of the rows.
    """
    if groups is None:
        return
    for train, test in folds:
        if np.isin(groups[train], groups[test]).any():
            raise ValueError(
                f"cv={short_repr(cv)} has rows of one group in the training and in the left-out "
                "part of a fold. Use a splitter of groups, such as GroupKFold, or omit cv or "
                "groups."
            )


def require_known_classes(folds: list[tuple[Array, Array]], labels: Array) -> None:
    """Raise a ValueError if no fold's training rows have the classes that the fold leaves out.

    Groups that equal the classes do this. No member can predict such classes.

    Parameters
    ----------
    folds : list of (ndarray, ndarray)
        Training and test indices.
    labels : ndarray of shape (N,)
        Class labels or codes.
    """
    _, codes = np.unique(labels, return_inverse=True)
    for train, test in folds:
        if np.isin(codes[test], codes[train]).any():
            return
    raise ValueError(
        "the training rows of every fold lack the classes of the rows that it leaves out, so that "
        "members can't be scored. Omit groups or cv, or use groups and folds that share classes."
    )
