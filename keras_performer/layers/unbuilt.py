"""The error of a layer that is used before it is built."""


def must_be_built(layer):
    """The message for a method that needs what `build` makes."""
    return (
        f"{type(layer).__name__} must be built first: call it on data, or "
        f"build(input_shape). Received: {vars(layer).get('name')!r}, not built"
    )


class SaysWhenUnbuilt:
    """Mixin for layers whose `build` makes attributes that their methods read."""

    def __getattr__(self, name):
        # Python asks here for what it finds nowhere else
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("__") and vars(self).get("built") is False:
            message = f"{must_be_built(self)}, which has no {name!r} yet"
        # of this class, so that hasattr is False
        raise AttributeError(message, name=name, obj=self)
