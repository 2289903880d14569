"""Matrix factorisation with a posterior that knows its rotations (Moore 2016).

* `matrix_factorization`: what a user meets
* `matrix_training`: `MatrixTraining`: the matrix, checked, centred and scaled
* `entries`: which entries are observed; `lists`: frames and tuples of them
* `side_features`: what else is known of rows or columns
* `stream`: more entries for a fit
* `predictions`: arrays in and out of a `FactorPredictor`; `entry_law`: distributions of entries;
  `recommending`: which columns for a row
* `fitting`: `Factorization`: a solver under the callbacks, and its findings as attributes

In: a matrix with holes, and a solver of `skbayes_sym.inference.solvers`. Out: Gaussian rows.
"""
