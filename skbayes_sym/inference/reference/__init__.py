"""What papers printed, to compare with; no estimator trains on it unless asked to by name.

`averaged_kl` (an objective that is no bound) and `repeated_datum` (a translation in closed form) of
Kurle et al. 2022, `spectral`, `svm_knn` and `predictive_convergence` of Wiese et al. 2023,
`analytic_mean_field` of Nakajima et al. 2013, `printed_rotation_gap` of Moore 2016 (an objective
that exceeds the log evidence).

It varies the methods and may import them; none of them imports it.
"""
