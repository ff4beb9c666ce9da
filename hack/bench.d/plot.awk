# Draws rows of a figure as SVG. Fields are separated by tabs. The first lines are `title TEXT`, `unit TEXT`, `scale log`, `lines
# error`, `bound NUMBER TEXT` and `colour OWNER COLOUR`; then, for each row: measurement, owner, minimum, maximum. A bar ends in the
# middle between them, and a line connects the two; the label is the middle if they are errors, else both. On a logarithmic scale:
# median, 99th percentile, maximum, drawn as a dot, a line and a tick.

function escape(text) { gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); return text }
function x_of(value) { return left + (is_log ? (log(value) - log(floor)) / (log(top) - log(floor)) : value / top) * width }
function text_at(x, y, anchor, text) {
  printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, escape(text)
}
function line_at(x1, y1, x2, y2, style) {
  printf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style
}

BEGIN {
  FS = "\t"
  left = 270; width = 560; bar = 13; gap = 12; head = 44
  split("#1b6ca8 #f0a04b #b5482a #5a5a5a", colours, " ")
}
/^#/ || /^$/ { next }
$1 == "title" { title = $2; next }
$1 == "unit" { unit = $2; next }
$1 == "scale" { is_log = $2 == "log"; next }
$1 == "lines" { are_errors = $2 == "error"; next }
$1 == "colour" { colour_of[$2] = $3; next }
$1 == "bound" { if ($2 > greatest) greatest = $2 + 0; bounds[++bound_count] = $2; bound_names[bound_count] = $3; next }
NF < 4 || $3 !~ /^-?[0-9.]+$/ || $4 !~ /^-?[0-9.]+$/ { print FILENAME ":" FNR ": not a row: " $0 > "/dev/stderr"; failed = 1; exit 1 }
{
  rows++
  names[rows] = $1; owners[rows] = $2; least[rows] = $3; most[rows] = $4; longest[rows] = $5
  if (!($2 in seen)) {
    seen[$2] = 1
    series[++series_count] = $2
    if (!($2 in colour_of)) colour_of[$2] = colours[series_count]
  }
  for (field = 3; field <= NF; field++) if ($field > greatest) greatest = $field + 0
}
END {
  if (failed || !rows) exit 1
  if (is_log) { floor = 1; for (top = 10; top < greatest; top *= 10); } else top = greatest * 1.12
  y = head + (series_count > 1 ? 20 : 0)
  for (row = 1; row <= rows; row++) { if (names[row] != names[row - 1]) y += gap; tops[row] = y; y += bar }
  bottom = y + gap / 2
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222222\">\n",
    left + width + 70, bottom + 28
  printf "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", escape(title)
  printf "<text x=\"12\" y=\"22\" font-size=\"13\" font-weight=\"bold\">%s</text>\n", escape(title)
  if (series_count > 1) {
    x = left
    for (at = 1; at <= series_count; at++) {
      printf "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, head - 8, colour_of[series[at]]
      text_at(x + 17, head + 2, "start", series[at])
      x += 40 + 6.2 * length(series[at])
    }
  }
  if (is_log) for (tick = floor; tick <= top; tick *= 10) axis(tick)
  else { step = 1; while (top / step > 8) step *= (step ~ /^2/ ? 2.5 : 2); for (tick = 0; tick <= top; tick += step) axis(tick) }
  for (row = 1; row <= rows; row++) {
    middle = tops[row] + bar / 2
    if (names[row] != names[row - 1]) {
      for (last = row; names[last + 1] == names[row]; last++);
      text_at(left - 10, (tops[row] + tops[last] + bar) / 2 + 4, "end", names[row])
    }
    colour = colour_of[owners[row]]
    if (is_log) {
      line_at(x_of(least[row]), middle, x_of(most[row]), middle, "stroke=\"" colour "\" stroke-width=\"3\"")
      line_at(x_of(longest[row]), middle - 4, x_of(longest[row]), middle + 4, "stroke=\"" colour "\" stroke-width=\"2\"")
      printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x_of(least[row]), middle, colour
    } else {
      value = (least[row] + most[row]) / 2
      printf "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left, tops[row], x_of(value) - left, bar - 2, colour
      line_at(x_of(least[row]), middle - 1, x_of(most[row]), middle - 1, "stroke=\"#222222\"")
      text_at(x_of(most[row]) + 5, middle + 3, "start", (are_errors ? sprintf("%.1f", value) : least[row] == most[row] ? least[row] : least[row] " to " most[row]) " " unit)
    }
  }
  for (at = 1; at <= bound_count; at++) {
    y = head + (series_count > 1 ? 18 : 4)
    line_at(x_of(bounds[at]), y + 4, x_of(bounds[at]), bottom, "stroke=\"#b00020\" stroke-dasharray=\"4 3\"")
    text_at(x_of(bounds[at]), y, "middle", bound_names[at])
  }
  print "</svg>"
}
function axis(tick) {
  line_at(x_of(tick), head + 12, x_of(tick), bottom, "stroke=\"#dddddd\"")
  text_at(x_of(tick), bottom + 16, "middle", tick " " unit)
}
