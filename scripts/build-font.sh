#!/usr/bin/env bash
# Build the fonts of preview images: DejaVu Sans, without what names and times hardly need. Run it in
# .venv, whose matplotlib brings fontTools.
set -euo pipefail
cd "$(dirname "$0")/.."

fonts=$PWD/grader/server/fonts
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --ignore-scripts --no-audit --no-fund --loglevel=error dejavu-fonts-ttf@2.37.3
# Latin, Greek, Cyrillic, punctuation, superscripts, currencies, arrows, operators, and shapes.
ranges=U+0020-024F,U+0300-036F,U+0370-052F,U+1E00-1EFF,U+2000-209F,U+20A0-20BF,U+2190-21FF,U+2200-22FF,U+25A0-25FF
for font in DejaVuSans DejaVuSans-Bold; do
  python -m fontTools.subset "node_modules/dejavu-fonts-ttf/ttf/$font.ttf" --unicodes="$ranges" \
    --layout-features= --no-hinting --output-file="$fonts/$font.ttf"
done
cp node_modules/dejavu-fonts-ttf/LICENSE "$fonts/LICENSE"
