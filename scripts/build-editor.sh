#!/usr/bin/env bash
# Build the editor of the submit page, CodeMirror, into grader/server/static/vendor: one script with
# the versions that scripts/editor/package-lock.json pins, and the licences of what is in it.
set -euo pipefail
cd "$(dirname "$0")/.."

vendor=$PWD/grader/server/static/vendor
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp scripts/editor/* "$folder"
cd "$folder"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
npx esbuild codemirror.js --bundle --minify --format=iife --global-name=codemirror \
  --target=es2022 --charset=utf8 --legal-comments=none --log-level=warning \
  --metafile=meta.json --outfile="$vendor/codemirror.min.js"

# Packages with one text are listed above it.
node - >"$vendor/codemirror.LICENSE" <<'JS'
const { readFileSync } = require("node:fs");
const [{ inputs }] = Object.values(JSON.parse(readFileSync("meta.json")).outputs);
const used = Object.keys(inputs).filter((path) => inputs[path].bytesInOutput > 0);
const names = used.flatMap((path) => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1] ?? []);
const byText = new Map();
for (const name of [...new Set(names)].sort()) {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  const text = readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim();
  byText.set(text, [...(byText.get(text) ?? []), `${name} ${version}`]);
}
const parts = [...byText].map(([text, all]) => `${all.join("\n")}\n\n${text}\n`);
process.stdout.write(parts.join(`\n${"-".repeat(80)}\n\n`));
JS
