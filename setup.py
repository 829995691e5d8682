"""Builds `jsclient._core` from `csrc/`; everything else stands in pyproject.toml.

`JSCLIENT_BUILD` chooses the build: `release` (the default), `dev` (C warnings are errors),
`debug` (also assertions, no optimisation), `trace` (line tracing and gcov, for coverage) or
`sanitize` (address and undefined-behaviour sanitizers).
"""

import os
import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

GCC_LIKE = {
    "release": ["-O3"],
    "dev": ["-O3", "-Wall", "-Wextra", "-Werror"],
    "debug": ["-O0", "-g3", "-Wall", "-Wextra", "-Werror", "-UNDEBUG"],
    "trace": ["-O0", "-g", "--coverage"],
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

# What Cython's own generated code trips over; our code has none of these.
GENERATED_CODE = [
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wno-cast-function-type",
]


def extension(build: str) -> Extension:
    if build not in GCC_LIKE:
        known = ", ".join(GCC_LIKE)
        raise SystemExit(f"JSCLIENT_BUILD={build!r} is unknown; use one of: {known}")
    windows = sys.platform == "win32"
    compile_args = ["/O2"] if windows else GCC_LIKE[build] + GENERATED_CODE
    macros = [("CYTHON_TRACE_NOGIL", "1")] if build == "trace" else []
    return Extension(
        "jsclient._core",
        sources=["csrc/_core.pyx"],
        include_dirs=["csrc"],
        depends=[
            os.path.join("csrc", name)
            for name in sorted(os.listdir("csrc"))
            if name.endswith((".pxd", ".h"))
        ],
        libraries=["ws2_32"] if windows else [],
        extra_compile_args=compile_args,
        extra_link_args=[] if windows else LINK.get(build, []),
        define_macros=macros,
    )


build = os.environ.get("JSCLIENT_BUILD", "release")
setup(
    ext_modules=cythonize(
        [extension(build)],
        build_dir=os.path.join("build", "cython", build),
        include_path=["csrc"],
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "embedsignature.format": "clinic",
            "linetrace": build == "trace",
            "binding": False,
            "auto_pickle": False,
            "autotestdict": False,
        },
    )
)
