# Makes rows for plot.awk of what `hack/bench --only drift` prints: median, 99th of 100 and the most of each kind.
BEGIN {
  OFS = "\t"
  print "title", "Time until drift is repaired (ms, logarithmic; dots: median, lines: to the 99th of 100, ticks: the longest)"
  print "unit", "ms"
  print "scale", "log"
  print "bound", 100, "half"
  print "bound", 1000, "99 of 100"
}
/ median .* 99th of 100 .* most / {
  place = $1
  sub(/^ *[^ ]+ +/, "")
  kind = $0; sub(/ +median .*/, "", kind)
  numbers = $0; sub(/.* median +/, "", numbers)
  split(numbers, parts, /[^0-9.]+/)
  # "38.5 ms, 99th of 100   39.9 ms, most   47.2 ms"
  print place ": " kind, "median", parts[1], parts[4], parts[5]
}
