#!/usr/bin/env bash
# Run on a GPU after a change of the judge's clock, samples or check: a quarter of an hour.
#
#   benchmarks/check_clock.sh OUT [PART]...
#
# The folder OUT gets a log and the tables of each part. Needs Docker, nvcc, cuda-bench, pytest and
# pytest-xdist. A part that fails or takes more than five minutes does not stop the others; the exit
# status is then 1. `honest` fails if an honest file is not accepted, `overlaps` if a forgery gains
# more than allowed.
set -uo pipefail
mkdir -p "${1:?name a folder for the results}"
out=$(realpath "$1")
shift
cd "$(dirname "$0")/.." || exit
softmax=submissions/softmax/accepted

python() { timeout 300 python3 "$@"; }

tests() {
  # pytest-benchmark, where it is installed, warns beside xdist, and warnings are errors.
  local status=0 options="-q -m cuda -p no:cacheprovider -p no:benchmark"
  # These time copies and count free device memory, so they run alone.
  python -m pytest $options tests/judge/test_gpu.py tests/arena || status=1
  python -m pytest $options -n 4 --dist loadscope tests/judge/correctness/test_check.py \
    tests/judge/correctness/test_batch_check.py tests/judge/integrity/test_deferred_inputs.py tests/judge/test_verification.py \
    tests/runner/test_precompile.py || status=1
  return $status
}
verdicts() {
  python -m benchmarks.verdict_latency --settle 8 $softmax/triton_softmax.py $softmax/cuda_softmax.cu
}
steps() { python -m benchmarks.judge_profile $softmax/triton_softmax.py; }
watch() { python -m benchmarks.verdict_latency --watch --settle 6 $softmax/triton_softmax.py; }
overlaps() {
  python -m benchmarks.forgery --out "$out/overlaps.md" --only batches_ --only begins_before
}
honest() {
  python -m scripts.grade_corpus --device cuda --sandbox docker --out "$out/honest.md" \
    --only accepted/triton_ --only accepted/torch_ --only accepted/streams_ --only accepted/uploads_
}
rounds() {
  python -m benchmarks.deferred_inputs --rounds 4 $softmax/triton_softmax.py \
    submissions/int4_matmul/accepted/triton_int4_matmul.py
}
timers() { python -m benchmarks.timers $softmax/triton_softmax.py; }

failed=0
[ $# -gt 0 ] || set -- tests verdicts steps overlaps honest rounds timers watch
for part in "$@"; do
  started=$SECONDS
  "$part" 2>&1 | tee "$out/$part.log" || failed=1
  echo "== $part: $((SECONDS - started)) s"
done
exit $failed
