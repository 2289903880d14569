"""What the papers printed, kept to compare with; no estimator needs it to be right.

`analytic_mean_field` (a factorisation's optimum in closed form, Nakajima et al. 2013),
`averaged_kl` (Kurle et al.'s heuristic objective) and `repeated_datum` (their example in closed
form), `svm_knn`, `spectral` and `predictive_convergence` (Wiese et al. 2023). They may import
any method; none imports them.
"""
