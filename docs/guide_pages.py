"""The page of the guide that explains a public name; its own page links there."""

_NAMES_OF_PAGES = {
    "stacking": "PredictiveStackingRegressor PredictiveStackingClassifier",
    "which_estimator": "BayesianMLPRegressor BayesianMLPClassifier DeepEnsembleRegressor "
    "DeepEnsembleClassifier",
    "symmetrized_vi": "SymmetrizedVIRegressor SymmetrizedVIClassifier",
    "wide_networks": "LayerwiseVIRegressor",
    "sampling": "MCMCRegressor MCMCClassifier remove_symmetries n_chains_required loss_barrier",
    "laplace": "LaplaceRegressor LaplaceClassifier",
    "learned_invariances": "LILARegressor LILAClassifier",
    "invariance_gap": "BayesianLinearRegressor BayesianLinearClassifier invariance_gap",
    "matrix_factorization": "SymVIMatrixFactorization EntryKFold cross_validate_entries "
    "RankingScorer",
    "predictions": "predictive PredictiveDistribution ClassPredictive",
    "next_experiment": "expected_improvement upper_confidence_bound expected_information_gain "
    "thompson_sampling select_batch botorch_model",
    "small_models": "distill Student JointStudent",
    "keeping": "save load",
    "comparing_models": "compare_models get_scorer evidence_scorer NoSplit "
    "interval_calibration_error expected_calibration_error uncertainty_error_measures",
    "practice": "HeldOut",
    "ecosystem": "QuantilePredictor",
    "displays": (
        "PredictiveDisplay AttributionDisplay IntervalCalibrationDisplay ClassCalibrationDisplay "
        "StackWeightsDisplay ModelComparisonDisplay InvarianceDisplay SymmetryDisplay"
    ),
}
PAGES = {name: page for page, names in _NAMES_OF_PAGES.items() for name in names.split()}
