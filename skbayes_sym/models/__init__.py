"""What is believed: networks, likelihoods and priors; immutable, without weights."""
