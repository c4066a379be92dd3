#!/usr/bin/env bash
# Builds agent_plain.cpp and agent_stress.cpp with the static runtime of one CUDA version, from NVIDIA's PyPI wheels, so
# that the binaries need a driver alone. Neither nvcc nor a GPU is needed.
#   bench/h200/build_agent_plain.sh 12 FOLDER     FOLDER/agent_plain_12, agent_stress_12, and CUPTI 12
#   bench/h200/build_agent_plain.sh 13 FOLDER     the same for 13
# Then: python -m bench.agent_overhead --parts plain --plain FOLDER
set -euo pipefail
version=${1:?12 or 13} folder=${2:?a folder}
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work"
# The runtime as a static library, CUDA's headers (13: apart from it in `crt`), NVTX, and CUPTI.
case $version in
  12) parts="cuda-runtime-cu12==12.9.79 cuda-cupti-cu12==12.9.79 nvtx-cu12==12.9.79 cuda-nvcc-cu12==12.9.86" ;;
  13) parts="cuda-runtime==13.0.96 cuda-cupti==13.0.85 nvtx==13.0.85 cuda-crt==13.0.88" ;;
  *) echo "CUDA 12 or 13, not $version" >&2; exit 2 ;;
esac
for part in $parts; do "$work/bin/pip" -q install --no-deps "nvidia-$part"; done
root=$(echo "$work"/lib/python3*/site-packages/nvidia)
includes=()
while read -r folder_of; do includes+=("-I$folder_of"); done < <(find "$root" -type d -name include)
for name in agent_plain agent_stress; do
  "${CXX:-g++}" -O2 -std=c++17 -Wall "${includes[@]}" -o "$folder/${name}_$version" "$sources/$name.cpp" \
    "$(find "$root" -name libcudart_static.a)" -ldl -lrt -lpthread
done
cp "$(find "$root" -name "libcupti.so.$version" | head -1)" "$folder/"
ls -la "$folder"
