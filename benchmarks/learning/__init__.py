"""Do models learn with it? Small models with one attention or another, side by side."""
