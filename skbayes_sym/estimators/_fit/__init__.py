"""Parts that every fit shares, one noun a file.

Reading order: `columns` (tables as they are read become numbers), `training` (checked, scaled rows
on the device; made of `rows`), `building`
(constructor parameters as network, likelihood, prior and group), `compatibility` (what finds a
posterior, and what of a model it asks for; what doesn't apply is refused), `run` (its blocks for
callbacks, its log, why it stopped); then `warnings`, `device`, `unwrap` (the model
inside a pipeline or search), `sample_weights` (how they reach anyone's estimator), `scikit_learn`
(what isn't public there, and what its versions differ in), `words` (descriptions of parameters and
attributes that estimators share).

In: an estimator's parameters and data. Out: what a method's ``fit`` takes.
"""
