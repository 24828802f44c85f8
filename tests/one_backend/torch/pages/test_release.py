"""What `release/` writes: wheels and sdists whose bytes do not depend on when,
where and by whom they are written."""

import base64
import hashlib
import io
import os
import sys
import tarfile

import pytest
from support import ROOT

from keras_linrec.kernels.native import cross

pytestmark = pytest.mark.rest

RELEASE = ROOT / "release"
NOON = 1_700_000_000
FILES = {
    "keras_linrec/__init__.py": b"print()\n",
    "keras_linrec-0.1.0.dist-info/METADATA": (
        b"Metadata-Version: 2.4\nLicense-File: LICENSE\nName: keras-linrec\n\n"
        b"License-File: in the description\n"
    ),
    "keras_linrec-0.1.0.dist-info/WHEEL": b"Tag: py3-none-any\n",
    "keras_linrec-0.1.0.dist-info/RECORD": b"of other files\n",
}


@pytest.fixture
def archives(monkeypatch):
    monkeypatch.syspath_prepend(str(RELEASE))
    import archives

    yield archives
    del sys.modules["archives"]


def test_a_wheel_is_the_same_whenever_it_is_written(archives, tmp_path):
    first = archives.write_wheel(tmp_path, FILES, "any", NOON).read_bytes()
    umask = os.umask(0o077)
    try:
        turned = dict(reversed(FILES.items()))
        path = archives.write_wheel(tmp_path, turned, "any", NOON)
    finally:
        os.umask(umask)
    assert path.read_bytes() == first
    later = archives.write_wheel(tmp_path, FILES, "any", NOON + 10)
    assert later.read_bytes() != first


def test_a_wheel_tells_its_tags_and_the_hashes_of_its_files(archives, tmp_path):
    tag = "manylinux_2_17_x86_64.manylinux2014_x86_64"
    path = archives.write_wheel(tmp_path, FILES, tag, NOON)
    assert path.name == f"keras_linrec-0.1.0-py3-none-{tag}.whl"
    files = archives.read_wheel(path)
    wheel = files["keras_linrec-0.1.0.dist-info/WHEEL"].decode()
    assert "Root-Is-Purelib: false\n" in wheel
    for one in tag.split("."):
        assert f"Tag: py3-none-{one}\n" in wheel
    record = files["keras_linrec-0.1.0.dist-info/RECORD"].decode()
    rows = [line.split(",") for line in record.splitlines()]
    assert sorted(name for name, *_ in rows) == sorted(files)
    for name, hashed, size in rows:
        if hashed:
            digest = hashlib.sha256(files[name]).digest()
            code = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            assert (hashed, int(size)) == (f"sha256={code}", len(files[name]))
    assert rows[-1] == ["keras_linrec-0.1.0.dist-info/RECORD", "", ""]


def test_notices_are_listed_among_the_licences(archives):
    files = archives.with_licence(FILES, "NOTICES", "of others")
    metadata = files["keras_linrec-0.1.0.dist-info/METADATA"].decode()
    header, description = metadata.split("\n\n")
    assert header.count("License-File") == 2
    assert "License-File: LICENSE\nLicense-File: NOTICES\nName" in header
    assert description.count("License-File") == 1
    name = "keras_linrec-0.1.0.dist-info/licenses/NOTICES"
    assert files[name] == b"of others"


def test_an_sdist_is_the_same_whenever_it_is_written(archives, tmp_path):
    written = []
    for date, names in ((1, ("a", "b")), (2, ("b", "a"))):
        source = tmp_path / str(date) / "package-1.tar.gz"
        source.parent.mkdir()
        with tarfile.open(source, "w:gz") as archive:
            for name in names:
                entry = tarfile.TarInfo(f"package-1/{name}")
                entry.mtime, entry.uid, entry.size = date, date, 1
                archive.addfile(entry, io.BytesIO(name.encode()))
        target = tmp_path / f"again-{date}"
        target.mkdir()
        written.append(archives.write_sdist(source, target, NOON).read_bytes())
    assert written[0] == written[1]


def test_every_target_has_a_tag():
    text = (RELEASE / "wheels.py").read_text()
    assert all(f'"{target}": "' in text for target in cross.TARGETS)
