"""What papers printed, to compare with; no estimator trains on it unless asked to by name.

`analytic_mean_field` of Nakajima et al. 2013.

It varies the methods and may import them; none of them imports it.
"""
