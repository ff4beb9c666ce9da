# Rows of the figure of packets: median and standard error of the additional time compared with the bare node, relative to the
# measurement before, when no node had any rules.
END {
  print "title", "What packets of a pod outside of the mesh cost more with node-level capture (%; lines: standard error)"
  print "unit", "%"
  print "lines", "error"
  print "bound", 3, "bound 3 %"
  print "colour", "Millrace, IPv4", "#1b6ca8"
  print "colour", "Millrace, IPv6", "#7fb4dc"
  print "colour", "one policy rule, IPv4", "#5a5a5a"
  print "colour", "one policy rule, IPv6", "#a8a8a8"
  print run
  # In the order of the table.
  rows_like("^stream")
  rows_like("^round trips, (by|two)")
  rows_like("processor time, IPv4$")
}
function rows_like(pattern,    at) {
  for (at = 1; at <= what_count; at++) if (whats[at] ~ pattern && sub(/, IPv4$/, "", whats[at])) {
    row(whats[at], "one_rule", "one policy rule")
    row(whats[at], "millrace", "Millrace")
  }
}
function row(what, node, name,    family, label, before, before_error, more, error_of_more) {
  label = what
  sub(/, per MiB/, "", label)
  for (family = 4; family <= 6; family += 2) {
    sort(what ", IPv" family, node "_before", "bare_before")
    before = lower(0.5)
    before_error = error()
    sort(what ", IPv" family, node, "bare")
    more = 100 * (lower(0.5) / before - 1)
    error_of_more = 100 * sqrt(before_error ^ 2 + error() ^ 2)
    printf "%s\t%s, IPv%d\t%.3f\t%.3f\n", label, name, family, more - error_of_more, more + error_of_more
  }
}
