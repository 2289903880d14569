"""The scikit-learn faces: the only folder that knows both scikit-learn and torch."""
