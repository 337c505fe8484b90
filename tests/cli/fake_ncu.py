"""Stands in for Nsight Compute where there is no GPU: takes the options that are used here, runs the program with the
terminal as its own, and writes to the log what ncu writes, in its words and order. FAKE_NCU is a document that says
what the program launches, and what goes wrong: {"launches": [name, ...], "wrong": "", "dram": 90}."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

VALUES = {
    "gpu__time_duration.sum": ("ns", "90,000"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "20.5"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "DRAM"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "DRAM"),
}
IDENTITY = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
PERMISSION = (
    "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target "
    "device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
BUSY = (
    "Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is concurrently "
    "collecting profiling data. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for more "
    "details."
)
FLAGS = {"--csv"}
VALUED = {
    *("--page", "--print-units", "--target-processes", "--metrics", "--kernel-name", "--launch-skip", "--launch-count"),
    "--log-file",
}


def main() -> int:
    arguments, options = sys.argv[1:], {}
    while arguments and arguments[0].startswith("-"):
        name = arguments.pop(0)
        if name not in FLAGS | VALUED:
            print(f"==ERROR== unrecognised option '{name}'. Use --help for further details.")
            return 1
        options[name] = arguments.pop(0) if name in VALUED else ""
    told = {"launches": [], "wrong": "", "dram": 90, **json.loads(os.environ.get("FAKE_NCU", "{}"))}
    with open(options["--log-file"], "w", encoding="utf-8") as log:  # noqa: PTH123
        return measure(arguments, options, told, lambda line: print(line, file=log, flush=True))


def measure(command: list[str], options: dict, told: dict, say) -> int:
    if told["wrong"] == "driver":
        print(
            "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).",
            file=sys.stderr,
        )
        say("==ERROR== The application returned an error code (1).")
        say("==WARNING== No kernels were profiled.")
        return 1
    wanted = options["--metrics"].split(",")
    process = subprocess.Popen(command)
    say(f"==PROF== Connected to process {process.pid} ({command[0]})")
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        say("==PROF== Received signal")
        say("==PROF== Trying to shutdown target application")
        if told["wrong"] != "stubborn":
            process.terminate()

    signal.signal(signal.SIGINT, stop)
    if told["wrong"] == "permission":
        say(f"==ERROR== {PERMISSION}")
    if told["wrong"] == "metric":
        say(f"==ERROR== Failed to find metric regex:^{wanted[0]}(\\.(sum|min|max|avg|pct|ratio|max_rate))?$")
    if told["wrong"] == "busy":
        say("")
        say("==ERROR== An error was reported by the driver:")
        say(f"==ERROR== {BUSY}")
        say(f'==ERROR== Failed to profile "{told["launches"][0]}" in process {process.pid}')
        say("==PROF== Trying to shutdown target application")
        process.kill()
    while process.poll() is None and not (stopped and told["wrong"] == "stubborn"):
        time.sleep(0.01)
    code = abs(process.poll() or 0)
    launches = [] if told["wrong"] else chosen(told["launches"], options)
    for number, kernel in enumerate(launches):
        say(f'==PROF== Profiling "{kernel}" - {number}: 0%....50%....100% - 9 passes')
    say(f"==PROF== Disconnected from process {process.pid}")
    if code:
        say(f"==ERROR== The application returned an error code ({code}).")
    if told["wrong"] == "busy":
        say("==ERROR== An error occurred while trying to profile.")
    if not launches:
        say("==WARNING== No kernels were profiled.")
        if told["launches"] and not told["wrong"]:
            say("Available Kernels:")
            for number, kernel in enumerate(dict.fromkeys(told["launches"]), start=1):
                say(f"{number}. {kernel}")
        return code or (1 if told["wrong"] else 0)
    table(launches, wanted, told, process.pid, say)
    return code


def chosen(launches: list[str], options: dict) -> list[str]:
    name = options.get("--kernel-name", "")
    if name.startswith("regex:"):
        launches = [kernel for kernel in launches if re.search(name.removeprefix("regex:"), kernel)]
    elif name:
        launches = [kernel for kernel in launches if kernel == name]
    launches = launches[int(options.get("--launch-skip", 0)) :]
    return launches[: int(options.get("--launch-count", len(launches)))]


def table(launches: list[str], wanted: list[str], told: dict, pid: int, say) -> None:
    known = [VALUES.get(name, ("", "")) for name in wanted]
    say(",".join(f'"{name}"' for name in (*IDENTITY.split(","), *wanted)))
    say(",".join(f'"{unit}"' for unit in (*("" for _ in IDENTITY.split(",")), *(unit for unit, _ in known))))
    for number, kernel in enumerate(launches):
        identity = (number, pid, "app", "127.0.0.1", f"void {kernel}(float *)", 1, 7, "(256, 1, 1)", "(640, 1, 1)", 0)
        values = (str(told["dram"]) if value == "DRAM" else value for _, value in known)
        say(",".join(f'"{cell}"' for cell in (*identity, "9.0", *values)))


if __name__ == "__main__":
    sys.exit(main())
