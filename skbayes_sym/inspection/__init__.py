"""Display classes: arrays in ``__init__``, drawing in ``plot(ax=None)``."""
