"""Which columns to show to a row: best ones, by their mean or by draws, and similar ones."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.factorization.predictions import PredictsEntries, places
from skbayes_sym.inference.factorization.entry_predictor import law_cov
from skbayes_sym.numerics.arguments import check_count, seed_of
from skbayes_sym.numerics.random import generator_from


class Recommended(NamedTuple):
    """Columns for each row asked for, the best first."""

    columns: Array  # (n_rows, n), labels or positions
    values: Array  # (n_rows, n): expected entries, probabilities, or one draw of entries


class Similar(NamedTuple):
    """Columns like one, the most alike first."""

    columns: Array  # (n,), labels or positions
    mean: Array  # (n,), posterior mean of the correlation
    interval: Array  # (n, 2), ends of a central 90 % interval


class Recommends(PredictsEntries):
    """Ranks the columns of a fitted factorisation."""

    def recommend(
        self,
        rows: Any = None,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        by: str = "mean",
        n_draws: int = 200,
        random_state: Any = None,
    ) -> Recommended:
        """Recommend the best columns for rows.

        Parameters
        ----------
        rows : array-like of shape (n_rows,), optional
            Labels, or positions where rows have none; all rows by default. Rows that are unknown
            get what is best on average; `with_new_rows` takes what they have seen.
        n : int, default=10
            Columns for each, or as many as every one of them has left.
        exclude_seen : bool, default=True
            Whether columns that the row has an entry of are left out.
        by : {"mean", "probability_best", "thompson"}, default="mean"
            The expected entry; the share of ``n_draws`` joint draws in which the column is the best
            one; or the order of a single draw, which explores columns as often as they may be best.
        n_draws : int, default=200
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        Recommended
            ``columns`` and ``values``, (n_rows, n) each.

        Notes
        -----
        O(n_rows n_columns n_components), a draw too; nothing is held for all rows at once.
        """
        check_is_fitted(self)
        if by not in ("mean", "probability_best", "thompson"):
            raise ValueError(f"by must be 'mean', 'probability_best' or 'thompson', got {by!r}.")
        check_count("n", n)
        check_count("n_draws", n_draws)
        n_known, labels = len(self.posterior_.rows.mean), self._labels("row")
        if rows is None:
            asked, n_unknown = np.arange(n_known), 0
        else:
            asked, n_unknown = places(rows, n_known, "rows", labels)
        predictor = self._predictor()
        predictor = predictor.with_unknown(n_unknown, 0) if n_unknown else predictor
        generator = generator_from(seed_of(random_state), torch.device("cpu"))
        m, seen = len(self.posterior_.columns.mean), self._cached("seen", self._seen_matrix)
        n_left, chosen, values = min(n, m), list[Array](), list[Array]()
        at_once = n_draws if by == "probability_best" else 1
        for block in np.array_split(asked, max(1, len(asked) * m * at_once // (1 << 22))):
            x = torch.cartesian_prod(torch.as_tensor(block), torch.arange(m)).view(-1, 2)
            scores: Array
            if by == "mean":
                scores = self._law(predictor, x).mean().reshape(-1, m)
            else:
                with one_thread(), torch.no_grad():
                    drawn = predictor.outputs(x, at_once, generator=generator)[..., 0]
                scores = drawn.numpy().reshape(at_once, -1, m)
            out = np.zeros((len(block), m), dtype=bool)
            if exclude_seen:
                out[block < n_known] = seen[block[block < n_known]].toarray()
            scores = np.where(out, -np.inf, scores)
            if by == "probability_best":
                best = scores.argmax(axis=2)
                scores = np.stack([np.bincount(b, minlength=m) for b in best.T]) / at_once
                scores = np.where(out, -np.inf, scores)
            scores = scores.reshape(-1, m)
            if by == "thompson" and predictor.likelihood.scales_targets:
                scores = scores * self.scale_ + self.mean_
            n_left = min(n_left, int((m - out.sum(axis=1)).min(initial=m)))
            order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
            chosen.append(order)
            values.append(np.take_along_axis(scores, order, axis=1))
        columns, names = np.concatenate(chosen)[:, :n_left], self._labels("column")
        columns = columns if names is None else names[columns]
        return Recommended(columns, np.concatenate(values)[:, :n_left])

    def _seen_matrix(self) -> sp.csr_array:
        i, j = self._seen_
        shape = tuple(len(side.mean) for side in self.posterior_)
        return sp.csr_array((np.ones(len(i), dtype=bool), (i, j)), shape=shape)

    def similar_columns(
        self, column: Any, n: int = 10, *, n_draws: int = 200, random_state: Any = None
    ) -> Similar:
        """Find the columns that rows take to as they do to one: by correlation over rows.

        Parameters
        ----------
        column : label or int
            One column, by its label or its position.
        n : int, default=10
        n_draws : int, default=200
            Draws of the factors' posterior.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        Similar
            ``columns``, ``mean`` and ``interval`` of the correlation between the expected entries
            of two columns, over rows of the prior; the highest mean first.
        """
        check_is_fitted(self)
        check_count("n", n)
        check_count("n_draws", n_draws)
        predictor, labels = self._predictor(), self._labels("column")
        (place,), n_unknown = places([column], len(predictor.columns.mean), "columns", labels)
        if n_unknown:
            raise ValueError(f"column {column!r} was not there in fit, so nothing is like it.")
        # Rows t ~ N(m, C), their offset included, have entries t' v: two columns of them are
        # correlated as v' C w says.
        free = list(predictor.network.sides[0].free)
        root = torch.linalg.cholesky(law_cov(predictor.laws[0])).numpy()
        loc = predictor.columns.mean[:, free].numpy()
        values, vectors = np.linalg.eigh(predictor.columns.cov[:, free][:, :, free].numpy())
        spread = vectors * np.sqrt(values.clip(min=0.0))[:, None, :]
        rng, cosines = np.random.default_rng(seed_of(random_state)), []
        for _ in range(n_draws):
            noise = rng.standard_normal((*loc.shape, 1))
            drawn = (loc + (spread @ noise)[..., 0]) @ root
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
            cosines.append(drawn @ drawn[place])
        mean = np.mean(cosines, axis=0)
        order = np.argsort(-np.where(np.arange(len(mean)) == place, -np.inf, mean))[:n]
        order = order[order != place]
        ends = np.quantile(cosines, [0.05, 0.95], axis=0)
        return Similar(order if labels is None else labels[order], mean[order], ends[:, order].T)
