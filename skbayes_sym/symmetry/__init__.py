"""Groups that act on weights and leave the model unchanged."""
