# Rows of the figure of drift: median, 99th percentile and maximum of each kind.
END {
  print "title", "Time until drift is repaired (ms, logarithmic; dots: median, lines: to the 99th of 100, ticks: the longest)"
  print "unit", "ms"
  print "scale", "log"
  print "bound", 100, "half"
  print "bound", 1000, "99 of 100"
  print run
  for (kind = 1; kind <= what_count; kind++) {
    sort(whats[kind], "ms")
    printf "%s\tmedian\t%.1f\t%.1f\t%.1f\n", whats[kind], percentile(50), percentile(99), percentile(100)
  }
}
