"""Builds `jsclient._core` from `csrc/`; everything else stands in pyproject.toml.

`JSCLIENT_BUILD` chooses the build: `release` (the default), `dev` (C warnings are
errors), `debug` (also assertions, no optimisation), `trace` (counts executed lines, for
coverage), `sanitize` (address and undefined-behaviour sanitizers), or `none` (no core:
the Makefile installs the package once and compiles the core by itself).
"""

import os
import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

WARNINGS = ["-Wall", "-Wextra", "-Werror"]
GCC_LIKE = {
    "release": ["-O3"],
    "dev": ["-O3", *WARNINGS],
    "debug": ["-O0", "-g3", "-UNDEBUG", *WARNINGS],
    # Threads count at the same time, so the counters must be atomic.
    "trace": ["-O0", "-g", "--coverage", "-fprofile-update=atomic"],
    "sanitize": [
        "-O1",
        "-g",
        "-UNDEBUG",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ],
}
LINK = {
    "trace": ["--coverage"],
    "sanitize": ["-fsanitize=address,undefined"],
}

# What generated code and Python's own headers trip over with one compiler or another.
# gcc passes over a -Wno- that it does not know; the first one makes clang do so too.
GENERATED_CODE = [
    "-Wno-unknown-warning-option",
    "-Wno-cast-function-type",
    "-Wno-deprecated-declarations",
    "-Wno-missing-field-initializers",
    "-Wno-unterminated-string-initialization",
    "-Wno-unused-but-set-variable",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
]


def extension(build: str) -> Extension:
    if build not in GCC_LIKE:
        known = ", ".join([*GCC_LIKE, "none"])
        raise SystemExit(f"JSCLIENT_BUILD={build!r} is unknown; use one of: {known}")
    is_windows = sys.platform == "win32"
    return Extension(
        "jsclient._core",
        sources=["csrc/_core.pyx"],
        include_dirs=["csrc"],
        depends=[
            os.path.join("csrc", name)
            for name in sorted(os.listdir("csrc"))
            if name.endswith((".pxd", ".h"))
        ],
        libraries=["ws2_32"] if is_windows else [],
        extra_compile_args=["/O2"] if is_windows else GCC_LIKE[build] + GENERATED_CODE,
        extra_link_args=[] if is_windows else LINK.get(build, []),
    )


def core(build: str) -> list[Extension]:
    # The C code of each build stays apart, so that none is taken for another.
    extensions: list[Extension] = cythonize(  # type: ignore[no-untyped-call]
        [extension(build)],
        build_dir=os.path.join("build", "cython", build),
        include_path=["csrc"],
        # Counters then belong to the lines of the .pyx and .pxd files.
        emit_linenums=build == "trace",
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "embedsignature.format": "clinic",
            "binding": False,
            "auto_pickle": False,
            "autotestdict": False,
        },
    )
    return extensions


build = os.environ.get("JSCLIENT_BUILD", "release")
setup(ext_modules=[] if build == "none" else core(build))
