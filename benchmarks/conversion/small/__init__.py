"""Small models that are trained here, converted."""
