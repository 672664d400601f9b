"""The base class of feature maps."""

import inspect
from typing import Any, Self, TypeAlias

import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.shapes import TensorLike

# One array, or a dict of named arrays.
Parameters: TypeAlias = tf.Tensor | dict[str, tf.Tensor]


class FeatureMap:
    """Describes features of queries and keys, whose products are attention weights.

    A subclass defines `draw`, which samples the parameters of the features, and
    `kernel`, which returns the kernel that `keras_performer.ops` computes with. A
    subclass without random features defines only `kernel`. To save layers with the map,
    define `get_config` and register the class with
    `keras.saving.register_keras_serializable`. Layers with equal maps (equal
    attributes) share compiled functions, so attributes must be hashable and must not
    change.

    Parameters are one array, which is saved as the weight `projection_matrix`, or a
    dict of named arrays. An array may have a first axis for key-value heads.
    """

    # True if the map also works without a random projection.
    projection_is_optional = False
    # True if the features estimate softmax weights, which exact weights can replace.
    estimates_softmax = False
    # True if the parameters train; they are then not redrawn.
    trainable = False
    # Initial scale of the logits with `qk_norm`. It is small because the noise of
    # random features grows with the scale.
    initial_logit_scale = 4.0

    @property
    def default_num_random_features(self) -> int | None:
        """The number that `num_random_features="auto"` stands for.

        It is 256, as in the paper's experiments, or `None` for a map that does not
        define `draw` and so has no random features.
        """
        kind = type(self)
        is_fixed = (
            kind.draw is FeatureMap.draw
            and kind.draw_for_heads is FeatureMap.draw_for_heads
        )
        return None if is_fixed else 256

    def check(self, num_random_features: int | None) -> None:
        """Raises a `ValueError` if the map cannot have that many features."""
        if self.default_num_random_features is None:
            if num_random_features is not None:
                raise ValueError(
                    f"{type(self).__name__} has no random features: leave "
                    "num_random_features out, or use num_random_features=None. "
                    f"Received: num_random_features={num_random_features}"
                )
        elif num_random_features is None and not self.projection_is_optional:
            raise ValueError(
                f"{type(self).__name__} needs random features: num_random_features "
                "must be a positive int; None (no projection) is for generalized "
                'kernels such as "relu". Received: num_random_features=None'
            )

    def draw(self, num_features: int, head_dim: int, seed: TensorLike) -> Parameters:
        """Samples the parameters, such as a float32 matrix `(num_features, head_dim)`.

        Args:
            num_features: int M.
            head_dim: int H.
            seed: int32 tensor of shape `(2,)`; equal seeds give equal parameters.

        Returns:
            One tensor, or a dict of named tensors.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `draw`.")

    def draw_for_heads(
        self, num_heads: int, num_features: int, head_dim: int, seed: TensorLike
    ) -> Parameters:
        """Samples parameters like `draw`, for maps with parameters for each head.

        Args:
            num_heads: int K, the key-value heads.
            num_features, head_dim, seed: as in `draw`.
        """
        return self.draw(num_features, head_dim, seed)

    def kernel(self, parameters: Parameters | None) -> ops.Kernel:
        """Returns the kernel that `keras_performer.ops` computes attention with.

        Args:
            parameters: result of `draw` as tensors; `None` without a projection.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `kernel`.")

    def num_features(self, num_random_features: int | None, head_dim: int) -> int:
        """Returns the number of features of a query or key of size `head_dim`."""
        return num_random_features or head_dim

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        try:
            return hash((type(self), *sorted(vars(self).items())))
        except TypeError as error:
            raise TypeError(
                "The attributes of a feature map must be hashable (numbers, strings, "
                "tuples; not lists or arrays), as layers with equal maps share their "
                "compilation. Change them, or make the layer with jit_compile=False. "
                f"Received: {type(self).__name__} with {vars(self)}"
            ) from error

    def get_config(self) -> dict[str, Any]:
        taken = list(inspect.signature(type(self)).parameters)
        if taken and type(self).get_config is FeatureMap.get_config:
            raise NotImplementedError(
                f"{type(self).__name__} has the arguments {', '.join(taken)}: define "
                "get_config, which returns them, so that layers with this map can be "
                "saved and copied."
            )
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)
