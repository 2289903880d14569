"""The estimator for people who don't want to choose: Laplace modes and ensemble members pooled.

Reading order: `method` (what is fitted, and how much of it a data set is worth), `linear_part`
(the linear model beside the networks), `left_out` (the rows that every part leaves out), `shares`
(what that makes each kind count for), `estimator`; of classes `class_method` and `classifier`.

In: the methods of `laplace` and `ensemble`. Out: `BayesianMLPRegressor`, `BayesianMLPClassifier`.

Tested elsewhere: `method` (with `estimator`), `linear_part` (with `estimator`), `left_out` (with
`estimator`; laws in `inference/pooling/test_left_out`),
`class_method` (with `classifier`).
"""
