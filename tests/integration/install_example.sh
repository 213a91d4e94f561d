#!/usr/bin/env bash
# Installs the build into a fresh folder, then configures, builds and runs the example against it as another project
# would. Usage: install_example.sh BUILD_FOLDER
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/penstock" >/dev/null
"$work/penstock/bin/penstock" --version
cmake -S "$source_dir/examples/own_modules" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/penstock" >/dev/null
cmake --build "$work/build"
"$work/build/own_modules"
