"""Gaussian posteriors and draws of the factors of a matrix.

* `data`: observed entries, grouped by row and by column
* `coordinates`: offsets as coordinates of the factors
* `hyperpriors`: priors of a side's rows, given or learned, with features
* `likelihoods`: distributions of an entry
* `rows`: a row's conditional given the other side
* `covariance`: families of covariances
* `scale_step`: how large factors should be, all rows of a side at once
* `shared_size`: how size is shared between the sides, in Gibbs sampling
* `spectral_start`: where sweeps over a complete matrix begin
* `gap_looks`: how often a gap is looked at
* `mixed_sweeps`: the last sweeps over a matrix with missing entries
* `vi`: sweeps of variational inference, symmetrised or not
* `gibbs`: sweeps of Gibbs sampling
* `problem`: what a solver gets and what it finds (`skbayes_sym.inference.solvers` has them). Its
  `FactorState` is what sweeps move, on the device and with the noise; what a fit keeps is a
  `MatrixPosterior` of `inference.posteriors`, NumPy and a law of the factors alone
* `predictive`: entries and rows from the posterior
"""
