"""Student of several targets, evaluated by NumPy.

`skbayes_sym.distill` makes it of a stack of several targets. This file needs NumPy and SciPy, and
imports neither torch nor scikit-learn.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import ndtr, ndtri

from skbayes_sym.numerics.arguments import check_not_masked
from skbayes_sym.student import Student, from_text, load_arrays, to_text, with_suffix, write_file

Array = npt.NDArray[Any]

# Largest absolute normal score; beyond it a distribution function is 0 or 1 within rounding.
_MAX_SCORE = 8.0


class JointStudent:
    r"""Students of several targets, whose dependence is a normal copula.

    .. math:: \log p(y) = \sum_t \log p_t(y_t) - \tfrac12 \log |R|
              - \tfrac12 z^\top (R^{-1} - I) z , \qquad z_t = \Phi^{-1}(F_t(y_t))

    The correlation matrix R is that of the stack. Counts enter in the middle of the jumps of their
    distribution functions.

    Parameters
    ----------
    students : mapping of str to Student
        Student of each target, by the name of the target.
    correlation : ndarray of shape (n_targets, n_targets)
        Correlation matrix of the normal scores of the targets.

    Attributes
    ----------
    students_ : dict of str to Student
        Student of each target.
    correlation_ : ndarray of shape (n_targets, n_targets)
        Correlation matrix of the normal scores of the targets.
    kl_to_teacher_ : float
        Sum of the divergences of the students from the stack's distributions of single targets, in
        nats per row.
    n_features_in_ : int
        Number of columns of ``X``.

    See Also
    --------
    skbayes_sym.distill : Makes students.
    skbayes_sym.student.Student : Student of one target.
    """

    def __init__(self, students: Mapping[str, Student], correlation: Array) -> None:
        self.students_ = dict(students)
        self.correlation_ = np.asarray(correlation, dtype=np.float64)
        self._root = np.linalg.cholesky(self.correlation_)
        self.kl_to_teacher_ = sum(student.kl_to_teacher_ for student in self.students_.values())
        self.n_features_in_ = next(iter(self.students_.values())).n_features_in_

    def __repr__(self) -> str:
        names = ", ".join(list(self.students_)[:4])
        ellipsis = ", ..." if len(self.students_) > 4 else ""
        return (
            f"<students of {len(self.students_)} targets ({names}{ellipsis}), "
            f"{self.kl_to_teacher_:.3f} nats per row worse than their teacher>"
        )

    def save(self, file: Any) -> None:
        """Write an ``.npz`` file, which `load` reads without torch.

        Parameters
        ----------
        file : str, path-like or binary file
            File to write. ".npz" is appended to a name without it. An existing file is replaced
            atomically, once the new one is on the disk.
        """
        arrays: dict[str, Any] = {
            "targets": to_text(list(self.students_)),
            "correlation": self.correlation_,
        }
        for t, student in enumerate(self.students_.values()):
            arrays |= {f"{t}_{name}": array for name, array in student.arrays.items()}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_file(with_suffix(file), content.getvalue())

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read a file that `save` has written.

        Parameters
        ----------
        file : str, path-like or binary file
            File to read. ".npz" may be omitted, as in `save`.

        Returns
        -------
        JointStudent
            The saved students.

        Raises
        ------
        ValueError
            If the file isn't that of a joint student or is damaged. Arrays of more than 3 times the
            size of the file plus 64 kB aren't read.
        """
        return load_arrays(file, cls._from_arrays, "JointStudent")

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Array]) -> Self:
        """Make the students of the arrays of a file, and check them."""
        names = [str(name) for name in from_text(arrays["targets"])]
        students = {}
        for t, name in enumerate(names):
            prefix = f"{t}_"
            own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            students[name] = Student.from_arrays(own)
        correlation = arrays["correlation"]
        is_valid = correlation.shape == (len(names), len(names)) and len(students) == len(names)
        if not is_valid or not np.array_equal(np.diag(correlation), np.ones(len(names))):
            raise ValueError("the correlation matrix is invalid")
        return cls(students, correlation)

    def _stack(self, function: Callable[[Student], Array]) -> Array:
        """Evaluate a function of each student; the targets become the second axis."""
        return np.stack([function(student) for student in self.students_.values()], axis=1)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets by their means.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to also return the standard deviations of new targets.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_targets)
            Predictive means.
        std : ndarray of shape (n_samples, n_targets)
            Predictive standard deviations. Only if ``return_std``.
        """
        if not return_std:
            return self._stack(lambda student: student.predict(X))
        moments = self._stack(lambda student: np.stack(student.predict(X, return_std=True), -1))
        return moments[..., 0], moments[..., 1]

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Predict quantiles of each target.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        quantiles : sequence of float, default=(0.05, 0.5, 0.95)
            Levels between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_targets, n_quantiles)
            Quantiles in the units of the targets.

        Raises
        ------
        ValueError
            If a level isn't strictly between 0 and 1.
        """
        return self._stack(lambda student: student.predict_quantiles(X, quantiles))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Predict the central interval that contains a new value of each target.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        coverage : float, default=0.9
            Probability, strictly between 0 and 1, of each interval on its own.

        Returns
        -------
        ndarray of shape (n_samples, n_targets, 2)
            Lower and upper ends.

        Raises
        ------
        ValueError
            If ``coverage`` isn't strictly between 0 and 1.
        """
        return self._stack(lambda student: student.predict_interval(X, coverage))

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Joint log density of observed targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples, n_targets)
            Targets.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log densities in nats, in the units of ``y``.

        Raises
        ------
        ValueError
            If ``y`` has another shape than the predictions, or contains NaN.
        """
        check_not_masked("y", y)
        observed = np.asarray(y)
        n_targets = len(self.students_)
        if observed.ndim != 2 or observed.shape[1] != n_targets:
            raise ValueError(
                f"y must have a column for each of {n_targets} targets, got shape {observed.shape}."
            )
        log_density = np.zeros(len(observed))
        scores = []
        for student, column in zip(self.students_.values(), observed.T, strict=True):
            log_density += student.log_predictive_density(X, column)
            mixture = student.predictive_mixture(X)
            value = column.astype(np.float64)
            cdf = 0.5 * (mixture.cdf(value) + mixture.cdf_below(value))
            scores.append(ndtri(cdf).clip(-_MAX_SCORE, _MAX_SCORE))
        z = np.stack(scores)
        whitened = solve_triangular(self._root, z, lower=True)
        quadratic = (whitened**2).sum(axis=0) - (z**2).sum(axis=0)
        return np.asarray(log_density - np.log(np.diag(self._root)).sum() - 0.5 * quadratic)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw new targets from their joint distribution, independently for every row.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Rows.
        n_samples : int, default=1
            Number of draws.
        random_state : int, Generator or None, default=0
            Seed or generator of the draws, as `numpy.random.default_rng` takes it.

        Returns
        -------
        ndarray of shape (n_samples_X, n_targets, n_samples)
            Draws in the units of the targets.
        """
        rng = np.random.default_rng(random_state)
        mixtures = [student.predictive_mixture(X) for student in self.students_.values()]
        n_rows = mixtures[0].loc.shape[1]
        scores = rng.standard_normal((n_samples, n_rows, len(mixtures))) @ self._root.T
        levels = ndtr(scores.clip(-_MAX_SCORE, _MAX_SCORE))
        draws = [
            mixture.from_latent(mixture.latent_quantile(levels[..., t])).T
            for t, mixture in enumerate(mixtures)
        ]
        return np.stack(draws, axis=1)
