"""What every fit shares, one noun a file.

Reading order: `training` (checked, scaled rows on the device; made of `rows`), `model` (constructor
parameters as network, likelihood, prior and group), `method` (what finds a posterior), `run` (its
blocks, its log, why it stopped), `steps` (of those that climb a bound by gradients); then
`compatibility` (what doesn't apply is refused), `convergence` and `warnings`, `callbacks`,
`device`, `memory`, `unwrap` (the model inside a pipeline or search), `scikit_learn` (what isn't
public there, and what its versions differ in).

In: an estimator's parameters and data. Out: what a method's ``fit`` takes.
"""
