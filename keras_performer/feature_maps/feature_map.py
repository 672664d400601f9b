"""What every feature map can do."""


class FeatureMap:
    """Describes the features of queries and keys whose products are the attention.

    A subclass defines `draw`, which makes a random projection matrix, and `kernel`,
    which joins such a matrix and the feature map into what `keras_performer.ops`
    computes with. Register it with `keras.saving.register_keras_serializable` and
    define `get_config`, so that layers which use it can be saved. Maps with equal
    attributes are equal, and layers with equal maps share compiled functions: the
    attributes must be hashable, and must not change.
    """

    # Whether the map is defined without a random projection.
    projection_is_optional = False

    def check(self, num_random_features):
        """Raises a `ValueError` if the map cannot have that many features."""
        if num_random_features is None and not self.projection_is_optional:
            raise ValueError(
                f"{type(self).__name__} needs random features: num_random_features "
                "must be a positive int; None (no projection) is for generalized "
                'kernels such as "relu". Received: num_random_features=None'
            )

    def draw(self, num_features, head_dim, seed):
        """Draws a float32 projection matrix of shape `(num_features, head_dim)`.

        Args:
            num_features: int M.
            head_dim: int H.
            seed: int32 tensor of shape `(2,)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `draw`.")

    def kernel(self, projection_matrix):
        """Returns the kernel that `keras_performer.ops` computes attention with.

        Args:
            projection_matrix: tensor of shape `(M, H)`, or `None` for no projection.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `kernel`.")

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        try:
            return hash((type(self), *sorted(vars(self).items())))
        except TypeError as error:
            raise TypeError(
                "The attributes of a feature map must be hashable (numbers, strings, "
                "tuples; not lists or arrays), as layers with equal maps share what is "
                "compiled. Change them, or make the layer with jit_compile=False. "
                f"Received: {type(self).__name__} with {vars(self)}"
            ) from error

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)
