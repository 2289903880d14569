"""Laplace approximations of neural networks and their evidence (MacKay 1992, Immer et al. 2021).

Estimators

* `estimators`: `LaplaceRegressor` and `LaplaceClassifier`
* `base`: base class of the Laplace and LILA estimators
* `defaults`: numbers of units, restarts and steps by the size of the data

Modes by Gauss-Newton steps, hyperparameters by the evidence

* `gauss_newton_laplace`: fit several modes of a network and choose its width
* `initialization`: initial noise levels of restarts; modes that leave out a fold
* `mode_finding`: search for modes with learned scales and noise
* `evidence_problem`: sums over rows, evidence and MacKay's update
* `gauss_newton`: Levenberg-Marquardt steps of many restarts as one batch
* `starting_points`: modes as starting points of chains and variational inference

Modes by Adam

* `adam_laplace`: fit by alternating_mask between weights and hyperparameters
* `invariant_evidence`: the averaged network, its evidence and starting point
* `online_training`: alternate steps of weights and hyperparameters
* `invariance_parameters`: the ``invariances`` parameter and learned half-widths
* `evidence`: the Laplace evidence and its gradient in minibatches
* `curvature`: Gauss-Newton curvature, Kronecker-factored and full
* `map`: modes by Adam, with scales and noise set by the evidence of every mode

Predictions

* `posterior`: Laplace posterior of one mode or several, and linearised predictions
* `class_predictive`: Gaussian posteriors for classification and their variance scale
* `predict`: predictors of one mode, several modes, or members of an ensemble
"""
