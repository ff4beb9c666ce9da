# Reads samples that `hack/bench --results` has written, for the awk program that computes rows of a figure: value[WHAT, COLUMN, N],
# N from 1 to count[WHAT]; whats[1] to whats[what_count] are the names in order of appearance, and run is the line that describes
# the run.

BEGIN { FS = OFS = "\t" }
FNR == 1 && /^# / { run = $0; next }
$1 == "what" && $2 == "round" { for (field = 3; field <= NF; field++) columns[field] = $field; next }
{
  if (!($1 in count)) whats[++what_count] = $1
  count[$1]++
  for (field = 3; field <= NF; field++) value[$1, columns[field], count[$1]] = $field + 0
}

# Sorts samples into sorted[1] to sorted[size]: those of one column, or each as a multiple of another column's.
function sort(what, column, of,    at, gap, hole, one) {
  size = count[what]
  for (at = 1; at <= size; at++) sorted[at] = value[what, column, at] / (of == "" ? 1 : value[what, of, at])
  for (gap = int(size / 2); gap > 0; gap = int(gap / 2)) for (at = gap + 1; at <= size; at++) {
    one = sorted[at]
    for (hole = at; hole > gap && sorted[hole - gap] > one; hole -= gap) sorted[hole] = sorted[hole - gap]
    sorted[hole] = one
  }
}
# Median and quantile of the sorted samples, as tests/bench prints them.
function middle() { return sorted[int(size / 2) + 1] }
function percentile(part,    at) { at = int((size * part + 99) / 100); return sorted[at < 1 ? 1 : at] }
function lower(part) { return sorted[int((size - 1) * part) + 1] }
# Standard error of the median: half of the values are between the quartiles, as 1.349 deviations of a normal distribution are.
function error() { return 1.253 * (lower(0.75) - lower(0.25)) / 1.349 / sqrt(size) }
