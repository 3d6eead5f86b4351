#!/bin/sh
# From data/reference to the figures and tables of docs/results.md. Run in the repository root, with dttrl installed.
set -euf
pack=${1:-data/reference}; figures=${2:-docs/figures}; tables=${3:-$pack/tables}; mkdir -p "$figures" "$tables"
analyze() { echo "dttrl analyze $*"; dttrl analyze "$@" --overwrite --quiet; }
# of START METHOD...: the runs of these methods, whatever their seeds
of() { start=$1; shift; for method; do echo "$pack#$start.$method.?"; done; }
small="sums-right sums-wrong products-right products-wrong"; smollm2="long-sums two-steps"

for start in $small $smollm2; do
  case " $small " in *" $start "*) methods="ttrl-gt ttrl distri-wsc distri-gmm" ;; *) methods="ttrl-gt ttrl distri-gmm" ;; esac
  # 1. Reward hacking: majority ratio and accuracy over steps
  analyze majority-ratio $(of "$start" $methods) \
    --plot "$figures/reward-hacking-$start.png" -o "$tables/reward-hacking-$start.parquet"
  # 2. Distribution shift
  analyze distribution-shift "$pack#$start.distri-gmm.0" --plot "$figures/shift-$start.png" -o "$tables/shift-$start.parquet"
done
# 3. The method tables
analyze compare $(for start in $small; do of "$start" ttrl-gt ttrl ttrl-wsc distri-wsc distri-gmm; done) \
  --plot "$figures/methods.png" -o "$tables/methods.parquet"
analyze compare $(for start in $smollm2; do of "$start" ttrl-gt ttrl distri-gmm; done) \
  --plot "$figures/methods-smollm2.png" -o "$tables/methods-smollm2.parquet"
# 5. Labels and AUROC over steps (by measure and region: tables/confidence.*.parquet, made where the rollouts were)
analyze labels $(for start in $small $smollm2; do of "$start" ttrl distri-gmm; done) \
  --plot "$figures/labels.png" -o "$tables/labels.parquet"
# 6. Ablations
for start in sums-wrong products-wrong; do
  analyze compare "$pack#$start.*" --split train --plot "$figures/ablations-$start.png" -o "$tables/ablations-$start.parquet"
  analyze compare "$pack#$start.*" --split heldout -o "$tables/ablations-$start-heldout.parquet"
done
# Choice of a checkpoint without gold answers
python "$(dirname "$0")/checkpoint_choice.py" "$(dirname "$pack")" "$tables"
# Training with labels of the latent-answer vote
python "$(dirname "$0")/latent_training.py" "$(dirname "$pack")/latent" "$tables"
# docs/results-tables.md
python "$(dirname "$0")/appendix.py" "$tables"
