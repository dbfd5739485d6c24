"""Compiles the one compiled module: the walk over record batches."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [
            Extension(
                "logmark.wire.columns",
                ["src/logmark/wire/columns.py"],
                depends=["src/logmark/wire/columns.pxd"],
                extra_compile_args=["-O3", "-g0"],
            )
        ],
        language_level=3,
    ),
)
