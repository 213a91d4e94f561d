# Sourced by the scripts of this folder: names the Python, checks that it has torch, builds a program.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
needs_torch() {
  "$python" -c 'import torch' 2>/dev/null || {
    echo "bench: $python has no torch; make one that has (see bench/README.md) and name it: PYTHON=.../python $0" >&2
    exit 2
  }
}
build() {
  (cd "$here/.." && cmake --build --preset release --target "$1") | tail -n 1 >&2
}
