{{- define "legato.fullname" -}}
{{- if contains "legato" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-legato" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "legato.selector" -}}
app.kubernetes.io/name: legato-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "legato.labels" -}}
{{ include "legato.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: legato
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "legato.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "legato.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The name of one image: list of the context and operator, gateway or engine. */}}
{{- define "legato.image" -}}
{{- $root := index . 0 }}{{- $image := index $root.Values.images (index . 1) }}
{{- with $root.Values.images.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What the operator may do in a namespace whose services it looks after; of Secrets elsewhere. No wildcards. */}}
{{- define "legato.rules" -}}
- apiGroups: [serving.legato.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch, patch]
- apiGroups: [serving.legato.dev]
  resources: [workerpools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [serving.legato.dev]
  resources: [inferenceservices/status, workerpools/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# Whether a claim that a manifest names is there.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# Gateways watch these; only who may do so can allow it.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, create, patch]
{{- end }}

{{/* Tokens of services are read by name: nobody may list Secrets. */}}
{{- define "legato.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
{{- end }}

{{- define "legato.subject" -}}
- kind: ServiceAccount
  name: {{ include "legato.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "legato.testNamespace" -}}
{{- .Values.test.namespace | default (first (append .Values.watchNamespaces .Release.Namespace)) }}
{{- end }}
