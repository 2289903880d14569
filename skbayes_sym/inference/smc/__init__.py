"""Sequential Monte Carlo: particles go from prior to posterior through rising temperatures.

Reading order: `tempering` (how far a stage goes, who survives), `stages` (one stage), `smc` (all of
them), `replicates` (independent runs, side by side).

Tested elsewhere: `stages` (with `smc`).

In: a `LogPosterior` whose prior can be sampled, and its symmetry group. Out: equally weighted
particles (N, D) and the log evidence in nats.
"""
