"""Settings of the ImageNet64 example, with their defaults.

`parse` reads flags and YAML files. Later entries of this list override earlier ones:
the defaults below, the preset, the YAML files of `--config` in order, the flags.
"""

import dataclasses
import math
import sys
from typing import Literal

from examples.imagenet64.presets import PRESETS

# Heads are float32, so other policies would give gradients of different dtypes.
DTYPE_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one run.

    Args:
        preset: demo is a small model for a few CPU minutes; pictures trains it longer,
            for better pictures; paper and paper12 are the paper's models with 6 and 12
            layers.
        data_dir: folder with ImageNet64 or with TFRecord shards (these also on gs://);
            null: the photographs that scikit-learn ships.
        held_out_images: largest number of held-out images to evaluate on.
        output_dir: folder of this machine for the pictures, the curve and the model.
        checkpoint_dir: folder of checkpoints, also on gs://; null: inside output_dir.
        tensorboard_dir: folder of TensorBoard logs, also on gs://; null: no logs.
        resume: continue from the checkpoint, if there is one.
        seed: seed of the weights, random features, data order and generated images.
        dtype_policy: dtype policy of Keras; mixed_float16 on one replica only.
        strategy: devices that share each batch. none: one device; mirrored: all GPUs of
            this machine (its CPUs if it has none); multi_worker: the machines that
            TF_CONFIG names; tpu: a TPU.
        tpu: local for the TPU of this machine, or the name or the address of one.
        num_layers: number of blocks.
        num_heads: attention heads of each block.
        hidden_dim: width of the model, a multiple of num_heads.
        intermediate_dim: width inside the feedforward networks.
        dropout: rate of dropout while training.
        attention: local is local attention, without features; none is the same model
            without attention.
        feature_map: feature map of attention, as in keras_performer.feature_maps.get.
        num_random_features: features of each attention head; null for "taylor", whose
            features are not random.
        exact_window: keys nearer than this get exact weights; null: none.
        position_embedding: learned vectors, or rotary positions of row, column and
            channel. Rotary positions need attention and a head size divisible by 6.
        recompute: parts that the backward pass computes again to save memory, as in
            keras_performer.PerformerLM; null: none.
        likelihood: likelihood of one colour value, as 256 logits or as a mixture of
            logistics. With mixture, the model also reads colours as numbers.
        num_mixtures: logistics in the mixture.
        num_last: with mixture, number of last sub-pixels that the model reads without
            attention, at least 3.
        start_of_row: with mixture, reference of the colours in the first column: grey,
            or the pixel above.
        learning_rate: largest learning rate of AdamW.
        learning_rate_decay: decay after warm-up; cosine ends at a hundredth.
        warmup_steps: steps in which the learning rate rises linearly.
        weight_decay: weight decay of AdamW; 0 is Adam.
        beta_1: decay of AdamW's first moment.
        beta_2: decay of AdamW's second moment.
        epsilon: epsilon of AdamW.
        global_clipnorm: gradients are scaled down to this global norm; null: never.
        batch_size: images in one training step, over all replicas together.
        training_rows: rows of each image in a training step, beginning at a random row;
            64 is all. Fewer need rotary positions.
        input_noise: largest standard deviation, in colour values, of noise in the
            inputs during training; targets have none.
        num_steps: optimizer steps, rounded up to whole epochs of steps_per_epoch; a
            resumed run counts earlier steps.
        max_minutes: stop training after this time; null: never.
        control: also train the same model without attention, for comparison.
        steps_per_epoch: steps between evaluations, checkpoints and log lines.
        steps_per_execution: steps in one compiled call, as in keras.Model.compile; must
            divide steps_per_epoch.
        every_n_steps: steps between redraws of the random features; null: never redraw.
        num_samples: images generated from nothing.
        num_completions: held-out images completed from their top half.
        temperature: temperature of sampling; 0 is greedy.
        top_k: sample among the k likeliest values only; null: all.
        top_p: sample among the likeliest values of this total probability; null: all.
    """

    preset: Literal["demo", "pictures", "paper", "paper12"] = "demo"
    # data
    data_dir: str | None = None
    held_out_images: int = 24
    # files
    output_dir: str = "runs/demo"
    checkpoint_dir: str | None = None
    tensorboard_dir: str | None = None
    resume: bool = False
    # run
    seed: int = 0
    dtype_policy: Literal[DTYPE_POLICIES] = "float32"
    strategy: Literal["none", "mirrored", "multi_worker", "tpu"] = "none"
    tpu: str = "local"
    # model
    num_layers: int = 2
    num_heads: int = 4
    hidden_dim: int = 96
    intermediate_dim: int = 192
    dropout: float = 0.0
    attention: Literal["performer", "local", "none"] = "performer"
    feature_map: str = "softmax"
    num_random_features: int | None = 16
    exact_window: int | None = 193
    position_embedding: Literal["learned", "rotary"] = "rotary"
    recompute: Literal["block", "network"] | None = None
    likelihood: Literal["categorical", "mixture"] = "mixture"
    num_mixtures: int = 5
    num_last: int = 3
    start_of_row: Literal["grey", "above"] = "grey"
    # optimizer
    learning_rate: float = 3e-3
    learning_rate_decay: Literal["none", "cosine"] = "cosine"
    warmup_steps: int = 50
    weight_decay: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-8
    global_clipnorm: float | None = 1.0
    # training
    batch_size: int = 1
    training_rows: int = 16
    input_noise: float = 0.0
    num_steps: int = 600
    max_minutes: float | None = 5.0
    control: bool = True
    steps_per_epoch: int = 150
    steps_per_execution: int = 1
    every_n_steps: int | None = 1000
    # sampling
    num_samples: int = 4
    num_completions: int = 4
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        at_least = {
            1: "num_layers num_heads hidden_dim intermediate_dim num_random_features "
            "num_mixtures batch_size num_steps steps_per_epoch steps_per_execution "
            "every_n_steps held_out_images top_k exact_window training_rows",
            3: "num_last",
            0: "seed warmup_steps num_samples num_completions",
        }
        for least, names in at_least.items():
            for name in names.split():
                value = getattr(self, name)
                self._check(name, value is None or value >= least, f"at least {least}")
        for name in ("learning_rate", "epsilon", "global_clipnorm", "max_minutes"):
            value = getattr(self, name)
            positive = value is None or (value > 0 and math.isfinite(value))
            self._check(name, positive, "a positive number")
        for name in ("dropout", "beta_1", "beta_2"):
            self._check(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        for name in ("weight_decay", "temperature", "input_noise"):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        local = "://" not in self.output_dir
        self._check("output_dir", local, "a folder of this machine")
        self._check("top_p", self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]")
        for name, known in (("preset", PRESETS), ("dtype_policy", DTYPE_POLICIES)):
            is_known = getattr(self, name) in known
            self._check(name, is_known, f"one of {', '.join(known)}")
        self._check("seed", self.seed < 2**31, "below 2**31")
        for name, part in {
            "hidden_dim": "num_heads",
            "steps_per_epoch": "steps_per_execution",  # Keras would add steps
        }.items():
            size = getattr(self, part)
            divides = getattr(self, name) % size == 0
            self._check(name, divides, f"a multiple of {part}={size}")

        whole = self.position_embedding == "rotary" or self.training_rows == 64
        must_be = "64 with learned positions, and at most 64"
        if self.attention == "local":
            self._check("exact_window", self.exact_window is not None, "at least 1")
        self._check("training_rows", whole and self.training_rows <= 64, must_be)

    def _check(self, name, good, must_be):
        if not good:
            raise ValueError(
                f"{name} must be {must_be}. Received: {name}={getattr(self, name)!r}"
            )

    @property
    def backup_dir(self):
        """Folder for checkpoints."""
        return self.checkpoint_dir or f"{self.output_dir}/checkpoint"

    @classmethod
    def from_preset(cls, preset, **changes):
        """Returns a preset with changes: `Config.from_preset("paper", seed=1)`."""
        return cls(**{"preset": preset, **PRESETS.get(preset, {}), **changes})


def parse(argv=None):
    """Reads the command line into a `Config`; ends the program if it is wrong.

    Args:
        argv: list of str, flags such as `["--config", "x.yaml", "--seed", "1"]`; None:
            the flags of this process.
    """
    import jsonargparse

    parser = jsonargparse.ArgumentParser(
        description="Trains a causal Performer on 64x64 images.",
        usage="%(prog)s [--config FILE.yaml] [--preset NAME] [--SETTING VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        action="config",
        help="YAML file with some of the settings below; may be given several times",
    )
    parser.add_class_arguments(Config)
    argv = _config_first(sys.argv[1:] if argv is None else list(argv))
    # A file may name the preset: a first pass, which prints nothing, looks it up.
    silent = [x for x in argv if not x.startswith(("--print_config", "--help", "-h"))]
    parser.set_defaults(PRESETS[parser.parse_args(silent).preset])
    settings = parser.parse_args(argv).as_dict()
    del settings["config"]
    try:
        return Config(**settings)
    except ValueError as error:
        parser.error(str(error))


def _config_first(argv):
    """Moves `--config` before the other flags, so that these win in any order."""
    files, flags = [], []
    rest = iter(argv)
    for argument in rest:
        if argument == "--config":
            files += [argument, *[path for path in [next(rest, None)] if path]]
        elif argument.startswith("--config="):
            files.append(argument)
        else:
            flags.append(argument)
    return files + flags
