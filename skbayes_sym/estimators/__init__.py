"""Estimators, the first floor that knows both scikit-learn and torch.

Reading order: `base` (what `fit` says, in four lines, and how state is kept), `regressor` and
`classifier` (predictions as arrays, in the user's units), `networks` and `draws` (what estimators
of networks, and of weighted draws, share), `distributions` and `predictive` (one predictive
distribution for any fitted model), `target_transformation` (inverse and slope of transformed
targets), `skpro` (models as that package's), `optimizers` and `samplers` (objects
for ``optimizer=`` and ``sampler=``). Then ``_fit`` (rows, model, run: what all fits share)
and a file or folder a method, the shortest being `layerwise_vi`; `ensemble`, `bayesian_mlp`, `vi`,
`mcmc`, `laplace`, `linear` and `factorization` have the same parts. `stacking` stands above all of
them: members of any kind, weighed by the rows that each leaves out.

In: arrays and constructor parameters. Out: fitted attributes, NumPy and small objects.
"""
