"""The notices for the code of others that a wheel's libraries contain."""

from pathlib import Path

import ziglang

_ZIG = Path(ziglang.__file__).parent

_INTRODUCTION = """\
keras_linrec is distributed under the licence in LICENSE. The compiled libraries
in keras_linrec/kernels/native/libraries also contain code of others, which the
compiler took from the libraries and headers below. Their licences follow.
"""

# By the first characters of the targets whose libraries contain the code: what
# it is, and the file of Zig's distribution that has the licence.
_PARTS = (
    ("", "libc++, the C++ library of LLVM", "lib/libcxx/LICENSE.TXT"),
    ("", "libc++abi, of LLVM", "lib/libcxxabi/LICENSE.TXT"),
    ("", "libunwind, of LLVM", "lib/libunwind/LICENSE.TXT"),
    ("", "compiler_rt, the compiler's functions, of Zig", "LICENSE"),
    ("linux-gnu", "the start-up code of glibc", "lib/libc/glibc/LICENSES"),
    ("linux-musl", "the start-up code of musl", "lib/libc/musl/COPYRIGHT"),
    ("windows", "the runtime of mingw-w64", "lib/libc/mingw/COPYING"),
)
_APACHE = """\
The headers of XLA's foreign function interface, Copyright The OpenXLA Authors,
in keras_linrec_jax: the Apache License 2.0, whose text is in LICENSE.
"""
_TENSORFLOW = """\
The headers of TensorFlow, Copyright The TensorFlow Authors, of Abseil,
Copyright The Abseil Authors, and of XLA, Copyright The OpenXLA Authors, in
keras_linrec_tensorflow: the Apache License 2.0, whose text is in LICENSE.

The headers of Eigen in keras_linrec_tensorflow: the Mozilla Public License 2.0,
https://mozilla.org/MPL/2.0. Their source is in TensorFlow's package, in
tensorflow/include, and at https://gitlab.com/libeigen/eigen.

The headers of Protocol Buffers in keras_linrec_tensorflow:

"""


def notices(target, tensorflow_include=None):
    """The text for the wheel of a target.

    Args:
        target: as Zig names it.
        tensorflow_include: the folder of TensorFlow's headers, if the wheel has
            its adapter.
    """
    _, _, system = target.partition("-")
    parts = [
        f"{name}:\n\n{(_ZIG / path).read_text(errors='replace').strip()}\n"
        for start, name, path in _PARTS
        if system.startswith(start)
    ]
    parts = [_INTRODUCTION, _APACHE, *parts]
    if tensorflow_include:
        licence = tensorflow_include / "external/com_google_protobuf/LICENSE"
        parts.append(_TENSORFLOW + licence.read_text())
    return ("\n" + "-" * 79 + "\n\n").join(parts)
