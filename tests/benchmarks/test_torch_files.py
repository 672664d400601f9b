"""Files of PyTorch are read without PyTorch, and no code in them runs."""

import collections
import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from benchmarks.conversion import torch_files
from benchmarks.conversion.torch_files import read_state_dict


class FloatStorage:
    """A class of PyTorch."""


class LongStorage:
    """A class of PyTorch."""


NUMBERS = np.arange(12, dtype="<f4")
COUNTS = np.array([5, 7], "<i8")
# a row-major matrix, a transposed one later in the same storage, and integers
CUTS = {
    "matrix": ("0", 0, (2, 3), (3, 1)),
    "transposed": ("0", 6, (3, 2), (1, 3)),
    "counts": ("1", 0, (2,), (1,)),
}
STORAGES = {"0": (FloatStorage, NUMBERS), "1": (LongStorage, COUNTS)}
Cut = collections.namedtuple("Cut", "key offset shape strides")
Storage = collections.namedtuple("Storage", "key")


class Saver(pickle.Pickler):
    """Pickler that writes tensors as PyTorch does, as parts of storages."""

    def reducer_override(self, cut):
        if not isinstance(cut, Cut):
            return NotImplemented
        arguments = (Storage(cut.key), *cut[1:], False, collections.OrderedDict())
        return torch_files.tensor, arguments

    def persistent_id(self, storage):
        if not isinstance(storage, Storage):
            return None
        kind, numbers = STORAGES[storage.key]
        return "storage", kind, storage.key, "cpu", len(numbers), None


def pickled(value):
    """Returns a pickle that refers to `torch`, which need not be installed."""
    file = io.BytesIO()
    Saver(file, protocol=2).dump(value)
    ours = f"c{torch_files.__name__}\ntensor\n".encode()
    found = file.getvalue().replace(ours, b"ctorch._utils\n_rebuild_tensor_v2\n")
    return found.replace(f"c{__name__}\n".encode(), b"ctorch\n")


def archive(value):
    """Returns a file of PyTorch 1.6 or later."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as parts:
        parts.writestr("archive/data.pkl", pickled(value))
        for key, (_, numbers) in STORAGES.items():
            parts.writestr(f"archive/data/{key}", numbers.tobytes())
        parts.writestr("archive/version", "3")
    return file.getvalue()


def older(value):
    """Returns a file of PyTorch before 1.6."""
    parts = [pickle.dumps(part, protocol=2) for part in (torch_files.MAGIC, 1001, {})]
    parts.append(pickled(value))
    # storages may have another order
    keys = list(reversed(STORAGES))
    parts.append(pickle.dumps(keys, protocol=2))
    for key in keys:
        numbers = STORAGES[key][1]
        parts += [len(numbers).to_bytes(8, "little"), numbers.tobytes()]
    return b"".join(parts)


def state_dict(cuts):
    return collections.OrderedDict((name, Cut(*cut)) for name, cut in cuts.items())


@pytest.mark.parametrize("written", [archive, older])
def test_tensors_are_views_of_their_storage_and_nothing_else_is_made(written):
    found = read_state_dict(written(state_dict(CUTS)))
    assert list(found) == list(CUTS)
    np.testing.assert_array_equal(found["matrix"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(found["transposed"], [[6, 9], [7, 10], [8, 11]])
    np.testing.assert_array_equal(found["counts"], [5, 7])
    assert found["matrix"].dtype == np.float32 and found["counts"].dtype == np.int64
    for value in (print, os.system, np.float64(1), {"a": object()}):
        data = written(value)
        with pytest.raises(pickle.UnpicklingError, match="must hold tensors only"):
            read_state_dict(data)
    for outside in (
        ("0", 1, (3, 4), (4, 1)),
        ("0", 0, (2,), (12,)),
        ("0", 5, (2, 3), (-3, 1)),
        ("0", -1, (2,), (1,)),
    ):
        data = written(state_dict({"weight": outside}))
        with pytest.raises(pickle.UnpicklingError, match="in its storage of 12"):
            read_state_dict(data)
