#!/bin/sh
# From runs/reference to the figures and tables of docs/results.md. Run in the repository root, with dttrl installed.
set -eu
runs=${1:-runs/reference}; figures=${2:-docs/figures}; mkdir -p "$figures" "$runs/tables"
analyze() { echo "dttrl analyze $*"; dttrl analyze "$@" --overwrite --quiet; }
# of START METHOD...: the runs of these methods that there are, whatever their seeds
of() { start=$1; shift; for method; do ls -d "$runs/$start.$method".? 2>/dev/null || true; done; }
small="sums-right sums-wrong products-right products-wrong"; smollm2="long-sums two-steps"
methods="ttrl-gt ttrl ttrl-wsc distri-wsc distri-gmm"

for start in $small $smollm2; do
  # 1. Reward hacking: majority ratio and accuracy over steps
  analyze majority-ratio $(of "$start" ttrl-gt ttrl distri-wsc distri-gmm) \
    --plot "$figures/reward-hacking-$start.png" -o "$runs/tables/reward-hacking-$start.parquet"
  # 2. Distribution shift
  analyze distribution-shift "$runs/$start".distri-gmm.0 --plot "$figures/shift-$start.png" -o "$runs/tables/shift-$start.parquet"
done
# 3. The method tables
analyze compare $(for start in $small; do of "$start" $methods; done) \
  --plot "$figures/methods.png" -o "$runs/tables/methods.parquet"
analyze compare $(for start in $smollm2; do of "$start" $methods; done) \
  --plot "$figures/methods-smollm2.png" -o "$runs/tables/methods-smollm2.parquet"
# 5. Labels and AUROC over steps (by measure and region: tables/confidence.*.parquet, made where the rollouts were)
analyze labels $(for start in $small $smollm2; do of "$start" ttrl distri-gmm; done) \
  --plot "$figures/labels.png" -o "$runs/tables/labels.parquet"
# 6. Ablations, where there are runs other than those of the five methods
for start in sums-wrong products-wrong; do
  if ls -d "$runs/$start".* | grep -qvE '\.(ttrl|ttrl-gt|ttrl-wsc|distri-wsc|distri-gmm)\.[0-9]+$'; then
    analyze compare "$runs/$start".*.? --split train --plot "$figures/ablations-$start.png" \
      -o "$runs/tables/ablations-$start.parquet"
    analyze compare "$runs/$start".*.? --split heldout -o "$runs/tables/ablations-$start-heldout.parquet"
  fi
done
# docs/results-tables.md
python "$(dirname "$0")/appendix.py" "$runs/tables"
