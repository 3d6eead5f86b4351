#!/bin/sh
# From the starts to the tables of docs/latent.md, in the repository root, with dttrl installed.
# usage: latent.sh WORK [SCORED_ROLLOUTS...]   WORK keeps the rollouts; more files get rows of their own
set -eu
work=$1; shift; here=$(dirname "$0"); tables=data/reference/tables; mkdir -p "$work"
tar -xf data/starts.tar.xz -C "$work"
draw() { # NAME MODEL QUESTIONS MAX_NEW_TOKENS
  [ -f "$work/$1.parquet" ] || dttrl generate "$2" "$3" -o "$work/$1.parquet" --samples 256 --template raw \
    --max-new-tokens "$4" --batch-size 2048 --dtype float32 --quiet
  for measure in topk perplexity; do
    [ -f "$work/$1.$measure.parquet" ] || dttrl score "$work/$1.parquet" -o "$work/$1.$measure.parquet" \
      --region all --measure $measure --quiet
  done
}
for start in sums-right sums-wrong products-right products-wrong; do
  draw $start "$work/starts/$start" "$work/starts/$start/questions.jsonl" 56
done
draw quickstart data/quickstart/model data/quickstart/questions.jsonl 44
python "$here/latent.py" "$@" "$work"/*.topk.parquet "$work"/*.perplexity.parquet -o $tables
python "$here/latent_page.py" $tables
