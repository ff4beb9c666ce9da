{{/*
The values that count, as JSON: defaults, overlays and the user's values merged. Every template begins with
  {{- $ := include "istio-cni.context" . | fromJson }}
*/}}

{{/* Merges the map `from` into the map `into`, in place. Lists are replaced. A null in place of a map changes nothing. */}}
{{- define "istio-cni.merge" -}}
{{- $into := .into -}}
{{- range $key, $value := .from -}}
  {{- $old := get $into $key -}}
  {{- if and (kindIs "map" $old) (kindIs "map" $value) -}}
    {{- include "istio-cni.merge" (dict "into" $old "from" $value) -}}
  {{- else if not (and (kindIs "map" $old) (kindIs "invalid" $value)) -}}
    {{- $_ := set $into $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Merges an overlay of files/ into the values. */}}
{{- define "istio-cni.overlay" -}}
{{- if .name -}}
  {{- $file := printf "files/profile-%s%s.yaml" .prefix .name -}}
  {{- $text := .root.Files.Get $file -}}
  {{- if not $text -}}
    {{- $known := list -}}
    {{- range $path, $_ := .root.Files.Glob (printf "files/profile-%s*.yaml" .prefix) -}}
      {{- $name := trimSuffix ".yaml" (trimPrefix (printf "files/profile-%s" $.prefix) $path) -}}
      {{- if or $.prefix (not (or (hasPrefix "platform-" $name) (hasPrefix "compatibility-version-" $name))) -}}
        {{- $known = append $known $name -}}
      {{- end -}}
    {{- end -}}
    {{- fail (printf "unknown %s %q; known are %s" .what .name (join ", " $known)) -}}
  {{- end -}}
  {{- include "istio-cni.merge" (dict "into" .into "from" ($text | fromYaml)) -}}
{{- end -}}
{{- end -}}

{{- define "istio-cni.values" -}}
{{- $merged := deepCopy .Values.defaults -}}
{{- $user := omit (deepCopy .Values) "defaults" "cni" "_internal_defaults_do_not_set" -}}
{{- $cni := deepCopy (default dict .Values.cni) -}}
{{- $global := default dict .Values.global -}}
{{- $profile := coalesce $cni.profile $user.profile $global.profile -}}
{{- $platform := coalesce $cni.platform $user.platform $global.platform -}}
{{- $compatibility := coalesce $cni.compatibilityVersion $user.compatibilityVersion $global.compatibilityVersion -}}
{{- include "istio-cni.overlay" (dict "root" . "into" $merged "what" "profile" "prefix" "" "name" $profile) -}}
{{- include "istio-cni.overlay" (dict "root" . "into" $merged "what" "compatibilityVersion" "prefix" "compatibility-version-" "name" $compatibility) -}}
{{- include "istio-cni.overlay" (dict "root" . "into" $merged "what" "platform" "prefix" "platform-" "name" $platform) -}}
{{- range $source := list $user $cni -}}
  {{- /* A null directory stands for the default, or for the platform's. */ -}}
  {{- range list "cniBinDir" "cniConfDir" -}}
    {{- if kindIs "invalid" (get $source .) -}}{{- $_ := unset $source . -}}{{- end -}}
  {{- end -}}
  {{- include "istio-cni.merge" (dict "into" $merged "from" $source) -}}
{{- end -}}
{{- range $source := list $user $cni -}}
  {{- range splitList " " (include "istio-cni.known.free" $ | replace "\n" " ") -}}
    {{- if and (hasKey $source .) (kindIs "invalid" (get $source .)) -}}{{- $_ := set $merged . dict -}}{{- end -}}
  {{- end -}}
  {{- range $kind, $amounts := default dict $source.resources -}}
    {{- if kindIs "invalid" $amounts -}}{{- $_ := set $merged.resources $kind dict -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- include "istio-cni.known.check" (dict "unknown" (include "istio-cni.known.unknown" .) "values" $merged "known" .Values.defaults) -}}
{{- /* Nulls that stand for the default, and lists that are only almost empty (--set excludeNamespaces={}). */ -}}
{{- $_ := set $merged "excludeNamespaces" (compact (default list $merged.excludeNamespaces)) -}}
{{- $_ := set $merged "cniNetnsDir" (default "/var/run/netns" $merged.cniNetnsDir) -}}
{{- $_ := set $merged.global.logging "level" (default "info" $merged.global.logging.level) -}}
{{- $_ := set $merged "profile" (default "" $profile) -}}
{{- $_ := set $merged "platform" (default "" $platform) -}}
{{- $_ := set $merged "compatibilityVersion" (default "" $compatibility) -}}
{{- toJson $merged -}}
{{- end -}}

{{/*
What the templates ask of the values. `v` are the values, `m` those below `millrace`. Besides:
  ambient, node, inPod   ambient mode; node-level capture; in-pod capture or auto
  repair                 in-place, delete, label, or empty
  redirects              the agent changes rules in network namespaces
  unobserved             the agent cannot determine whether a pod with a sidecar is captured
  template               the plugin's entry comes from a template
*/}}
{{- define "istio-cni.context" -}}
{{- $v := include "istio-cni.values" . | fromJson -}}
{{- $m := $v.millrace -}}
{{- $ambient := $v.ambient.enabled -}}
{{- $node := and $ambient (eq $m.ambientCapture "node") -}}
{{- $repair := "" -}}
{{- if not $v.repair.enabled -}}
{{- else if $v.repair.repairPods -}}{{- $repair = "in-place" -}}
{{- else if $v.repair.deletePods -}}{{- $repair = "delete" -}}
{{- else if $v.repair.labelPods -}}{{- $repair = "label" -}}
{{- end -}}
{{- $redirects := or $ambient (eq $repair "in-place") -}}
{{- $c := dict "v" $v "m" $m "ambient" $ambient "node" $node "inPod" (and $ambient (not $node)) -}}
{{- $_ := set $c "repair" $repair -}}
{{- $_ := set $c "redirects" $redirects -}}
{{- $_ := set $c "unobserved" (not (or $redirects $m.inspectSidecars)) -}}
{{- $_ := set $c "template" (eq $m.pluginConfig "template") -}}
{{- $_ := set $c "hostNetwork" (or $node (and $ambient $v.ambient.shareHostNetworkNamespace)) -}}
{{- $_ := set $c "privileged" (or $v.privileged $node) -}}
{{- $_ := set $c "cluster" (ne $v.global.resourceScope "namespace") -}}
{{- $_ := set $c "namespaced" (ne $v.global.resourceScope "cluster") -}}
{{- $_ := set $c "namespace" .Release.Namespace -}}
{{- $_ := set $c "image" (include "istio-cni.image" (dict "v" $v "m" $m "root" .)) -}}
{{- $binDir := $v.cniBinDir -}}
{{- if not $binDir -}}
  {{- $binDir = ternary "/home/kubernetes/bin" "/opt/cni/bin" (contains "-gke" .Capabilities.KubeVersion.GitVersion) -}}
{{- end -}}
{{- $_ := set $c "binDir" $binDir -}}
{{- $labels := dict "app" "istio-cni" "release" .Release.Name "operator.istio.io/component" "Cni" -}}
{{- $_ := set $labels "istio.io/rev" (default "default" $v.revision) -}}
{{- $_ := set $labels "install.operator.istio.io/owning-resource" (default "unknown" $v.ownerName) -}}
{{- $standard := include "istio-cni.standardLabels" . | fromYaml -}}
{{- $_ := set $c "labels" (merge $labels $standard) -}}
{{- $_ := set $c "standardLabels" $standard -}}
{{- include "istio-cni.refuse" $c -}}
{{- toJson $c -}}
{{- end -}}

{{/* What cannot work. */}}
{{- define "istio-cni.refuse" -}}
{{- if and .namespaced (not .image) -}}
  {{- fail "millrace.image.hub is not set: set it to where you have pushed the image, such as registry.example.com/mesh, or set image to the image's whole name; see docs/helm.md#install" -}}
{{- end -}}
{{- if and .m.admissionPolicy.enabled (has .repair (list "delete" "label")) -}}
  {{- fail "millrace.admissionPolicy forbids what repair.deletePods and repair.labelPods do: use repair.repairPods, or do without the policy" -}}
{{- end -}}
{{- if and .v.istioOwnedCNIConfig (not .v.chained) -}}
  {{- fail "istioOwnedCNIConfig=true needs chained=true: there is no network configuration to copy" -}}
{{- end -}}
{{- if and (not .v.chained) (hasSuffix ".conflist" (default "" .v.cniConfFileName)) -}}
  {{- fail "cniConfFileName with .conflist needs chained=true: runtimes read a single network only from .conf and .json" -}}
{{- end -}}
{{- $surge := (default dict .v.updateStrategy.rollingUpdate).maxSurge -}}
{{- $rolls := and (kindIs "invalid" .v.rollingMaxUnavailable) (ne .v.updateStrategy.type "OnDelete") -}}
{{- if and $rolls (not (has (toString (default 0 $surge)) (list "0" "0%"))) -}}
  {{- fail "updateStrategy.rollingUpdate.maxSurge cannot be used: a node has one agent at a time, so the new one would wait for the old one, which the rollout keeps; set maxUnavailable" -}}
{{- end -}}
{{- if and (not (has .m.proofInterval (list "" "0" "0s"))) (not (or .redirects .privileged)) -}}
  {{- fail "millrace.proofInterval needs ambient mode or repair.repairPods: only these give the agent NET_RAW, without which it can prove nothing" -}}
{{- end -}}
{{- end -}}

{{/* A version may have a plus sign, which no label may: Flux appends a chart's digest with one. */}}
{{- define "istio-cni.standardLabels" -}}
app.kubernetes.io/name: istio-cni
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | quote }}
{{- end -}}

{{- define "istio-cni.tag" -}}
{{- include "istio-cni.text" .m.image.tag | default .root.Chart.AppVersion -}}
{{- end -}}

{{/* A value as text: 1500000, and not 1.5e+06. */}}
{{- define "istio-cni.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{- int64 . -}}{{- else -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{/* Empty if no value names its owner. */}}
{{- define "istio-cni.image" -}}
{{- if contains "/" .v.image -}}
{{- .v.image -}}
{{- else if .m.image.hub -}}
{{- printf "%s/%s:%s%s" .m.image.hub .m.image.name (include "istio-cni.tag" .) (ternary "-ambient" "" (eq .m.image.variant "ambient")) -}}
{{- end -}}
{{- end -}}
