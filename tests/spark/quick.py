"""JVMs that start soon, for tests: most of their work is a start or a tiny job.

`environment` says by variables what Spark's scripts hand on to every JVM, so it holds
for sessions of tests, for programs that tests run and for clusters alike. What those
set themselves still wins. There are four parts:

* the compiler that pays off only after a minute is left out;
* files are written without checksums, whose every file costs a process for its mode;
* classes come, parsed and checked, from an archive that `archive` makes of one run;
* Python's processes, of which a query starts half a dozen, import PySpark from where
  pip has put it: `home` is a Spark without the zip file of its sources, which each of
  them would compile anew.

python -m tests.spark.quick FILE: makes the archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jsclient
from jsclient.server import run
from jsclient.spark.java import find_java

FLAGS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable"]
if sys.platform == "linux":
    FLAGS.append("-Djdk.lang.Process.launchMechanism=VFORK")
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": (
        "org.apache.hadoop.fs.local.RawLocalFs"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
PATIENCE = 180.0


def environment(*flags: str) -> dict[str, str]:
    """The variables that make JVMs quick, with further flags for them."""
    words = [*FLAGS, *flags]
    settings = {**SETTINGS, "spark.executor.extraJavaOptions": " ".join(words)}
    given = [f'"-D{name}={value}"' for name, value in settings.items()]
    return {
        "SPARK_SUBMIT_OPTS": " ".join([*words, *given]),
        "SPARK_DAEMON_JAVA_OPTS": " ".join(words),
        "SPARK_LAUNCHER_OPTS": " ".join(FLAGS),
    }


def home(folder: Path) -> Path:
    """The installed Spark, by links, without the packages that pip has too."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    for part in ("bin", "jars", "sbin"):
        (folder / part).symlink_to(installed / part)
    return folder


def archive(folder: Path, env: dict[str, str]) -> Path | None:
    """The archive of this Java and this Spark, made if there is none yet.

    None where Java makes none, or not in time: tests are then slower, that is all.
    """
    import pyspark

    java = os.path.realpath(find_java().path)
    what = [java, os.stat(java).st_mtime_ns, pyspark.__file__, pyspark.__version__]
    name = hashlib.sha256(repr([what, FLAGS]).encode()).hexdigest()[:16]
    path = folder / f"{name}.jsa"
    if not path.exists():
        # Whoever makes it at the same time makes the same.
        made = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(
                [sys.executable, "-m", "tests.spark.quick", str(made)],
                env={
                    **os.environ,
                    **env,
                    **environment(f"-XX:ArchiveClassesAtExit={made}"),
                },
                cwd=Path(__file__).parents[2],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=PATIENCE,
                check=True,
            )
            if made.exists():
                made.replace(path)
    return path if path.exists() else None


def main() -> None:
    """Loads what tests use, then waits for the JVM, which writes its archive."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder, run(jetstream=True) as server:
        with jsclient.connect(server.url) as nc:
            nc.jetstream().create_stream(name="S", subjects=["s"])
        options = {"servers": server.url, "stream": "S"}
        rows = spark.range(0, 100, 1, 2).selectExpr(
            "'s' AS subject", "string(id) AS data"
        )
        rows.groupBy("data").count().collect()
        rows.write.format("jetstream").options(**options).mode("append").save()
        spark.read.format("jetstream").options(**options).load().collect()
        arriving = spark.readStream.format("jetstream").options(**options).load()
        # Into files, and into the stream itself.
        for number, kind in enumerate(("parquet", "jetstream")):
            place = {"path": f"{folder}/out"} if kind == "parquet" else options
            query = (
                arriving.writeStream.format(kind)
                .options(checkpointLocation=f"{folder}/{number}", **place)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        assert spark.read.parquet(f"{folder}/out").count() == 100
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    jvm: subprocess.Popen[bytes] = gateway.proc  # it ends when nobody talks to it
    assert jvm.stdin is not None
    jvm.stdin.close()
    jvm.wait(PATIENCE)


if __name__ == "__main__":
    main()
