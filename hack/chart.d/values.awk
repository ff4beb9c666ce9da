# Prints the values below the key `defaults` of values.yaml as a Markdown table. A comment describes the keys that follow it in the
# same map, up to the next comment or empty line; in a map without comments, the comment of the map applies. Fails if a value has no
# comment.

# Writes the row of the values that share a comment.
function finish(    names, defaults, at) {
  for (at = 1; at <= count; at++) {
    names = names (at > 1 ? ", " : "") "`" paths[at] "`"
    defaults = defaults (at > 1 ? ", " : "") (values[at] == "" ? "empty" : "`" values[at] "`")
  }
  if (count && meaning == "") { print "values.yaml: no comment describes " names > "/dev/stderr"; status = 1 }
  if (count) print "| " names " | " defaults " | " meaning " |"
  count = 0
}

# Adds a value; one without a comment belongs to its map's row, or to that of an outer map.
function add(path, value,    at) {
  if (!count) {
    meaning = comment
    for (at = depth - 1; at > 0 && meaning == ""; at--) meaning = about[at]
  }
  paths[++count] = path
  values[count] = value
}

# Handles a key at the end of a line, once it is known whether it is a map.
function settle(is_map) {
  if (pending == "") return
  if (is_map) { finish(); about[depth] = comment; comment = inner; comment_indent = indent }
  else add(pending, list == "" ? "" : "[" list "]")
  pending = list = inner = ""
}

BEGIN { print "| Value | Default | Meaning |"; print "|---|---|---|" }
/^defaults:/ { begun = 1; next }
!begun { next }
/^ *$/ { settle(0); finish(); comment = ""; next }
{ match($0, /^ */); indent = RLENGTH; text = substr($0, indent + 1) }
text ~ /^#/ {
  sub(/^# ?/, "", text)
  # Comment of the first key of a map, or of a list item, which needs none.
  if (pending != "" && indent > last) { inner = inner (inner == "" ? "" : " ") text; next }
  settle(0)
  if (!is_continued) { finish(); comment = "" }
  is_continued = 1
  comment_indent = indent
  comment = comment (comment == "" ? "" : " ") text
  next
}
{ is_continued = 0 }
# List items; of items that are maps, only their presence counts.
text ~ /^- / || list != "" && indent > last {
  if (text ~ /^- [^:]*$/) list = list (list == "" ? "" : ", ") substr(text, 3)
  else list = "..."
  inner = ""
  next
}
{
  settle(indent > last)
  if (depth && indents[depth] > indent) finish()
  if (comment_indent != indent) comment = ""
  while (depth && indents[depth] >= indent) about[depth--] = ""
  key = value = text
  sub(/:.*/, "", key)
  sub(/^[^:]*: */, "", value)
  gsub(/^"|"$/, "", value)
  path = (depth ? names_of[depth] "." : "") key
  indents[++depth] = last = indent
  names_of[depth] = path
  if (text ~ /:$/) pending = path
  else add(path, value)
}
END { settle(0); finish(); exit status }
