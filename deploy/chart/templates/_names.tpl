{{/* The name of everything the release has one of. */}}
{{- define "egress-proxies.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of what belongs to no namespace. */}}
{{- define "egress-proxies.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "egress-proxies.name" .) -}}
{{- end -}}

{{- define "egress-proxies.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "egress-proxies.labels" -}}
{{ include "egress-proxies.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "egress-proxies.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "egress-proxies.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name: (missing): is needed where the chart makes none: name one, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "egress-proxies.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* "true" where ProxyProvider objects are written. */}}
{{- define "egress-proxies.providerObjects" -}}
{{- if eq (toString .Values.providerObjects) "auto" -}}
{{- empty .Values.watchNamespace -}}
{{- else -}}
{{- .Values.providerObjects -}}
{{- end -}}
{{- end -}}

{{/* What Proxies need: in one namespace or in all. */}}
{{- define "egress-proxies.rules" -}}
- apiGroups: [egress-proxies.io]
  resources: [proxies]
  verbs: [get, list, watch, patch]
- apiGroups: [egress-proxies.io]
  resources: [proxies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
