"""An encoder of patches fills in what is hidden of two photographs.

    python -m examples.vision               # some minutes on 2 cores
    python -m examples.vision --steps 10    # a minute, only to see that it runs

The photographs are those that scikit-learn ships, a temple and a flower. A crop of
64x64 pixels is 256 patches of 4x4, tokens in rows on a grid; rotary positions say how
they lie to each other. Three patches in four, drawn by chance, are hidden, and the
encoder is to say what they show, as those of masked autoencoders (arXiv 2111.06377).
It is trained on crops of the left three quarters and tried on the right quarters.

Beside models with Performer attention (a window of two rows exactly, all patches by
random features), the window alone, exact attention and none stand guesses that learn
nothing: the mean of the visible pixels, which all models start from, and means of the
nearest ones. The picture goes to `runs/vision`.
"""

import pathlib

import keras
import numpy as np
from keras import layers
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_images
from sklearn.neighbors import KNeighborsRegressor

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention, PerformerBlock

SIDE, PATCH = 16, 4  # patches of a crop, pixels of a patch
CROP = SIDE * PATCH
SPLIT = 480  # of 640 columns, those to train on
HIDDEN = 3 * SIDE * SIDE // 4
NEAREST = 8
HEADS, DIM = 4, 64
WINDOW = 2 * SIDE + 1
SIZES = {"num_heads": HEADS, "key_dim": DIM // HEADS, "rotary": (SIDE, SIDE)}
ROWS = {
    "no attention": lambda: None,
    "window alone": lambda: LocalAttention(**SIZES, sliding_window=WINDOW),
    "Performer": lambda: PerformerAttention(
        **SIZES, exact_window=WINDOW, num_random_features=32, seed=0
    ),
    "exact attention": lambda: ExactAttention(**SIZES),
}
BATCH = 8
GREY = 128  # in the picture, where nothing is given


def main(steps: int = 100, output_dir: str = "runs/vision"):
    """Trains, prints and draws.

    Args:
        steps: optimizer steps of each model.
        output_dir: folder for `photographs.png`.

    Returns:
        Dict of root mean squared errors of hidden pixels, in greys of 256, for each
        held-out crop; and dict of what the picture shows.
    """
    random = np.random.default_rng(0)
    photographs = load_sample_images().images
    training, _ = hide(training_crops(photographs, BATCH * steps, random), random)
    crops = held_out_crops(photographs)
    held_out, means = hide(crops, random)
    guesses = {
        "mean of the visible pixels": np.zeros_like(held_out["y"]),
        "nearest visible pixels": nearest_pixels(held_out),
    }
    for name, make_attention in ROWS.items():
        print(f"\n{name}: {steps} steps")
        model = make_model(make_attention, steps)
        model.fit(**training, batch_size=BATCH, shuffle=False, verbose=2)
        guesses[name] = model(held_out["x"]).numpy()  # 24 crops, one batch

    errors = {name: error_of(guess, held_out) for name, guess in guesses.items()}
    print(f"\n{'error in greys':30}  mean  above the nearest pixels', standard error")
    for name, of_crops in errors.items():
        more = of_crops - errors["nearest visible pixels"]
        error = more.std(ddof=1) / len(more) ** 0.5
        print(f"{name:30}{of_crops.mean():6.1f}{more.mean():+8.1f} +- {error:.1f}")
    is_hidden = held_out["sample_weight"][..., np.newaxis] == 1
    pictures = {"the photographs": side_by_side(crops)}
    for name, guess in {"given": GREY / 127.5 - 1 - means, **guesses}.items():
        filled = np.where(is_hidden, guess, held_out["y"])
        pictures[name] = side_by_side(to_crops(filled + means))
    path = pathlib.Path(output_dir) / "photographs.png"
    draw(path, pictures)
    print(f"wrote {path}")
    return errors, pictures


def training_crops(photographs, count, random):
    """Crops at any places of the left columns, uint8 `(count, 64, 64, 3)`."""
    crops = []
    for index in random.integers(len(photographs), size=count):
        image = photographs[index][:, :SPLIT]
        top, left = (random.integers(size - CROP + 1) for size in image.shape[:2])
        crops.append(image[top : top + CROP, left : left + CROP])
    return np.stack(crops)


def held_out_crops(photographs):
    """Crops side by side of the right columns, photograph by photograph, row by row."""
    return np.stack(
        [
            image[top : top + CROP, left : left + CROP]
            for image in photographs
            for top in range(0, image.shape[0] - CROP + 1, CROP)
            for left in range(SPLIT, image.shape[1] - CROP + 1, CROP)
        ]
    )


def side_by_side(crops):
    """Held-out crops where they were, and the two photographs beside each other."""
    cut = crops.reshape(2, -1, (640 - SPLIT) // CROP, CROP, CROP, 3)
    cut = cut.transpose(1, 3, 0, 2, 4, 5)
    return cut.reshape(cut.shape[0] * CROP, -1, 3)


def to_patches(crops):
    """Numbers -1 to 1 of the patches, row by row, `(count, 256, 48)`."""
    cut = crops.reshape(-1, SIDE, PATCH, SIDE, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    return (cut.reshape(len(crops), SIDE * SIDE, -1) / 127.5 - 1).astype("float32")


def to_crops(patches):
    """The crops of such patches, uint8."""
    cut = patches.reshape(-1, SIDE, SIDE, PATCH, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    greys = np.clip(127.5 * (cut + 1), 0, 255).round().astype("uint8")
    return greys.reshape(-1, CROP, CROP, 3)


def hide(crops, random):
    """What `fit` takes, and the mean visible pixel of each crop `(count, 1, 48)`.

    Inputs are patches less that mean, or 0 where they are hidden, and whether they are;
    targets are all patches less the mean; those that are hidden count.
    """
    patches = to_patches(crops)
    is_hidden = np.tile(np.arange(SIDE * SIDE) < HIDDEN, (len(crops), 1))
    is_hidden = random.permuted(is_hidden, axis=1).astype("float32")
    flag = is_hidden[..., np.newaxis]
    pixels = patches.reshape(*is_hidden.shape, PATCH**2, 3).mean(2)
    mean = (pixels * (1 - flag)).sum(1, keepdims=True) / (SIDE * SIDE - HIDDEN)
    means = np.tile(mean, PATCH**2)
    targets = patches - means
    seen = np.concatenate([targets * (1 - flag), flag], axis=-1)
    return {"x": seen, "y": targets, "sample_weight": is_hidden}, means


def nearest_pixels(given):
    """Means of the nearest visible pixels, weighted by one over their distance."""
    crops = np.indices((CROP, CROP)).transpose(1, 2, 0)  # where each pixel is
    cut = crops.reshape(SIDE, PATCH, SIDE, PATCH, 2).transpose(0, 2, 1, 3, 4)
    places = cut.reshape(SIDE * SIDE, PATCH**2, 2)
    guesses = []
    for patches, is_hidden in zip(given["y"], given["sample_weight"]):
        seen, guess = is_hidden == 0, patches.copy()
        model = KNeighborsRegressor(NEAREST, weights="distance")
        model.fit(places[seen].reshape(-1, 2), patches[seen].reshape(-1, 3))
        made = model.predict(places[~seen].reshape(-1, 2))
        guess[~seen] = made.reshape(-1, 3 * PATCH**2)
        guesses.append(guess)
    return np.stack(guesses)


def error_of(guess, given):
    """Root mean squared errors of the hidden pixels of each crop, in greys of 256."""
    squares = ((guess - given["y"]) ** 2).mean(-1)
    weights = given["sample_weight"]
    return 127.5 * np.sqrt((squares * weights).sum(1) / weights.sum(1))


def make_model(make_attention, steps):
    """Two blocks on vectors of the patches; 0.1 M parameters."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((SIDE * SIDE, 3 * PATCH**2 + 1))
    x = layers.Dense(DIM)(inputs)
    for _ in range(2):
        x = PerformerBlock(make_attention(), 2 * DIM)(x)
    outputs = layers.Dense(3 * PATCH**2)(layers.LayerNormalization()(x))
    model = keras.Model(inputs, outputs)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=3e-3, warmup_steps=min(50, steps)
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    )
    return model


def draw(path, pictures):
    """Draws the held-out parts of the photographs as they are, and as they are made."""
    figure = Figure(figsize=(1.6 * len(pictures), 2.8), layout="constrained")
    for axes, (name, image) in zip(figure.subplots(1, len(pictures)), pictures.items()):
        axes.imshow(image)
        axes.set_axis_off()
        axes.set_title(name.replace(" visible", "\nvisible"), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    import jsonargparse

    jsonargparse.CLI(main, as_positional=False)
