"""Matrix factorisation with a posterior that knows its rotations (Moore 2016).

* `matrix_factorization`: what a user meets
* `matrix_training`: `MatrixTraining`: the matrix, checked, centred and scaled; more entries for it
* `entries`: which entries are observed, of matrices, and of frames and tuples that list them;
  `frames`: which column of a frame is what; `labels`: one form of an id for all dtypes
* `side_features`: what else is known of rows or columns
* `predictions`: arrays in and out of a `FactorPredictor`, and which columns to show to a row;
  `entry_law`: distributions of entries
* `fitting`: `Factorization`: a solver under the callbacks, and its findings as attributes

In: a matrix with holes, and a solver of `skbayes_sym.inference.solvers`. Out: Gaussian rows.
"""
