import shutil

from dml_core.studies import code_version


def test_a_changed_loss_gives_another_version_and_a_changed_study_does_not(tmp_path, monkeypatch):
    root = code_version.Path(code_version.__file__).parents[1]
    copy = tmp_path / "dml_core"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_version, "__file__", str(copy / "studies" / "code_version.py"))

    def version():
        code_version.hash_training_code.cache_clear()
        return code_version.hash_training_code()

    before = version()
    (copy / "studies" / "rungs.py").write_text("")
    assert version() == before
    (copy / "losses" / "triplet.py").write_text("")
    assert version() != before
    code_version.hash_training_code.cache_clear()
