"""Where each side runs: the file of its layers, and what pip installs."""

from benchmarks import workers

# A side has a process of its own, also where it shares an environment with another.
ENVIRONMENTS = {
    "ours": ("peers.ours", None),
    "keras_own": ("peers.keras_own", None),
    # the Big Bird and the kernels of tf-models-official, installed for `make bench` too
    "kernel_attention": (
        "peers.model_garden",
        workers.ENVIRONMENTS["kernel_attention"][1],
    ),
    # The last that has Longformer for TensorFlow. The one of the Model Garden, changed
    # from it, is in no package: that of tf-models-official leaves it out.
    "hugging_face": (
        "peers.hugging_face",
        ["transformers==4.57.*", "tensorflow==2.20.*", "tf-keras==2.20.*"],
    ),
    "keras_hub": ("peers.hub", ["keras-hub==0.32.*", "tensorflow==2.21.*"]),
}
