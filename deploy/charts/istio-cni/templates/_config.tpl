{{/* Data of the ConfigMap istio-cni-config: the plugin's entry, or the agent's settings. */}}
{{- define "istio-cni.config" -}}
{{- if .template -}}
cni_network_config: |-
  {
    "cniVersion": "0.3.1",
    "name": "istio-cni",
    "type": "istio-cni",
    "log_level": {{ default "info" .v.logLevel | toJson }},
    "log_uds_address": "__LOG_UDS_ADDRESS__",
    {{- if .ambient }}
    "ambient_enabled": true,
    {{- end }}
    "pod_namespace": {{ .namespace | toJson }},
    {{- with .m.agentNamespaces }}
    "agent_namespaces": {{ toJson . }},
    {{- end }}
    "capabilities": {"io.kubernetes.cri.pod-annotations": true},
    "kubernetes": {
      "kubeconfig": "__KUBECONFIG_FILEPATH__",
      "cni_bin_dir": {{ .binDir | toJson }},
      "exclude_namespaces": [{{ range $i, $name := .v.excludeNamespaces }}{{ if $i }}, {{ end }}{{ $name | toJson }}{{ end }}]
    }
  }
{{- else -}}
{{- include "istio-cni.without" (dict "text" (include "istio-cni.settings" .) "by" .v.env "form" "%s: .*\n?") -}}
{{- range $name, $value := .v.env }}
{{- if kindIs "map" $value }}{{ continue }}{{ end }}
{{ $name }}: {{ include "istio-cni.text" $value | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/*
`text` without the entries whose keys the map `by` has: twice in one list or map, a key is refused by server-side apply and by
Flux. `form` is a pattern for an entry, with its key at %s.
*/}}
{{- define "istio-cni.without" -}}
{{- $text := .text -}}
{{- range $key, $_ := .by -}}
{{- $text = regexReplaceAll (printf (print "(?m)^" $.form) (regexQuoteMeta $key)) $text "" -}}
{{- end -}}
{{- trim $text -}}
{{- end -}}

{{/* Annotations of the agent's pods, besides `podAnnotations`. */}}
{{- define "istio-cni.annotations" -}}
sidecar.istio.io/inject: "false"
{{- if and .template (not .inPod) }}
ambient.istio.io/redirection: disabled
{{- end }}
{{- if and .redirects (not .node) .v.useAppArmorAnnotation }}
# The agent mounts in its own mount namespaces, which the runtime's AppArmor profile denies to all containers. (Older
# clusters do not know the field that newer ones have for this.)
container.apparmor.security.beta.kubernetes.io/install-cni: unconfined
{{- end }}
prometheus.io/scrape: "true"
prometheus.io/port: "15014"
prometheus.io/path: /metrics
{{- if and (not .template) .m.restartOnConfigChange }}
checksum/istio-cni-config: {{ include "istio-cni.config" . | sha256sum | quote }}
{{- end }}
{{- end -}}

{{/* The agent's settings, besides `env`. */}}
{{- define "istio-cni.settings" -}}
CURRENT_AGENT_VERSION: {{ .version | quote }}
AMBIENT_ENABLED: {{ .ambient | quote }}
AMBIENT_ENABLEMENT_SELECTOR: {{ toYaml .v.ambient.enablementSelectors | quote }}
AMBIENT_DNS_CAPTURE: {{ .v.ambient.dnsCapture | quote }}
AMBIENT_IPV6: {{ .v.ambient.ipv6 | quote }}
AMBIENT_RECONCILE_POD_RULES_ON_STARTUP: {{ .v.ambient.reconcileIptablesOnStartup | quote }}
ENABLE_AMBIENT_DETECTION_RETRY: {{ .v.ambient.enableAmbientDetectionRetry | quote }}
{{- with .v.cniConfFileName }}
CNI_CONF_NAME: {{ . | quote }}
{{- end }}
ISTIO_OWNED_CNI_CONFIG: {{ .v.istioOwnedCNIConfig | quote }}
{{- if or .v.istioOwnedCNIConfig .v.istioOwnedCNIConfigFileName }}
ISTIO_OWNED_CNI_CONF_FILENAME: {{ .v.istioOwnedCNIConfigFileName | quote }}
{{- end }}
CHAINED_CNI_PLUGIN: {{ .v.chained | quote }}
EXCLUDE_NAMESPACES: {{ join "," .v.excludeNamespaces | quote }}
REPAIR_ENABLED: {{ .v.repair.enabled | quote }}
REPAIR_LABEL_PODS: {{ .v.repair.labelPods | quote }}
REPAIR_DELETE_PODS: {{ .v.repair.deletePods | quote }}
REPAIR_REPAIR_PODS: {{ .v.repair.repairPods | quote }}
REPAIR_INIT_CONTAINER_NAME: {{ .v.repair.initContainerName | quote }}
REPAIR_BROKEN_POD_LABEL_KEY: {{ .v.repair.brokenPodLabelKey | quote }}
REPAIR_BROKEN_POD_LABEL_VALUE: {{ .v.repair.brokenPodLabelValue | quote }}
NATIVE_NFTABLES: {{ .v.global.nativeNftables | quote }}
{{- end -}}

{{/* Variables of Millrace, where a value is not the agent's default; in both layouts. */}}
{{- define "istio-cni.ownEnv" -}}
{{- $env := dict -}}
{{- if .ambient -}}
  {{- if ne .m.ambientCapture "" -}}{{- $_ := set $env "AMBIENT_CAPTURE" .m.ambientCapture -}}{{- end -}}
  {{- if .node -}}{{- $_ := set $env "NO_ZTUNNEL_POLICY" .m.noZtunnelPolicy -}}{{- end -}}
  {{- with .m.ztunnelNamespace -}}{{- $_ := set $env "SYSTEM_NAMESPACE" . -}}{{- end -}}
  {{- with .m.allowedExceptions -}}{{- $_ := set $env "AMBIENT_ALLOWED_EXCEPTIONS" (join "," .) -}}{{- end -}}
  {{- with .m.probeSourceIPv4 -}}{{- $_ := set $env "HOST_PROBE_SNAT_IP" . -}}{{- end -}}
  {{- with .m.probeSourceIPv6 -}}{{- $_ := set $env "HOST_PROBE_SNAT_IPV6" . -}}{{- end -}}
{{- end -}}
{{- with .m.agentNamespaces -}}{{- $_ := set $env "AGENT_NAMESPACES" (join "," .) -}}{{- end -}}
{{- if ne .m.existingConnections "keep" -}}{{- $_ := set $env "EXISTING_CONNECTIONS" .m.existingConnections -}}{{- end -}}
{{- if ne .m.cleanupOnExit "auto" -}}{{- $_ := set $env "CLEANUP_ON_EXIT" .m.cleanupOnExit -}}{{- end -}}
{{- if not .m.writeKubeconfig -}}{{- $_ := set $env "WRITE_KUBECONFIG" "false" -}}{{- end -}}
{{- if .m.repairDryRun -}}{{- $_ := set $env "REPAIR_DRY_RUN" "true" -}}{{- end -}}
{{- if .m.nodeCondition -}}{{- $_ := set $env "NODE_CONDITION" "true" -}}{{- end -}}
{{- if .m.metricsByNamespace -}}{{- $_ := set $env "METRICS_BY_NAMESPACE" "true" -}}{{- end -}}
{{- with .m.proofInterval -}}{{- $_ := set $env "PROOF_INTERVAL" . -}}{{- end -}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | toString | toYaml }}
{{- end }}
{{- end -}}

{{/* Variables of the agent's container, besides `env`. */}}
{{- define "istio-cni.env" -}}
{{- $c := . }}{{ $v := .v }}
{{- if $c.template }}
{{- with $v.cniConfFileName }}
- name: CNI_CONF_NAME
  value: {{ . | toYaml }}
{{- end }}
- name: CNI_NETWORK_CONFIG
  valueFrom:
    configMapKeyRef:
      name: istio-cni-config
      key: cni_network_config
# The same ConfigMap, which the agent watches; the value above is for a start without the API server.
- name: CNI_CONFIG_MAP
  value: istio-cni-config
- name: CNI_NET_DIR
  value: {{ $v.cniConfDir | toYaml }}
- name: CHAINED_CNI_PLUGIN
  value: {{ $v.chained | quote }}
{{- if $v.istioOwnedCNIConfig }}
- name: ISTIO_OWNED_CNI_CONFIG
  value: "true"
{{- end }}
{{- if or $v.istioOwnedCNIConfig $v.istioOwnedCNIConfigFileName }}
- name: ISTIO_OWNED_CNI_CONFIG_FILENAME
  value: {{ $v.istioOwnedCNIConfigFileName | quote }}
{{- end }}
{{- if $v.global.nativeNftables }}
- name: NATIVE_NFTABLES
  value: "true"
{{- end }}
# Repair of broken pods; docs/repair.md lists what each mode needs.
- name: REPAIR_ENABLED
  value: {{ $v.repair.enabled | quote }}
{{- end }}
- name: REPAIR_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if $c.template }}
- name: REPAIR_LABEL_PODS
  value: {{ $v.repair.labelPods | quote }}
- name: REPAIR_DELETE_PODS
  value: {{ $v.repair.deletePods | quote }}
- name: REPAIR_REPAIR_PODS
  value: {{ $v.repair.repairPods | quote }}
{{- end }}
- name: REPAIR_RUN_AS_DAEMON
  value: "true"
- name: REPAIR_SIDECAR_ANNOTATION
  value: sidecar.istio.io/status
{{- if $c.template }}
- name: REPAIR_INIT_CONTAINER_NAME
  value: {{ $v.repair.initContainerName | toYaml }}
- name: REPAIR_BROKEN_POD_LABEL_KEY
  value: {{ $v.repair.brokenPodLabelKey | toYaml }}
- name: REPAIR_BROKEN_POD_LABEL_VALUE
  value: {{ $v.repair.brokenPodLabelValue | toYaml }}
- name: LOG_LEVEL
  value: {{ default "info" $v.logLevel | toYaml }}
{{- if or $c.ambient $c.repair }}
- name: EXCLUDE_NAMESPACES
  value: {{ join "," $v.excludeNamespaces | toYaml }}
{{- end }}
{{- if $c.ambient }}
- name: AMBIENT_ENABLED
  value: "true"
{{- end }}
{{- if $c.inPod }}
# ztunnel answers the DNS queries of pods that do not opt out. By its own default, it listens for them.
- name: AMBIENT_DNS_CAPTURE
  value: {{ $v.ambient.dnsCapture | quote }}
- name: AMBIENT_IPV6
  value: {{ $v.ambient.ipv6 | quote }}
{{- end }}
{{- end }}
{{- if not (or $c.hostNetwork (and $c.template (not $c.inPod))) }}
# The agent's pod has its own network namespace: work in that of process 1 of the node.
- name: ALLOW_SWITCH_TO_HOST_NS
  value: "true"
{{- end }}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with include "istio-cni.ownEnv" $c | trim }}
# docs/install-cni.md, docs/ambient.md and docs/in-pod.md describe these.
{{- . | nindent 0 }}
{{- end }}
{{- end -}}
