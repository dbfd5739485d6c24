#!/usr/bin/env bash
# Brings what pip cannot: a compiler, Python's headers, a Java runtime, Maven, kcat, strace. Installs only what is missing.
set -euo pipefail

python=${PYTHON:-python3}
has() { command -v "$1" >/dev/null 2>&1; }

if ! has "$python"; then
    echo "Logmark needs Python 3.11 or newer, and there is no $python here. Install it, or name one: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Logmark needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Name another: make PYTHON=/path/to/python3.11" >&2
    exit 1
fi

# What is missing, in two heaps: without the first nothing can be built, without the second Spark, Apache Kafka and the
# tests that need a tool of the system cannot run.
build=() java=()
has cc || has gcc || build+=(build-essential)
"$python" -c 'import ensurepip, venv' 2>/dev/null || build+=(python3-venv)
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$headers/Python.h" ] || build+=(python3-dev)
# On macOS /usr/bin/java is always there and asks for an installation, so only running it tells.
java -version >/dev/null 2>&1 || java+=(openjdk-17-jre-headless)
has mvn || java+=(maven)
has kcat || java+=(kcat)
# Kills a process at a chosen system call; there is none but on Linux.
[ "${OSTYPE%%[^a-z]*}" = linux ] && ! has strace && java+=(strace)

# The old bash of macOS takes an empty array for an unset variable, hence the plus.
missing=(${build[@]+"${build[@]}"} ${java[@]+"${java[@]}"})
[ ${#missing[@]} -eq 0 ] && exit 0

if has apt-get && [ "$(id -u)" = 0 ]; then
    echo "Installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
        exit 0
    fi
    echo "apt-get could not install: ${missing[*]}. Its own words are above." >&2
elif has apt-get; then
    echo "These Debian packages are missing: ${missing[*]}. Run this once, then the same make again:" >&2
    echo "    sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
else
    echo "These are missing, by their Debian names: ${missing[*]}. Install them with your system's packages, then run the same make again." >&2
fi

if [ ${#build[@]} -eq 0 ] && [ "${ALLOW_NO_KAFKA:-}" = 1 ]; then
    echo "ALLOW_NO_KAFKA=1 is set: going on without ${java[*]}; what needs them will say so." >&2
    exit 0
fi
exit 1
