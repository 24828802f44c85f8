"""Wheels and sdists with the same bytes whenever they are written.

Nothing in them depends on the time, the user, or the order of a folder.
"""

import base64
import gzip
import hashlib
import io
import re
import stat
import tarfile
import time
import zipfile

# The first date that a zip file can hold.
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)


def read_wheel(path):
    """The files of a wheel, `{name: bytes}`."""
    with zipfile.ZipFile(path) as archive:
        return {
            entry.filename: archive.read(entry)
            for entry in archive.infolist()
            if not entry.is_dir()
        }


def write_wheel(folder, files, tag, date):
    """Write a wheel into a folder; returns its path.

    Args:
        folder: a `Path`.
        files: those of a wheel, of which `WHEEL` and `RECORD` are replaced.
        tag: the platforms that it is for, such as `"any"`, or several joined
            by dots.
        date: the seconds since 1970 that all files are dated to.
    """
    files = dict(files)
    information = information_folder(files)
    tags = "".join(f"Tag: py3-none-{one}\n" for one in sorted(tag.split(".")))
    files[f"{information}/WHEEL"] = (
        "Wheel-Version: 1.0\n"
        "Generator: keras_linrec release/wheels.py\n"
        f"Root-Is-Purelib: {'true' if tag == 'any' else 'false'}\n{tags}"
    ).encode()
    record = f"{information}/RECORD"
    files.pop(record, None)
    lines = [f"{name},{_hash(files[name])}" for name in sorted(files)]
    files[record] = "".join(
        f"{line}\n" for line in [*lines, f"{record},,"]
    ).encode()
    path = (
        folder / f"{information.removesuffix('.dist-info')}-py3-none-{tag}.whl"
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files, key=lambda name: (name == record, name)):
            entry = zipfile.ZipInfo(name, _zip_date(date))
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    return path


def information_folder(files):
    """The name of a wheel's folder of metadata."""
    (name,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    return name


def with_licence(files, name, text):
    """The files of a wheel with one more licence file."""
    information = information_folder(files)
    header, blank, description = (
        files[f"{information}/METADATA"].decode().partition("\n\n")
    )
    licences = re.findall("^License-File: .*$", header, re.MULTILINE)
    last = licences[-1]
    header = header.replace(last, f"{last}\nLicense-File: {name}")
    metadata = header + blank + description
    return {
        **files,
        f"{information}/METADATA": metadata.encode(),
        f"{information}/licenses/{name}": text.encode(),
    }


def write_sdist(source, folder, date):
    """Write an sdist that was built elsewhere again; returns its path."""
    packed = io.BytesIO()
    with (
        tarfile.open(source) as old,
        tarfile.open(
            fileobj=packed, mode="w", format=tarfile.PAX_FORMAT
        ) as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            content = old.extractfile(entry) if entry.isfile() else None
            plain = tarfile.TarInfo(entry.name)
            plain.type, plain.size = entry.type, entry.size
            plain.mode, plain.mtime = 0o644 if content else 0o755, date
            new.addfile(plain, content)
    path = folder / source.name
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=date))
    return path


def _hash(content):
    digest = hashlib.sha256(content).digest()
    code = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return f"sha256={code},{len(content)}"


def _zip_date(date):
    return max(_FIRST_DATE, time.gmtime(date)[:6])
