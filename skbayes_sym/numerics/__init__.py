"""Numerical routines on tensors, independent of models and data.

* `layout`: named parameter shapes and one flat vector
* `random`: random generators, and Monte Carlo estimates with their standard error
* `linalg`: Cholesky factors, products of layers, ridge regression
* `gaussian`: divergences, densities and quadrature of normal distributions
* `integration`, `bisection`: adaptive quadrature, and inverses of distribution functions
* `optimise`: the gradient loop, convergence of noisy curves, fixed-point acceleration
* `permanent`: log permanents and their bounds
* `assignment`: linear assignment, and sampling of permutations
* `preconditioners`: diagonal and dense linear changes of coordinates
* `diagnostics`: rank-normalised split R-hat and effective sample sizes
* `memory`: estimates of memory, and errors before an allocation that can't succeed
* `runtime`: threads, jobs, and constants per device
* `progress`: progress of loops, reported to the fit around them
* `lazy_imports`: names of a package that are imported when they are first used
* `arguments`: checks of the arguments of public functions
* `tables`: columns of tables: names, missing values, levels (without torch)
* `dates`: dates and times as text or objects (without torch)
* `latent_mixtures`: distributions of numbers and counts by mixtures of normals (without torch)
* `files`: files that are written completely or not at all (without torch)

Log weights and log densities are in nats.
"""
