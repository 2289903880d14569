"""Laplace approximations of neural networks and their evidence (MacKay 1992, Immer et al. 2021).

Estimators

* `estimators`: `LaplaceRegressor` and `LaplaceClassifier`
* `base`: networks, priors and linearised predictions of the Laplace and LILA estimators
* `defaults`: numbers of units, restarts and steps that "auto" chooses by the size of the data

Modes by Gauss-Newton steps, with hyperparameters set by the evidence

* `gauss_newton_regression`: fit several modes of a network and choose its width
* `gauss_newton_classification`: fit several modes of a classifier's network
* `modes_fit`: the modes of a search, their fitted attributes and predictions
* `initialization`: low-noise and high-noise starts, and cross-validation
* `mode_finding`: search for modes with learned scales and noise
* `evidence_problem`: sums over rows, evidence and MacKay's update
* `balancing`: one representative of each orbit of rescaled units
* `gauss_newton`: Levenberg-Marquardt steps of many restarts as one batch
* `starting_points`: modes as starting points of chains and of variational inference

Modes by Adam

* `adam_laplace`: fit one network by alternating between weights and hyperparameters
* `invariant_evidence`: the averaged network, its alternating training and the result
* `online_training`: joint density of weights and data, and the ascent of the evidence
* `invariance_parameters`: the parameter ``invariances`` and learned half-widths
* `evidence`: the Laplace evidence and its gradient in minibatches
* `curvature`: Gauss-Newton curvature, Kronecker-factored and full
* `map`: modes by Adam, with scales and noise set by the evidence of every mode

Predictions

* `posterior`: Laplace posterior of one mode or several, and linearised predictions
* `class_predictive`: Gaussian posteriors for classification and the scale of their variance
* `predict`: predictors of one mode, several modes, or members of an ensemble
"""
