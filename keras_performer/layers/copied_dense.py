"""Dense layers that start as copies of others."""

import keras

from keras_performer.layers import keras_privates
from keras_performer.layers.heads_dense import HeadsDense


def copied_dense(dense, name):
    """A built dense layer that starts with the weights of another, and has its own.

    Args:
        dense: a built `HeadsDense`.
        name: str, name of the layer.
    """
    copy = CopiedDense.from_config({**dense.get_config(), "name": name})
    copy.start_as(dense)
    copy.build_from_config(dense.get_build_config())
    return copy


@keras.saving.register_keras_serializable(package="keras_performer")
class CopiedDense(HeadsDense):
    """A `HeadsDense` whose weights start as those of another, see `copied_dense`.

    They do so again where a file of weights has none for it.
    """

    _original = None

    def start_as(self, dense):
        """Makes a layer start as another, a built one."""
        self._original = lambda: dense  # not an attribute, which Keras would save
        self.kernel_initializer = dense.kernel_initializer
        self.bias_initializer = dense.bias_initializer

    def add_weight(self, *args, name=None, initializer=None, **options):
        if self._original is not None and name in ("kernel", "bias"):
            weight = getattr(self._original(), name)
            again = initializer  # what the other layer's gave at first

            # called once there are values, which may be after a model is made
            def initializer(shape, dtype):
                if keras_privates.has_value(weight):
                    return keras_privates.value_without_autocast(weight)
                return again(shape, dtype)

        return super().add_weight(*args, name=name, initializer=initializer, **options)

    def load_own_variables(self, store):
        if keras_privates.same_named_entry(store, self).keys():
            super().load_own_variables(store)
        elif self._original is not None:
            self.start_again()

    def start_again(self):
        """Gives it the weights that the other layer has now."""
        for weight, start in zip(self.weights, self._original().weights):
            weight.assign(start)
