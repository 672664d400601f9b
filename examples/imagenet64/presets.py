"""Presets: the settings that differ from the defaults of `Config`, which are `demo`."""

_PAPER = {
    # Section 4.4 and appendix A: 8 heads, width 512, hidden 2048, 6 or 12 layers.
    "num_layers": 6,
    "num_heads": 8,
    "hidden_dim": 512,
    "intermediate_dim": 2048,
    "feature_map": "relu",  # the paper's Performer where it names no kernel
    "num_random_features": 256,
    "exact_window": None,
    "position_embedding": "learned",
    "likelihood": "categorical",
    # Appendix A: fixed rate 1e-3, Adam with (0.9, 0.98) and 1e-9, clip 0.5, decay 0.1.
    "dropout": 0.1,
    "learning_rate": 1e-3,
    "learning_rate_decay": "none",
    "warmup_steps": 0,
    "weight_decay": 0.1,
    "beta_2": 0.98,
    "epsilon": 1e-9,
    "global_clipnorm": 0.5,
    # Appendix D.2: 100,000 steps. The paper's batch is "as large as fits".
    "batch_size": 8,
    "training_rows": 64,
    "num_steps": 100_000,
    "max_minutes": None,
    "steps_per_epoch": 1000,
    "every_n_steps": 1000,
    "control": False,
    "held_out_images": 1000,
}
# Five times the demo's steps, and settings that keep colours from drifting: README.md.
_PICTURES = {
    "num_last": 6,
    "start_of_row": "above",
    "input_noise": 16.0,
    "learning_rate": 2e-3,
    "num_steps": 3000,
    "max_minutes": None,
    "steps_per_epoch": 600,
    "num_samples": 6,
    "num_completions": 6,
    "temperature": 0.9,
}
PRESETS = {
    "demo": {},
    "pictures": _PICTURES,
    "paper": _PAPER,
    "paper12": {**_PAPER, "num_layers": 12},
}
