# Rows of the figure of ADDs beside Istio's: median and its standard error, for our plugin as installed where that was measured.
END {
  print "title", "One ADD, from exec to exit (ms; medians, lines: standard error)"
  print "unit", "ms"
  print "lines", "error"
  print run
  istio = match(run, /Istio [^ ]+/) ? substr(run, RSTART, RLENGTH) : "Istio"
  for (at = 1; at <= what_count; at++) if (sub(/^Istio's /, "", whats[at]) && whats[at] ~ /ADD, /) {
    row(whats[at], (whats[at] ", agent") in count ? whats[at] ", agent" : whats[at], "Millrace")
    row(whats[at], "Istio's " whats[at], istio)
  }
}
function row(name, what, whose) {
  sub(/.*ADD, /, "", name)
  sub(/ of the API server/, "", name)
  sort(what, "wall_ms")
  printf "%s\t%s\t%.3f\t%.3f\n", name, whose, middle() - error(), middle() + error()
}
