"""Whether a compiled library needs no more than its wheel's tag promises."""

import re

import lief

# It prints messages about what it does not know in Apple's libraries.
lief.logging.disable()

# The newest versions of symbols that a tag's oldest systems have: CentOS 7
# (PEP 599), and Ubuntu 18.04.
_VERSIONS = {
    "manylinux_2_17": {
        "GLIBC": (2, 17),
        "GLIBCXX": (3, 4, 19),
        "CXXABI": (1, 3, 7),
        "GCC": (4, 8, 0),
    },
    "manylinux_2_27": {
        "GLIBC": (2, 27),
        "GLIBCXX": (3, 4, 24),
        "CXXABI": (1, 3, 11),
        "GCC": (7, 0, 0),
    },
}
# The libraries of each system that a wheel may count on, in lower case.
_LIBRARIES = {
    "manylinux": r"lib(c|m|dl|rt|gcc_s|pthread|stdc\+\+)\.so\.\d|ld-linux-.*",
    "musllinux": r"libc\.so",
    "macosx": r"/usr/lib/libsystem\.b\.dylib",
    "win": r"(kernel32|ntdll|ucrtbase|api-ms-win-crt-.*)\.dll",
}
# Those that are in the process before ours are loaded.
_LOADED = r"keras_linrec_core\.dll|libtensorflow_(cc|framework)\.so\.2"
# What Zig's linker for macOS exports of its own accord: its own symbols, and
# `operator new` and `delete`. A library there looks a symbol up in the library
# that it was linked to, and so not in ours.
_MACOS_EXPORTS = r"Z(n|d)(a|w|l).*|dso_handle|mh_dylib_header"


def problems(path, tag):
    """What a library needs or shows beyond the promise of a wheel's tag.

    Args:
        path: the path of the library.
        tag: a platform tag, such as `"manylinux_2_17_x86_64"`.

    Returns:
        A list of sentences, empty if the tag tells the truth.
    """
    library = lief.parse(str(path))
    return [
        *_foreign_libraries(library, tag),
        *_foreign_exports(library),
        *_too_new(library, tag),
    ]


def _foreign_libraries(library, tag):
    known = re.compile(f"{_LIBRARIES[re.split('[_0-9]', tag)[0]]}|{_LOADED}")
    names = [getattr(entry, "name", entry) for entry in library.libraries]
    if isinstance(library, lief.MachO.Binary):
        # A library names itself too.
        names.remove(library[lief.MachO.LoadCommand.TYPE.ID_DYLIB].name)
    foreign = [name for name in names if not known.fullmatch(name.lower())]
    return [f"it needs {name}" for name in foreign]


def _foreign_exports(library):
    own = "keras_linrec_.*"
    if isinstance(library, lief.MachO.Binary):
        own = f"{own}|{_MACOS_EXPORTS}"
    names = {
        function.name.lstrip("_") for function in library.exported_functions
    }
    foreign = {name for name in names if not re.fullmatch(own, name)}
    return [f"it exports {name}" for name in sorted(foreign)]


def _too_new(library, tag):
    if isinstance(library, lief.MachO.Binary):
        promised = tag.removeprefix("macosx_").split("_")[:2]
        oldest = library.build_version.minos
        new = oldest[:2] > [int(number) for number in promised]
        return [f"it needs macOS {oldest}"] if new else []
    if not tag.startswith("manylinux"):
        return []
    newest = _VERSIONS[re.match(r"manylinux_\d+_\d+", tag)[0]]
    return [
        f"it needs {name}_{'.'.join(map(str, version))}"
        for name, version in _needed_versions(library)
        if version > newest[name]
    ]


def _needed_versions(library):
    """The versions of the symbols that an ELF library needs, in numbers."""
    for requirement in library.symbols_version_requirement:
        for symbol in requirement.get_auxiliary_symbols():
            name, _, numbers = symbol.name.rpartition("_")
            # TensorFlow's own symbols have a version without a number.
            if name:
                yield name, tuple(map(int, numbers.split(".")))
