"""Stacks of predictive distributions, the default for any table.

Reading order: `parts` (anyone's model as a predictor of rows), `kinds` (of models, and the rows
that they leave out), `combining` (one after the other, and their weights), `stacks`.

In: the other estimators, scikit-learn's trees. Out: `PredictiveStackingRegressor`,
`PredictiveStackingClassifier`.
"""
