"""Classes and functions that all estimators share.

Data intake

* `columns`: encode tables with text, categories, dates and missing values
* `training_columns`: types and values of training columns, with which later rows are compared
* `input_validation`: check inputs and convert them to numbers, with errors that name the place
* `rows`: canonical training rows and the scaling of their columns
* `groups`: groups of rows that are left out together
* `row_parameters`: known errors of targets, and exposures of counts
* `sample_weights`: pass weights and groups to the parts of an estimator
* `gross_errors`: find gross errors in targets
* `targets`: validated targets of regressors and classifiers
* `target_columns`: warn of a target that was left in the inputs
* `coded_numbers`: warn of numbers that stand for missing values or dates
* `training`: canonical and scaled training data on the device
* `device`: choose the device and the floating-point precision

From constructor parameters to a fit

* `model_factory`: build network, likelihood, prior and symmetry group from constructor parameters
* `requirements`: declare which likelihoods, priors and networks a method supports
* `optimizers`: objects for the ``optimizer`` parameter
* `progress`: callbacks, logging and stopping reasons of a fit
* `plan`: plans of default fits, made of stages and rules, and their execution
* `messages`: the package's logger, and warnings that point to the user's own line

Estimators

* `estimator`: base class of every estimator: model, ``fit``, fitted state, pickling
* `regressor`, `classifier`: predictions as NumPy arrays in the units of the targets
* `weighted_draws`: posteriors that are weighted draws of weights

Predictions and posteriors

* `predictor`: predictions of any fit in scaled units
* `posteriors`: Gaussian posterior approximations
* `log_density`: unnormalised log posterior of a network, for samplers and optimisers
* `stacking_weights`: combine predictive distributions by their leave-one-out densities
* `extrapolation`: predictions beyond the range of the training data
* `noise_shape`: noise whose width depends on the prediction
* `calibration`: calibration of class scores
* `noise_levels`: integrate predictions over the noise level of small samples
* `distributions`: predictive distributions that users receive
* `quadrature`: moments and scores of predictive distributions
* `panels`: nodes and weights over predictive distributions
* `transformed_normals`: moments of transformed normal variables
* `normal_parts`: moments of transformed targets whose distribution is made of normals
* `moment_table`: moments of many transformed normals, interpolated in their parameters
* `closed_forms`: moments and scores of transformed normals without quadrature
* `transformed_distribution`: distributions of transformed targets
* `target_transformation`: inverses and derivatives of transformations of targets
* `predictive`: `predictive(model, X)` for any fitted model

Helpers

* `public_names`: public names and their modules
* `pipelines`: fitted estimators of any package, and the model in a pipeline or a search
* `scikit_learn`: private names of scikit-learn, and differences between its versions
"""
