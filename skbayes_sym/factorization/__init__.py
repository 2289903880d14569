"""Matrix factorisation with a rotation-aware posterior (Moore 2016).

Estimator

* `estimators`: `SymVIMatrixFactorization`
* `ratings`: observed entries of matrices and of lists of ratings
* `frames`: roles of the columns of a list of ratings
* `labels`: one form of row and column labels for all dtypes
* `side_features`: features of rows and columns
* `training`: the centred and scaled matrix, and further entries of a stream
* `fit`: run a solver under callbacks and store its results
* `predict`: predictions of entries, rankings, similar columns and new rows
* `entry_distribution`: predictive distributions of entries
* `splitters`: cross-validation over entries

Inference

* `solvers`: variational, Gibbs and maximum-a-posteriori solvers
* `factor_model`: the model, and the result of a solver
* `hyperpriors`: fixed or learned priors of the factors
* `sparse_entries`: sums over observed entries without a dense matrix
* `entry_sites`: Gaussian sites for entries of any likelihood
* `context`: linear effects of an entry's context
* `coordinate_ascent`: optimal factors of one side given the other side
* `vi`: sweeps of variational inference
* `gibbs`: sweeps of Gibbs sampling
* `entry_predictor`: entries and new rows from the posterior
"""
