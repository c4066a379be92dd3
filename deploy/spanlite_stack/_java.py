"""Finding the JVM and the broker's jars, and saying how to get them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from spanlite.errors import ServiceError

#: Where else the jars may lie, for instance an unpacked Kafka release's `libs/`.
JARS_VARIABLE = "SPANLITE_KAFKA_JARS"
_OWN_JARS = Path(__file__).parent / "jars"


def find_java() -> str:
    """Path of `java`: $JAVA_HOME/bin first, then PATH. Raises ServiceError."""
    home = os.environ.get("JAVA_HOME")
    found = (home and shutil.which("java", path=str(Path(home) / "bin"))) or shutil.which("java")
    if not found:
        raise ServiceError(
            "'java' is missing; install it with: apt-get install openjdk-17-jre-headless"
        )
    return found


def find_jars() -> Path:
    """Folder that holds Kafka's jars. Raises ServiceError."""
    folder = Path(os.environ.get(JARS_VARIABLE) or _OWN_JARS)
    if not any(folder.glob("kafka_2.*.jar")):
        raise ServiceError(
            f"no Kafka jars in {folder}; run `make setup`, which fetches them with Maven, "
            f"or set {JARS_VARIABLE} to the libs folder of a Kafka release"
        )
    return folder


def java_command(
    options: Sequence[str], properties: Mapping[str, str], main: str, *args: str
) -> list[str]:
    """The command line that runs one of Kafka's main classes."""
    return [
        find_java(),
        *options,
        "-XX:+ExitOnOutOfMemoryError",
        *[f"-D{key}={value}" for key, value in properties.items()],
        "-cp",
        f"{find_jars()}/*",
        main,
        *args,
    ]
