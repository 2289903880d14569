"""Matrix factorisation with a rotation-invariant posterior (Moore 2016).

Estimator

* `estimators`: `SymVIMatrixFactorization`
* `ratings`: observed entries of matrices and of lists of entries
* `frames`: roles of the columns of a list of entries
* `labels`: one form of row and column labels for all dtypes
* `side_features`: numerical encoding of features and context
* `training`: entries in scaled units, and streams of entries
* `fit`: run a solver under callbacks and convert its result to attributes
* `predict`: predictions of entries, recommendations and new rows
* `recommend`: rankings and similarities of columns
* `entry_encoder`: entries of users in the representation of the fitted model
* `entry_distribution`: predictive distributions of entries
* `splitters`: cross-validation over entries, and scores of rankings

Inference

* `solvers`: variational, Gibbs and maximum-a-posteriori solvers
* `factor_model`: the model, the problem of a solver, and its result
* `hyperpriors`: fixed or learned priors of the factors
* `sparse_entries`: sums over observed entries without a dense matrix
* `entry_sites`: Gaussian sites for entries of any likelihood
* `context`: linear effects of an entry's context
* `coordinate_ascent`: optimal rows of one factor given the other factor
* `vi`: sweeps of variational inference
* `gibbs`: sweeps of Gibbs sampling
* `entry_predictor`: entries and new rows from the posterior
"""
