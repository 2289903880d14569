"""Markov chain Monte Carlo for neural networks, with symmetries removed (Wiese et al. 2023).

Estimators

* `estimators`: `MCMCRegressor` and `MCMCClassifier`
* `samplers`: objects for the ``sampler`` and ``remove_symmetries`` parameters
* `fit`: a fit: initialise, sample, weight the modes, draw
* `config`: constants behind "auto", seeds, chains and blocks
* `initialization`: starting points of chains, their metric and first draws
* `mode_weights`: convergence diagnostics, evidence of each mode, further chains

Samplers

* `kernels`: Hamiltonian Monte Carlo for many chains as one batch
* `warmup`: adaptation of step sizes and scales
* `chains`: blocks of chains that can run in any process
* `chain_count`: number of chains that find every mode
* `annealing`: starting points and preconditioners of large networks

Modes

* `mode_evidence`: find modes in draws, and their weights
* `bridge`: evidence of a mode by bridge sampling modulo the symmetry
* `within_mode`: further draws of modes with uncertain evidence
"""
