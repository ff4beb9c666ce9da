{{/*
Values that this chart does not know: an error that names the closest one it knows. values.schema.json checks types and leaves
unknown keys to this, because a schema cannot suggest anything.
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

{{- define "istio-cni.known.check" -}}
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
    {{- $leaf := include "istio-cni.known.firstLeaf" (dict "path" $path "value" $value) -}}
    {{- $closest := include "istio-cni.known.closest" (dict "path" $leaf "known" $.all "free" $.free) -}}
    {{- fail (printf "unknown value %q; did you mean %q? See docs/helm.md for all values" (printf "%s%s" $.prefix $leaf) (printf "%s%s" $.prefix $closest)) -}}
  {{- else if and (kindIs "map" $value) (not (has $path $.free)) -}}
    {{- $below := get $.known $key -}}
    {{- if kindIs "map" $below -}}
      {{- include "istio-cni.known.walk" (dict "values" $value "known" $below "path" (printf "%s." $path) "prefix" $.prefix "free" $.free "all" $.all) -}}
    {{- end -}}
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
The known path with the fewest edits. The same last word in another place counts as three edits, and one in the same place as no more
than seven.
*/}}
{{- define "istio-cni.known.closest" -}}
{{- $path := lower .path -}}
{{- $word := last (splitList "." $path) -}}
{{- $paths := include "istio-cni.known.paths" (dict "known" .known "path" "" "free" .free) -}}
{{- $parent := "" -}}
{{- if contains "." $path -}}{{- $parent = dir (replace "." "/" $path) -}}{{- end -}}
{{- $best := "" -}}{{- $least := 10000 -}}
{{- range splitList " " (trim $paths) -}}
  {{- $candidate := lower . -}}
  {{- $edits := include "istio-cni.known.edits" (dict "a" $path "b" $candidate) | int -}}
  {{- $words := include "istio-cni.known.edits" (dict "a" $word "b" (last (splitList "." $candidate))) | int -}}
  {{- $cost := mul 10 (min $edits (add $words 3)) -}}
  {{- if and $parent (eq $parent (dir (replace "." "/" $candidate))) -}}{{- $cost = min $cost (add 60 $edits) -}}{{- end -}}
  {{- if lt $cost $least -}}{{- $best = . -}}{{- $least = $cost -}}{{- end -}}
{{- end -}}
{{- $best -}}
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
