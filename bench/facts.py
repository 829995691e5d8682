"""What a reader has to know of the machine to judge the figures."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone

from bench.clients import ROOT, compiler


def machine() -> dict[str, object]:
    """Processor, system, Python, compiler and load, as plain data."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in load],
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": _first_line([*compiler(), "--version"]),
        "commit": _first_line(["git", "-C", str(ROOT), "rev-parse", "HEAD"]),
    }


def cpu_model() -> str:
    """The processor's name, where the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except FileNotFoundError:
        pass
    return platform.processor() or platform.machine()


def _first_line(command: list[str]) -> str | None:
    """The first line that a program prints, None if it cannot."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return answer.stdout.partition("\n")[0] if answer.returncode == 0 else None
