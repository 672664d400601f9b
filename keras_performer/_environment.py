"""The check that Keras 3 runs on TensorFlow, before the rest of the package loads."""

import importlib.util
import os


def check():
    """Raises an `ImportError` with what to do unless Keras 3 runs on TensorFlow."""
    # The values by which TensorFlow itself takes the variable to be set.
    legacy_keras = os.environ.get("TF_USE_LEGACY_KERAS")
    if legacy_keras in ("true", "True", "1"):
        raise ImportError(
            "keras_performer needs Keras 3, but TF_USE_LEGACY_KERAS="
            f"{legacy_keras} asks for the legacy tf_keras: unset it and start Python "
            "again."
        )
    tensorflow = importlib.util.find_spec("tensorflow")
    # A folder that pip left behind has a spec, but no file to load.
    if tensorflow is None or tensorflow.origin is None:
        raise ImportError(
            "keras_performer needs TensorFlow, which is not installed: run "
            '`pip install ".[tensorflow]"` (or `.[cpu]`) in a clone of the repository, '
            "or `pip install tensorflow-tpu==2.19.1` on a TPU machine."
        )
    try:
        import keras
    except (ImportError, ValueError) as error:  # no JAX, or no such backend
        raise ImportError(
            "keras_performer needs Keras 3 on TensorFlow, but `import keras` fails "
            f"({error}): set KERAS_BACKEND=tensorflow, or install Keras and TensorFlow "
            "again; `python -m keras_performer.preflight` looks for known problems."
        ) from error
    found = f"Keras {keras.__version__} on {keras.backend.backend()}"
    if not found.startswith("Keras 3.") or not found.endswith(" tensorflow"):
        raise ImportError(
            f"keras_performer needs Keras 3 on TensorFlow. Received: {found}. Set "
            "KERAS_BACKEND=tensorflow and start Python again."
        )
