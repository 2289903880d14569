"""Gaussian posteriors and draws of the factors of a matrix.

* `incidence`: observed entries, grouped by row and by column; offsets as coordinates of factors
* `hyperpriors`: priors of a side's rows, given or learned, with features
* `factor_model`: the model, what a solver gets and what it finds. `FactorState` is what sweeps move
  on the device; what a fit keeps is a `MatrixPosterior` of `base.posteriors`
* `context`: what is known of single entries, as a linear term
* `entry_sites`: entries of any likelihood as Gaussian ones
* `sides`: families of covariances, the bound, the rows of one side given the other's, and how large
  they should be
* `vi`: sweeps of variational inference, symmetrised or not, where they begin, and how often they
  look at a gap
* `gibbs`: sweeps of Gibbs sampling
* `entry_predictor`: entries and rows from the posterior
"""
