"""Reads arrays from a file that PyTorch saved, without PyTorch.

The file has a pickled dict. Its values are calls of a function that makes a tensor from
a storage; storages are outside the pickle. Since PyTorch 1.6 the file is a zip archive.
Before, it was a series of pickles followed by the storages.
"""

import collections
import io
import pickle
import zipfile

import numpy as np

DTYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}
# the first pickle of the older format
MAGIC = 0x1950A86A20F9469CFC6C


def read_state_dict(data):
    """Returns NumPy arrays by name from `torch.save(model.state_dict(), ...)`.

    Raises `UnpicklingError` if the file holds anything but tensors in a dict.
    """
    if data.startswith(b"PK"):
        return read_archive(data)
    return read_pickles(data)


def read_archive(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        [listing] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = listing.removesuffix("data.pkl")

        def storage(key, dtype, size):
            return np.frombuffer(archive.read(f"{root}data/{key}"), dtype, size)

        return TensorUnpickler(io.BytesIO(archive.read(listing)), storage).load()


def read_pickles(data):
    file = io.BytesIO(data)
    storages = {}

    def storage(key, dtype, size):
        # filled when the file's bytes are read; tensors are views of it
        if key not in storages:
            storages[key] = np.empty(size, dtype)
        return storages[key]

    magic, _, _, state_dict, keys = (
        TensorUnpickler(file, storage).load() for _ in range(5)
    )
    if magic != MAGIC:
        raise pickle.UnpicklingError("Wanted a file of torch.save. Received: another.")
    for key in keys:
        size = int.from_bytes(file.read(8), "little")
        content = file.read(size * storages[key].itemsize)
        storages[key][:] = np.frombuffer(content, storages[key].dtype)
    return state_dict


class TensorUnpickler(pickle.Unpickler):
    """Unpickles arrays, dicts and plain values, and refuses everything else.

    `storage` is a function of key, dtype and size that returns an array.
    """

    def __init__(self, file, storage):
        super().__init__(file)
        self._storage = storage

    def find_class(self, module, name):
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        allowed = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): tensor,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(
                f"A file of weights must hold tensors only. Received: {module}.{name}"
            )
        return allowed[module, name]

    def persistent_load(self, pid):
        _, dtype, key, _, size, *_ = pid
        return self._storage(key, dtype, size)


def tensor(storage, offset, shape, strides, *_):
    """Returns a view of a storage; ignores PyTorch's last arguments."""
    steps = sum((size - 1) * step for size, step in zip(shape, strides))
    if min((offset, *strides, *shape)) < 0 or offset + steps >= len(storage):
        raise pickle.UnpicklingError(
            f"A tensor must lie in its storage of {len(storage)} numbers. Received: "
            f"offset={offset}, shape={shape}, strides={strides}"
        )
    strides = [step * storage.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, strides)
