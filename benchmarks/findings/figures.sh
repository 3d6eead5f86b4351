#!/bin/sh
# From runs/reference to the figures and tables of docs/results.md. Run in the repository root, with dttrl installed.
set -eu
runs=${1:-runs/reference}; figures=${2:-docs/figures}; mkdir -p "$figures" "$runs/tables"
analyze() { echo "dttrl analyze $*"; dttrl analyze "$@" --overwrite --quiet; }

for start in sums-right sums-wrong products-right products-wrong; do
  # 1. Reward hacking: majority ratio and accuracy over steps
  analyze majority-ratio "$runs/$start".ttrl-gt.? "$runs/$start".ttrl.? "$runs/$start".distri-wsc.? "$runs/$start".distri-gmm.? \
    --plot "$figures/reward-hacking-$start.png" -o "$runs/tables/reward-hacking-$start.parquet"
  # 2. Distribution shift
  analyze distribution-shift "$runs/$start".distri-gmm.0 --plot "$figures/shift-$start.png" -o "$runs/tables/shift-$start.parquet"
done
# 3. The method table
analyze compare "$runs"/*.ttrl-gt.? "$runs"/*.ttrl.? "$runs"/*.ttrl-wsc.? "$runs"/*.distri-wsc.? "$runs"/*.distri-gmm.? \
  --plot "$figures/methods.png" -o "$runs/tables/methods.parquet"
# 5. Labels and AUROC over steps (by measure and region: tables/confidence.*.parquet, made where the rollouts were)
analyze labels "$runs"/*.ttrl.? "$runs"/*.distri-gmm.? --plot "$figures/labels.png" -o "$runs/tables/labels.parquet"
# 6. Ablations, where there are runs other than those of the five methods: of the one seed that all of them have
for start in sums-wrong products-wrong; do
  if ls -d "$runs/$start".* | grep -qvE '\.(ttrl|ttrl-gt|ttrl-wsc|distri-wsc|distri-gmm)\.[0-9]+$'; then
    analyze compare "$runs/$start".*.0 --baseline distri-gmm --split train --plot "$figures/ablations-$start.png"
  fi
done
