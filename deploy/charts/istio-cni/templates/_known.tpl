{{/*
Values that this chart does not know. Istio's chart ignores such values, so a file for it may have some: they are named in NOTES.txt,
and are an error with millrace.strict, and below millrace, where no file for Istio's chart has any. values.schema.json checks types
and leaves unknown keys to this, because a schema cannot suggest anything.
*/}}

{{/* Values with keys of the user's own. */}}
{{- define "istio-cni.known.free" -}}
affinity daemonSetLabels env global.defaultResources millrace.alerts.labels millrace.dashboard.labels millrace.podMonitor.labels
nodeSelector podAnnotations podLabels resources seLinuxOptions seccompProfile updateStrategy
{{- end -}}

{{/* Top-level keys of Istio's other charts, and of Helm: one file may serve several charts. */}}
{{- define "istio-cni.known.foreign" -}}
_internal_defaults_do_not_set base defaultRevision defaults enabled experimental gatewayClasses gateways istio_cni istiodRemote
meshConfig pilot revisionTags sidecarInjectorWebhook sidecarInjectorWebhookAnnotations tags telemetry ztunnel
{{- end -}}

{{/* The paths of unknown values, a line for each. */}}
{{- define "istio-cni.known.unknown" -}}
{{- $free := splitList " " (include "istio-cni.known.free" . | replace "\n" " ") -}}
{{- $foreign := splitList " " (include "istio-cni.known.foreign" . | replace "\n" " ") -}}
{{- $known := .Values.defaults -}}
{{- $top := omit .Values "cni" "global" -}}
{{- range $foreign -}}{{- $top = omit $top . -}}{{- end -}}
{{- include "istio-cni.known.walk" (dict "values" $top "known" $known "path" "" "prefix" "" "free" $free "all" $known) -}}
{{- with .Values.cni -}}
  {{- include "istio-cni.known.walk" (dict "values" (omit . "global" "enabled") "known" $known "path" "" "prefix" "cni." "free" $free "all" $known) -}}
{{- end -}}
{{- end -}}

{{- define "istio-cni.known.walk" -}}
{{- range $key, $value := .values -}}
  {{- $path := printf "%s%s" $.path $key -}}
  {{- if not (hasKey $.known $key) -}}
    {{- $.prefix }}{{ include "istio-cni.known.firstLeaf" (dict "path" $path "value" $value) }}{{ "\n" -}}
  {{- else if and (kindIs "map" $value) (not (has $path $.free)) -}}
    {{- $below := get $.known $key -}}
    {{- if kindIs "map" $below -}}
      {{- include "istio-cni.known.walk" (dict "values" $value "known" $below "path" (printf "%s." $path) "prefix" $.prefix "free" $.free "all" $.all) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with the unknown value at `path`, which begins with `cni.` if the user's did. */}}
{{- define "istio-cni.known.message" -}}
{{- $free := splitList " " (include "istio-cni.known.free" . | replace "\n" " ") -}}
{{- $prefix := ternary "cni." "" (hasPrefix "cni." .path) -}}
{{- $closest := include "istio-cni.known.closest" (dict "path" (trimPrefix $prefix .path) "known" .known "free" $free) -}}
unknown value {{ quote .path }}{{ with $closest }}; did you mean {{ printf "%s%s" $prefix . | quote }}?{{ else }}.{{ end }} See docs/helm.md for all values
{{- end -}}

{{/* Fails for an unknown value that is an error. `unknown` as of istio-cni.known.unknown, `values` merged, `known` as in defaults. */}}
{{- define "istio-cni.known.check" -}}
{{- range splitList "\n" (trim .unknown) -}}
  {{- if and . (or $.values.millrace.strict (hasPrefix "millrace." (trimPrefix "cni." .))) -}}
    {{- fail (include "istio-cni.known.message" (dict "path" . "known" $.known)) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The first leaf of an unknown value: repiar.enabled of {repiar: {enabled: true}}. */}}
{{- define "istio-cni.known.firstLeaf" -}}
{{- if and (kindIs "map" .value) .value -}}
  {{- $first := first (keys .value | sortAlpha) -}}
  {{- include "istio-cni.known.firstLeaf" (dict "path" (printf "%s.%s" .path $first) "value" (get .value $first)) -}}
{{- else -}}
  {{- .path -}}
{{- end -}}
{{- end -}}

{{- define "istio-cni.known.paths" -}}
{{- range $key, $value := .known -}}
  {{- $path := printf "%s%s" $.path $key -}}
  {{- if and (kindIs "map" $value) (not (has $path $.free)) -}}
    {{- include "istio-cni.known.paths" (dict "known" $value "path" (printf "%s." $path) "free" $.free) -}}
  {{- end -}}
  {{- $path }}{{ " " -}}
{{- end -}}
{{- end -}}

{{/*
The known path with the fewest edits, if it has few enough to be meant. The same last word in another place counts as three edits,
and one in the same place as no more than seven.
*/}}
{{- define "istio-cni.known.closest" -}}
{{- $path := lower .path -}}
{{- $word := last (splitList "." $path) -}}
{{- $paths := include "istio-cni.known.paths" (dict "known" .known "path" "" "free" .free) -}}
{{- $parent := "" -}}
{{- if contains "." $path -}}{{- $parent = dir (replace "." "/" $path) -}}{{- end -}}
{{- $best := "" -}}{{- $least := 10000 -}}{{- $isSibling := false -}}
{{- range splitList " " (trim $paths) -}}
  {{- $candidate := lower . -}}
  {{- $edits := include "istio-cni.known.edits" (dict "a" $path "b" $candidate) | int -}}
  {{- $words := include "istio-cni.known.edits" (dict "a" $word "b" (last (splitList "." $candidate))) | int -}}
  {{- $cost := mul 10 (min $edits (add $words 3)) -}}
  {{- $sibling := and $parent (eq $parent (dir (replace "." "/" $candidate))) -}}
  {{- if $sibling -}}{{- $cost = min $cost (add 60 $edits) -}}{{- end -}}
  {{- if lt $cost $least -}}{{- $best = . -}}{{- $least = $cost -}}{{- $isSibling = $sibling -}}{{- end -}}
{{- end -}}
{{- if or $isSibling (and (le $least 30) (le (div $least 5) (len $path))) -}}{{- $best -}}{{- end -}}
{{- end -}}

{{/* The number of characters to insert, delete or replace (Levenshtein). */}}
{{- define "istio-cni.known.edits" -}}
{{- $a := splitList "" .a -}}{{- $b := splitList "" .b -}}
{{- $row := untilStep 0 (int (add 1 (len $b))) 1 -}}
{{- range $i, $x := $a -}}
  {{- $next := list (add1 $i) -}}
  {{- range $j, $y := $b -}}
    {{- $replaced := add (index $row $j) (ternary 0 1 (eq $x $y)) -}}
    {{- $next = append $next (min $replaced (add1 (index $row (add1 $j))) (add1 (index $next $j))) -}}
  {{- end -}}
  {{- $row = $next -}}
{{- end -}}
{{- last $row -}}
{{- end -}}
