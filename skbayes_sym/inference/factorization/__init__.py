"""Gaussian posteriors and draws of the factors of a matrix.

* `incidence`: observed entries, grouped by row and by column
* `coordinates`: offsets as coordinates of the factors
* `hyperpriors`: priors of a side's rows, given or learned, with features
* `factor_model`: the model, what a solver gets and what it finds. `FactorState` is what sweeps move
  on the device; what a fit keeps is a `MatrixPosterior` of `inference.posteriors`
* `entry_sites`: entries of any likelihood as Gaussian ones
* `covariance`: families of covariances
* `factor_elbo`: what q says of entries and rows
* `sides`: the rows of one side given the other's, and how large they should be
* `gap_looks`: how often a gap is looked at
* `vi`: sweeps of variational inference, symmetrised or not, and where they begin
* `gibbs`: sweeps of Gibbs sampling
* `entry_predictor`: entries and rows from the posterior
"""
