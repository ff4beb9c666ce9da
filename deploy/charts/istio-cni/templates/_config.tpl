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
{{- range $name, $value := .v.env }}
{{- if kindIs "map" $value }}{{ continue }}{{ end }}
{{ $name }}: {{ include "istio-cni.text" $value | quote }}
{{- end }}
{{- end -}}
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
