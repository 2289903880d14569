"""Markov chain Monte Carlo for neural networks, with symmetries removed (Wiese et al. 2023).

Estimators

* `estimators`: `MCMCRegressor` and `MCMCClassifier`
* `samplers`: objects for the ``sampler`` and ``remove_symmetries`` parameters
* `fit`: a fit: run chains, weight their modes, summarise the draws
* `config`: settings of one fit and the constants behind "auto"
* `initialization`: starting points of chains
* `draws`: the initial chains and their draws
* `mode_weights`: weights of modes by evidence, and chains restarted in them
* `diagnostics`: convergence diagnostics and warnings

Samplers

* `kernels`: Hamiltonian Monte Carlo for many chains as one batch
* `warmup`: adaptation of step sizes and scales
* `chains`: blocks of chains that can run in any process
* `chain_count`: number of chains that find every mode
* `annealing`: burn-in of large networks
* `kronecker`: their preconditioner, by the curvature of each layer

Modes

* `mode_evidence`: modes found in draws, and their evidence
* `bridge`: evidence of a mode by bridge sampling modulo the symmetry
* `within_mode`: further draws of modes with uncertain evidence
"""
