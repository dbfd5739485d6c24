"""Compiles the compiled modules: the walks over record batches and JSON, what compaction keeps, fast Produce."""

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILE = {"extra_compile_args": ["-O3", "-g0"]}

setup(
    ext_modules=cythonize(
        [
            Extension(
                "logmark.wire.columns",
                ["src/logmark/wire/columns.py"],
                depends=["src/logmark/wire/columns.pxd", "src/logmark/wire/batch_header.pxd"],
                **COMPILE,
            ),
            Extension(
                "logmark.wire.compaction_filter",
                ["src/logmark/wire/compaction_filter.py"],
                depends=[
                    "src/logmark/wire/compaction_filter.pxd",
                    "src/logmark/wire/columns.pxd",
                    "src/logmark/wire/batch_header.pxd",
                ],
                **COMPILE,
            ),
            Extension("logmark.spark.source.json_columns", ["src/logmark/spark/source/json_columns.py"], **COMPILE),
            Extension("logmark.wire.fast_requests", ["src/logmark/wire/fast_requests.py"], **COMPILE),
        ],
        language_level=3,
        include_path=["src"],
    ),
)
