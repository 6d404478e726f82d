#!/usr/bin/env bash
# Make an environment for the tests of one adapter, and print its Python. It is beside .venv, which
# `make test` sets up, and sees its packages.
#
#   $(scripts/adapter-environment.sh verifiers) -m pytest -m verifiers
#
# The packages are large, and verifiers and openenv need different versions of mcp.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-}
case $name in
  inspect | openenv | verifiers) ;;
  mcp) echo "mcp is in .venv: make test" >&2; exit 2 ;;
  *) echo "usage: $0 inspect|openenv|verifiers" >&2; exit 2 ;;
esac
environment=$PWD/.venv-$name
if [ ! "$environment/.installed" -nt pyproject.toml ]; then
  rm -rf "$environment"
  .venv/bin/python -m venv --without-pip "$environment"
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  parent=$(.venv/bin/python -c "$packages")
  own=$("$environment/bin/python" -c "$packages")
  # Not a path alone: the .pth files of .venv count too, such as that of grade itself.
  echo "import site; site.addsitedir('$parent')" >"$own/parent.pth"
  .venv/bin/python - "$name" >"$environment/requirements.txt" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
PYTHON
  .venv/bin/python -m pip --python "$environment/bin/python" install --quiet \
    --disable-pip-version-check --constraint constraints.txt \
    --requirement "$environment/requirements.txt" >&2
  touch "$environment/.installed"
fi
echo "$environment/bin/python"
