"""Contenders of a made-up framework, in a folder in the place of `benchmarks`."""

from benchmarks import workers


def put(contenders, environments, tmp_path, monkeypatch):
    """Has workers find them.

    Args:
        contenders: str, the source of `benchmarks/contenders/fake.py`.
        environments: dict, more of `workers.ENVIRONMENTS`.
    """
    package = tmp_path / "benchmarks"
    (package / "contenders").mkdir(parents=True)
    (package / "contenders" / "fake.py").write_text(contenders)
    (package / "__init__.py").touch()
    (package / "contenders" / "__init__.py").touch()
    source = (workers.ROOT / "benchmarks" / "worker.py").read_text()
    (package / "worker.py").write_text(source)
    monkeypatch.setattr(workers, "ROOT", tmp_path)
    monkeypatch.setattr(workers, "FOLDER", tmp_path / ".bench")
    for name, environment in environments.items():
        monkeypatch.setitem(workers.ENVIRONMENTS, name, environment)
