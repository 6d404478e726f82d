#!/usr/bin/env bash
# What to run on a GPU when the judge's clock, looks or check has changed: a quarter of an hour.
#
#   benchmarks/check_clock.sh OUT [PART]...
#
# A log of each part, and its tables, are left in the folder OUT. Needs Docker, nvcc, cuda-bench,
# pytest and pytest-xdist. A part that fails, or takes longer than five minutes, does not keep the
# others from running; the exit status is then 1. `honest` fails when an honest file was not
# accepted, `seams` when a forgery won more than it may.
set -uo pipefail
mkdir -p "${1:?a folder for what is found}"
out=$(realpath "$1")
shift
cd "$(dirname "$0")/.." || exit
softmax=submissions/softmax/accepted

python() { timeout 300 python3 "$@"; }

tests() {
  # pytest-benchmark, where it is installed, warns beside xdist, and warnings are errors.
  local status=0 options="-q -m cuda -p no:cacheprovider -p no:benchmark"
  # They time copies, which others would hold up, and count the device's free memory.
  python -m pytest $options tests/judge/test_gpu.py tests/arena || status=1
  python -m pytest $options -n 4 --dist loadscope tests/judge/correctness/test_check.py \
    tests/judge/correctness/test_batch_check.py tests/judge/integrity/test_deferred_inputs.py tests/judge/test_mutation.py \
    tests/runner/test_precompile.py || status=1
  return $status
}
verdicts() {
  python -m benchmarks.verdict_latency --settle 8 $softmax/triton_softmax.py $softmax/cuda_softmax.cu
}
where() { python -m benchmarks.judge_profile $softmax/triton_softmax.py; }
watch() { python -m benchmarks.verdict_latency --watch --settle 6 $softmax/triton_softmax.py; }
seams() {
  python -m benchmarks.forgery --out "$out/seams.md" --only batches_ --only begins_before
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
[ $# -gt 0 ] || set -- tests verdicts where seams honest rounds timers watch
for part in "$@"; do
  started=$SECONDS
  "$part" 2>&1 | tee "$out/$part.log" || failed=1
  echo "== $part: $((SECONDS - started)) s"
done
exit $failed
